"""Doorbell: two pipes beside a block of shared memory, by which its exchanges are called and answered without a socket.

Request and reply lie in the block; the pipes carry 16-byte words that say where, so that no write ever waits. Each side
sees when the other is gone, as the pipe then has no other end. A request goes before its arrays are written, so that
the shard makes a start meanwhile; further words say that pieces of them are there.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from . import parameter_server_pb2 as pb

_WORD = struct.Struct("<QII")
_CALL = 256
ALIGNMENT = 64
REPLY_ROOM = 4 << 20
"""Behind the request, for the reply's message; its rows have room elsewhere."""
LONGEST_POLL = 1 << 30
Memory = npt.NDArray[np.uint8]


_client_bells: weakref.WeakSet[ClientBell] = weakref.WeakSet()


class Ending(IntEnum):
    """How a call ended: the bytes with it are a reply, a `Refusal`, or none (the server failed)."""

    REPLY = 0
    REFUSAL = 1
    FAILURE = 2


class Piece(IntEnum):
    """Of the arrays of a request, what may be written after it was sent; bits that may be added up."""

    KEYS = 1  # and all that is not gradients
    GRADIENTS = 2
    ALL = 3


class CallerGoneError(Exception):
    """The client, or the shard itself, ended before all of a request was there; nothing was done."""


class ClientBell:
    """The client's end.

    Thread safety: none; one call at a time. After a call that raised it is of no use: its answer may come yet.
    """

    def __init__(self) -> None:
        self._of_shard, self._ring = os.pipe()
        try:
            self._answer, self._from_shard = os.pipe()
        except OSError:
            os.close(self._of_shard)
            os.close(self._ring)
            raise
        self._open = [self._of_shard, self._ring, self._answer, self._from_shard]
        _client_bells.add(self)
        self._poll = select.poll()
        self._poll.register(self._answer, select.POLLIN)
        self.is_connected = False

    def invite(self, request: pb.ShareMemoryRequest) -> None:
        """Tell the shard which ends are its own."""
        request.ring, request.answer = self._of_shard, self._from_shard

    def connect(self) -> None:
        """The shard has opened its ends: let go of them here, or none would be missed when it is gone."""
        for file in (self._of_shard, self._from_shard):
            self._open.remove(file)
            os.close(file)
        self.is_connected = True

    def fits(self, memory: Memory, start: int, size: int) -> bool:
        """Whether a request of so many bytes, and its reply, have room in the memory from `start` on."""
        return self.is_connected and _end_of(start, size) + REPLY_ROOM <= len(memory)

    def call(
        self, memory: Memory, start: int, request: bytes, seconds: float, pieces: Mapping[Piece, Callable[[], None]]
    ) -> tuple[Ending, bytes]:
        """What the shard answers; the request is put to `memory` from `start` on, a multiple of 64.

        pieces: what writes the arrays, one piece after the other, while the shard begins.
        Raises: TimeoutError after `seconds`; ConnectionError where the shard is gone or answers nonsense."""
        until = time.monotonic() + seconds
        memory[start : start + len(request)] = np.frombuffer(request, np.uint8)
        os.write(self._ring, _WORD.pack(start, len(request), _CALL | sum(pieces)))
        for piece, write in pieces.items():
            write()
            os.write(self._ring, _WORD.pack(0, 0, piece))
        while not self._poll.poll(min(max(math.ceil(1000 * (until - time.monotonic())), 0), LONGEST_POLL)):
            if time.monotonic() >= until:
                raise TimeoutError(f"expected an answer in {seconds} s, got none")
        word = os.read(self._answer, _WORD.size)
        if len(word) != _WORD.size:
            raise ConnectionResetError("expected an answer, got the end of the pipe")
        _, size, ending = _WORD.unpack(word)
        if ending > max(Ending) or size > REPLY_ROOM:
            raise ConnectionResetError(f"expected an answer of at most {REPLY_ROOM} bytes, got {ending}, {size}")
        reply = _end_of(start, len(request))
        return Ending(ending), memory[reply : reply + size].tobytes()

    def close(self) -> None:
        """Let go of the pipes; the shard's end sees it."""
        while self._open:
            os.close(self._open.pop())


