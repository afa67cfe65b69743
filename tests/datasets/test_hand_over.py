"""The background thread: order, back-pressure, errors, and that it ends."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from embershard.datasets.batch_stream import BatchStream, EncodePool, Placed, ReadPosition
from embershard.datasets.hand_over import HandOver


def wait_until(condition: object, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)


class Source:
    """Counts what was taken from it and whether it was closed, and by which thread."""

    def __init__(self, items: int, error: BaseException | None = None) -> None:
        self.items, self.error = items, error
        self.taken, self.closed_by = 0, ""

    def __call__(self) -> Iterator[int]:
        try:
            for item in range(self.items):
                self.taken += 1
                yield item
            if self.error is not None:
                raise self.error
        finally:
            self.closed_by = threading.current_thread().name


def test_items_come_in_order_and_the_thread_ends_with_them() -> None:
    source = Source(1_000)
    before = threading.active_count()
    assert list(HandOver(source, 3, name="reader")) == list(range(1_000))
    assert threading.active_count() == before
    assert source.closed_by == "reader"


def test_no_more_than_depth_items_wait() -> None:
    source = Source(100)
    ahead = HandOver(source, 3, name="reader")
    wait_until(lambda: source.taken == 4)  # three wait, the fourth is in the thread's hand
    time.sleep(0.02)
    assert source.taken == 4
    assert next(ahead) == 0
    wait_until(lambda: source.taken == 5)
    ahead.close()
    assert source.closed_by == "reader"
    ahead.close()


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), MemoryError()])
def test_an_error_comes_after_the_items_before_it(error: BaseException) -> None:
    before = threading.active_count()
    ahead = HandOver(Source(2, error), 5, name="reader")
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(type(error)):
        next(ahead)
    assert threading.active_count() == before


def test_dropping_the_iterator_ends_the_thread() -> None:
    source = Source(100)
    before = threading.active_count()
    ahead = HandOver(source, 2, name="reader")
    next(ahead)
    del ahead
    gc.collect()
    wait_until(lambda: threading.active_count() == before)
    assert source.closed_by == "reader"


def test_an_interpreter_that_ends_in_the_middle_of_a_stream_ends() -> None:
    program = (
        "import itertools\n"
        "from embershard.datasets.hand_over import HandOver\n"
        "ahead = HandOver(lambda: itertools.count(), 2, name='reader')\n"
        "print(next(ahead), next(ahead))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n", "")


def test_encoding_threads_keep_the_order_and_give_the_error_in_its_place() -> None:
    def encode(item: int) -> Placed[int]:
        time.sleep(0.002 * (item % 3 == 0))
        if item == 20:
            raise ValueError("twenty")
        return Placed(item * item, ReadPosition(0, 0, item + 1))

    before = threading.active_count()
    stream = BatchStream(EncodePool(lambda: iter(range(40)), encode, 4), ReadPosition(0), 2)
    batches = iter(stream)
    assert list(itertools.islice(batches, 20)) == [item * item for item in range(20)]
    with pytest.raises(ValueError, match="twenty"):
        next(batches)
    assert stream.position == ReadPosition(0, 0, 20)
    assert threading.active_count() == before


def test_encoding_threads_do_not_run_ahead_of_the_consumer() -> None:
    source = Source(1_000)
    stream = BatchStream(
        EncodePool(source, lambda item: Placed(item, ReadPosition(0, 0, item + 1)), 3), ReadPosition(0), 2
    )
    batches = iter(stream)
    assert next(batches) == 0
    time.sleep(0.05)
    assert source.taken <= 1 + 2 + 1 + 4
    batches.close()  # type: ignore[attr-defined]
