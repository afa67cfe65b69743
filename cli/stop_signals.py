"""Signals that ask a command to end: it stops where it is, cleans up and says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class StoppedError(BaseException):
    """The command was asked to end by a signal. No `Exception`: nothing on the way may take it for a failure."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__("interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}")

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as the shell has it."""
        return 128 + self.number


_asked: list[StoppedError] = []


def why_stop() -> str | None:
    """The signal that asked the command to end, once there was one; for what waits in other threads."""
    return str(_asked[0]) if _asked else None


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise `StoppedError` in the main thread, once: what cleans up is not stopped by
    another SIGTERM, only by a second Ctrl-C.

    A signal that is ignored (nohup) or handled by others stays so, and in another thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number in SIGNALS if before[number] in _DEFAULTS]

    def stop(number: int, _frame: object) -> None:
        _asked.append(StoppedError(number))
        for each in ours:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_IGN)
        raise _asked[0]

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        _asked.clear()
        for number in ours:
            signal.signal(number, before[number])
