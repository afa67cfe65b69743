"""CallWatch: ends calls that a peer which takes no bytes holds past their time."""

from __future__ import annotations

import itertools
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from ipaddress import IPv6Address, ip_address


class CallWatch:
    """Ends calls that wait in their own thread past their time.

    gRPC ends such a call at its deadline only once the connection took the message, and neither a cancellation nor a
    closed channel changes that. So the connection is shut: the call fails, as do others of this process to the same
    peer, and all are tried again.
    Thread safety: any thread. Its own starts with the first call, sleeps until the first deadline there is, and ends
    with `close`.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._changed = threading.Condition(threading.Lock())
        self._calls: dict[int, tuple[float, str]] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")
        self._is_closed = False

    def begin(self, address: str, seconds: float) -> int:
        """The number of a call to `address` that has so many seconds."""
        until = time.monotonic() + seconds
        number = next(self._numbers)
        self._calls[number] = (until, address)
        if self._thread is None or until < self._wakes_at:
            self._wake(until)
        return number

    def end(self, number: int) -> None:
        """The call has ended."""
        self._calls.pop(number, None)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _wake(self, until: float) -> None:
        with self._changed:
            self._wakes_at = min(self._wakes_at, until)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._watch, name="call watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            late = set()
            with self._changed:
                if self._is_closed:
                    return
                now = time.monotonic()
                # Set before the calls are looked at: one that begins meanwhile wakes this thread, or is seen.
                self._wakes_at = float("inf")
                for number, (until, address) in list(self._calls.items()):
                    if until <= now:
                        late.add(address)
                        self._calls.pop(number, None)
                    else:
                        self._wakes_at = min(self._wakes_at, until)
                if not late:
                    self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
            for address in late:
                shut_connections(address)


def shut_connections(address: str) -> int:
    """How many connections of this process to the address (`host:port`, `unix:/path`) were shut, both ways."""
    peers, shut = _peers(address), 0
    for entry in os.listdir("/dev/fd"):
        with suppress(OSError):
            # Other files are not copied: to close the copy would give up the process's POSIX locks of them.
            if not stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                continue
            # A copy, as the descriptor may be closed, and its number given to another file, at any time. Whatever it is
            # of: AF_UNIX only makes room for the longest names.
            with socket.fromfd(int(entry), socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                if _place(connection.getpeername()) in peers:
                    connection.shutdown(socket.SHUT_RDWR)
                    shut += 1
    return shut


def _peers(address: str) -> set[object]:
    if address.startswith("unix:"):
        return {address[len("unix:") :]}
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {_place(entry[4]) for entry in found}


def _place(name: object) -> object:
    """A socket's name, the same for an IPv4 peer of an IPv6 socket."""
    if not isinstance(name, tuple):
        return name
    host = ip_address(str(name[0]).partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return mapped or host, name[1]