class Doorbells:
    """The doorbells of a shard's clients, each answered by a thread of its own.

    Thread safety: any thread.
    """

    def __init__(self, serve: Serve, most: int) -> None:
        """serve: how a request ended.   most: bells at once."""
        self._serve = serve
        self.most = most
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._stop: tuple[int, int] | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._threads)

    def add(self, request: pb.ShareMemoryRequest, memory: Memory, gone: Callable[[], object]) -> bool:
        """Whether the client's bell is answered from now on. gone: called when the client has let go of it."""
        if not (request.HasField("ring") and request.HasField("answer")):
            return False
        with self._lock, contextlib.ExitStack() as opened:
            if self._stopped or len(self._threads) >= self.most:
                return False
            try:
                ring = _open_pipe(request.process, request.ring, os.O_RDONLY, opened)
                answer = _open_pipe(request.process, request.answer, os.O_WRONLY, opened)
                if self._stop is None:
                    self._stop = os.pipe()
            except OSError:
                return False
            bell = ShardBell(ring, answer, self._stop[0], memory, self._serve)
            files = opened.pop_all()
            name = f"bell-{request.block:016x}"
            thread = threading.Thread(target=self._run, args=(bell, files, gone), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                files.close()
                return False
            self._threads.add(thread)
            return True

    def stop(self, seconds: float) -> None:
        """Answer no call more; those that run may end, for at most `seconds`."""
        until = time.monotonic() + seconds
        with self._lock:
            self._stopped = True
            threads, stop, self._stop = list(self._threads), self._stop, None
        if stop is None:
            return
        os.close(stop[1])
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        if not any(thread.is_alive() for thread in threads):
            os.close(stop[0])

    def _run(self, bell: ShardBell, files: contextlib.ExitStack, gone: Callable[[], object]) -> None:
        with files:
            bell.answer_calls()
        with self._lock:
            self._threads.discard(threading.current_thread())
        gone()


class ShardBell:
    """The shard's end of one bell.

    Thread safety: none; the thread that answers it.
    """

    def __init__(self, ring: int, answer: int, stop: int, memory: Memory, serve: Serve) -> None:
        self._ring, self._answer, self._stop = ring, answer, stop
        self._memory, self._serve = memory, serve
        self._poll = select.poll()
        self._poll.register(ring, select.POLLIN)
        self._poll.register(stop, 0)
        self.pending = 0
        """Sum of the pieces of the request that are not there yet."""

    def answer_calls(self) -> None:
        """Until the client is gone, or the pipe of `stop` is closed."""
        with contextlib.suppress(CallerGoneError, OSError):
            while True:
                self._answer_call(*self._read_word())

    def _answer_call(self, start: int, size: int, kind: int) -> None:
        reply = _end_of(start, size)
        if not _CALL <= kind <= _CALL | Piece.ALL or reply + REPLY_ROOM > len(self._memory):
            raise CallerGoneError(f"expected a call inside {len(self._memory)} bytes, got {kind}, {start}, {size}")
        self.pending = kind & Piece.ALL
        ending, data = self._serve(self._memory[start : start + size].tobytes(), self)
        if len(data) > REPLY_ROOM:
            ending, data = Ending.FAILURE, b""
        self.wait(Piece.ALL)  # for those of a request that was refused at once
        self._memory[reply : reply + len(data)] = np.frombuffer(data, np.uint8)
        os.write(self._answer, _WORD.pack(reply, len(data), ending))

    def wait(self, pieces: Piece) -> None:
        """Return when these pieces of the request are there. Raises: CallerGoneError."""
        while self.pending & pieces:
            self.pending &= ~self._read_word()[2]

    def _read_word(self) -> tuple[int, int, int]:
        if any(file == self._stop for file, _ in self._poll.poll()):
            raise CallerGoneError("the shard stops")
        word = os.read(self._ring, _WORD.size)
        if len(word) != _WORD.size:
            raise CallerGoneError("the client is gone")
        start, size, kind = _WORD.unpack(word)
        return start, size, kind


def _end_of(start: int, size: int) -> int:
    return -(-(start + size) // ALIGNMENT) * ALIGNMENT


def _open_pipe(process: int, descriptor: int, mode: int, opened: contextlib.ExitStack) -> int:
    # O_NONBLOCK: the descriptor may be anything until it is known to be a pipe; and no write waits for a client.
    file = os.open(f"/proc/{process}/fd/{descriptor}", mode | os.O_CLOEXEC | os.O_NONBLOCK)
    opened.callback(os.close, file)
    found = os.fstat(file)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"expected a pipe of this user at descriptor {descriptor}, got something else")
    return file


def _close_in_child() -> None:
    # A forked process makes no calls, but as long as its copies are open neither side would miss the other.
    for bell in list(_client_bells):
        bell.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)

Serve = Callable[[bytes, ShardBell], tuple[Ending, bytes]]
"""How a request ended, of whose arrays the bell may not have got all yet."""
