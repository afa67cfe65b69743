"""Memory that a client and a shard on one machine both map, so that the arrays of an exchange need no socket.

The client makes a block (a sealed memfd: it can neither shrink nor grow, and vanishes with its last user), the shard
opens it through the client's process and maps it. One exchange uses a block at a time: arrays of the request lie in its
first half, the rows of the reply in its second half.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import secrets
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from . import parameter_server_pb2 as pb
from .doorbell import ALIGNMENT, ClientBell, Ending, Piece
from .errors import SharedMemoryGoneError, WireFormatError
from .message_fields import Packed, size_of, write_array

BLOCK_BYTES = 256 << 20
"""Address space of a block; memory is used only where something was written."""
HALF = BLOCK_BYTES // 2
HEADER_BYTES = ALIGNMENT
MOST_BLOCKS = 1024
MAP_FAILED = ctypes.c_void_p(-1).value
NOT_CUT: Mapping[int, Piece] = {}
IS_POSSIBLE = hasattr(os, "memfd_create")


class ClientBlock:
    """A client's block.

    Thread safety: none; the lane's one exchange at a time. A block whose call was not answered is not used again: that
    call may still be read from it, or written to it, by the shard.
    """

    def __init__(self) -> None:
        self.number = secrets.randbits(63) | 1
        # Of the arrays that were placed last: where they end, and those that are not written yet.
        self._end = HEADER_BYTES
        self._unwritten: dict[Piece, list[tuple[Packed, npt.NDArray[np.uint8]]]] = {}
        self._file = os.memfd_create("embershard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, BLOCK_BYTES)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._bytes = np.frombuffer(mmap.mmap(self._file, BLOCK_BYTES), np.uint8)
            self._bytes[:8] = np.array([self.number], "<u8").view(np.uint8)
            self.bell = ClientBell()
        except BaseException:
            os.close(self._file)
            raise

    def request(self, header: pb.CallHeader) -> pb.ShareMemoryRequest:
        """What tells the shard where the block and its doorbell are."""
        request = pb.ShareMemoryRequest(
            header=header, block=self.number, process=os.getpid(), descriptor=self._file, bytes=BLOCK_BYTES
        )
        self.bell.invite(request)
        return request

    def place(
        self, arrays: Iterable[tuple[int, Packed]], reply_bytes: int, pieces: Mapping[int, Piece] = NOT_CUT
    ) -> pb.SharedArrays | None:
        """Where the arrays lie in the block; None where they, or `reply_bytes` of rows, have no room.

        pieces: numbers of arrays that have their places but are not written before `call` or `complete`."""
        placed = pb.SharedArrays(block=self.number, reply_offset=HALF, reply_bytes=HALF)
        if reply_bytes > HALF:
            return None
        position = HEADER_BYTES
        self._unwritten.clear()
        for number, array in arrays:
            size = size_of(array)
            if position + size > HALF:
                return None
            room = self._bytes[position : position + size]
            piece = pieces.get(number)
            if piece is not None:
                self._unwritten.setdefault(piece, []).append((array, room))
            else:
                write_array(array, room)
            placed.fields.append(number)
            placed.offsets.append(position)
            placed.sizes.append(size)
            position += -(-size // ALIGNMENT) * ALIGNMENT
        self._end = position
        return placed

    def complete(self) -> None:
        """Write what `place` left out."""
        for piece in list(self._unwritten):
            self._write(piece)

    def _write(self, piece: Piece) -> None:
        for array, room in self._unwritten.pop(piece):
            write_array(array, room)

    def can_call(self, size: int) -> bool:
        """Whether an exchange of so many bytes, its arrays placed, can be called by the doorbell."""
        return self.bell.fits(self._bytes[:HALF], self._end, size)

    def call(self, request: bytes, seconds: float) -> tuple[Ending, bytes]:
        """What the shard answers to the exchange whose arrays were placed. Raises: as `ClientBell.call`."""
        pieces = {piece: functools.partial(self._write, piece) for piece in sorted(self._unwritten)}
        return self.bell.call(self._bytes[:HALF], self._end, request, seconds, pieces)

    def reply(self, size: int) -> memoryview:
        """View of the reply's rows."""
        if size > HALF:
            raise WireFormatError(f"expected rows of at most {HALF} bytes in shared memory, got {size}")
        return self._bytes[HALF : HALF + size].data.toreadonly()

    def close(self) -> None:
        """Let go of the memory; the shard does when it is told to, or finds the process gone."""
        self.bell.close()
        os.close(self._file)
        self._bytes = np.empty(0, np.uint8)


