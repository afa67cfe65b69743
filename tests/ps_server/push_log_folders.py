"""Log folders in memory, and one that fails on demand: what the push log's tests write to."""

import contextlib
import errno

import numpy as np


class MemoryFile:
    """A file of a `MemoryFolder`; `synced` is what would survive the machine."""

    def __init__(self, folder):
        self.folder = folder
        self.data = bytearray()
        self.synced = b""

    def write(self, offset, buffers):
        for buffer in buffers:
            view = bytes(buffer)
            room = self.folder.take_room(max(offset + len(view) - len(self.data), 0), len(view))
            kept = view[:room]
            self.data[offset : offset + len(kept)] = kept
            offset += len(kept)
            if len(kept) < len(view):
                raise OSError(self.folder.error, "injected")

    def read(self, offset, size):
        return np.frombuffer(bytes(self.data[offset : offset + size]), np.uint8)

    def size(self):
        return len(self.data)

    def truncate(self, size):
        if self.folder.fails_truncate:
            raise OSError(errno.EIO, "injected")
        self.folder.room = None if self.folder.room is None else self.folder.room + len(self.data) - size
        del self.data[size:]

    def sync(self):
        if self.folder.fails_sync:
            raise OSError(errno.EIO, "injected")
        self.folder.syncs += 1
        self.synced = bytes(self.data)

    def close(self):
        pass


class MemoryFolder:
    """A `LogFolder` of dictionaries. room: bytes that may still be added (None: any number), then `error` is raised."""

    def __init__(self, files=None):
        self.files = {}
        for name, data in (files or {}).items():
            self.create(name).data[:] = data
        self.room = None
        self.error = errno.ENOSPC
        self.fails_truncate = self.fails_sync = False
        self.syncs = 0

    def take_room(self, grown, size):
        if self.room is None:
            return size
        taken = min(grown, self.room)
        self.room -= taken
        return size - (grown - taken)

    def names(self):
        return sorted(self.files)

    def create(self, name):
        self.files[name] = MemoryFile(self)
        return self.files[name]

    def open(self, name):
        return self.files[name]

    def replace(self, name, data):
        file = MemoryFile(self)
        file.write(0, [data])
        self.files[name] = file

    def remove(self, name):
        if self.room is not None:
            self.room += len(self.files[name].data)
        del self.files[name]

    def sync(self):
        pass

    def path(self, name):
        return f"memory/{name}"

    def lock(self):
        return contextlib.nullcontext()

    def copy(self):
        """The bytes as another process would find them after this one was killed."""
        return {name: bytes(file.data) for name, file in self.files.items()}