class SharedBlocks:
    """The blocks of its clients that a shard has mapped.

    Thread safety: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, tuple[int, npt.NDArray[np.uint8]]] = OrderedDict()

    def add(self, request: pb.ShareMemoryRequest) -> npt.NDArray[np.uint8] | None:
        """The memory of the block, mapped: the client runs on this machine under this user, and it is what it says it
        is. None where that is not so.

        Blocks of processes that are gone are dropped, and the one used longest ago where there are too many."""
        memory = _map(request)
        if memory is None:
            return None
        with self._lock:
            for number in [number for number, (process, _) in self._blocks.items() if not _is_alive(process)]:
                del self._blocks[number]
            while len(self._blocks) >= MOST_BLOCKS:
                self._blocks.popitem(last=False)
            self._blocks[request.block] = request.process, memory
        return memory

    def remove(self, number: int) -> bool:
        """Whether there was such a block; it is mapped no more."""
        with self._lock:
            return self._blocks.pop(number, None) is not None

    def __len__(self) -> int:
        return len(self._blocks)

    def fields(self, shared: pb.SharedArrays) -> dict[int, memoryview]:
        """Views of the arrays by field number. Raises: SharedMemoryGoneError, WireFormatError."""
        memory = self._find(shared)
        if not len(shared.fields) == len(shared.offsets) == len(shared.sizes):
            raise WireFormatError(f"expected an offset and a size for each of {len(shared.fields)} shared fields")
        fields = {}
        for number, offset, size in zip(shared.fields, shared.offsets, shared.sizes, strict=True):
            if offset % ALIGNMENT or offset + size > len(memory):
                raise WireFormatError(f"expected shared field {number} inside its block, got {offset} + {size} bytes")
            fields[number] = memory[offset : offset + size].data.toreadonly()
        return fields

    def reply_room(self, shared: pb.SharedArrays, size: int) -> npt.NDArray[np.uint8] | None:
        """(size,) uint8 memory for the reply's rows; None where they do not fit. Raises: as `fields`."""
        memory = self._find(shared)
        start, most = shared.reply_offset, shared.reply_bytes
        if start % ALIGNMENT or start + most > len(memory):
            raise WireFormatError(f"expected room for the reply inside its block, got {start} + {most} bytes")
        return memory[start : start + size] if size <= most else None

    def _find(self, shared: pb.SharedArrays) -> npt.NDArray[np.uint8]:
        with self._lock:
            found = self._blocks.get(shared.block)
            if found is None:
                raise SharedMemoryGoneError(f"expected a block that this shard has mapped, got {shared.block:016x}")
            self._blocks.move_to_end(shared.block)
            return found[1]


def _map(request: pb.ShareMemoryRequest) -> npt.NDArray[np.uint8] | None:
    """The client's block; None where it is not there: another machine, container or user, or no sealed memory."""
    if not IS_POSSIBLE or not HEADER_BYTES < request.bytes <= BLOCK_BYTES:
        return None
    path = f"/proc/{int(request.process)}/fd/{int(request.descriptor)}"
    with contextlib.ExitStack() as stack:
        try:
            # O_NONBLOCK: the descriptor may be anything, a pipe say, until it is known to be sealed memory.
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, file)
            found = os.fstat(file)
            sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_uid != os.geteuid()
                or found.st_size != request.bytes
                # Memory that could shrink would end this process at the next read.
                or not sealed & fcntl.F_SEAL_SHRINK
            ):
                return None
            memory = _memory_of(file, request.bytes)
        except OSError:
            return None
    return memory if int(memory[:8].view("<u8")[0]) == request.block else None


def _memory_of(file: int, size: int) -> npt.NDArray[np.uint8]:
    """(size,) uint8 of the file, mapped; `mmap.mmap` would hold a descriptor of it, and there are few of them.

    Raises: OSError."""
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address in (None, MAP_FAILED):
        raise OSError(ctypes.get_errno(), "could not map shared memory")
    memory = (ctypes.c_uint8 * size).from_address(address)
    # With the last array over it, and not while the process ends: a thread may still be at it.
    weakref.finalize(memory, libc.munmap, address, size).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.munmap.restype = ctypes.c_void_p, ctypes.c_int
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _is_alive(process: int) -> bool:
    return os.path.exists(f"/proc/{process}")
