"""Calls to several shards at once, and their order where the caller is interrupted."""

import gc
import signal
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from embershard.ps_server import shard_calls
from embershard.ps_server.lane import Lane
from embershard.ps_server.shard_calls import ShardCalls


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("following", [1, 2])
def test_no_call_is_made_beside_one_that_was_left_on_its_way_by_a_second_interruption(monkeypatch, following):
    calls = ShardCalls(SimpleNamespace(map=SimpleNamespace(shards=2)))
    going, order = threading.Event(), []

    def slow():
        assert going.wait(30)
        order.append("old")

    with monkeypatch.context() as patch:
        patch.setattr(shard_calls, "wait", lambda futures: interrupted() if futures else None)
        with pytest.raises(KeyboardInterrupt):
            calls.side_by_side([interrupted, slow])
    assert order == []
    threading.Timer(0.1, going.set).start()
    calls.side_by_side([lambda: order.append("new")] * following)
    assert order == ["old"] + ["new"] * following


def test_replies_are_not_kept_after_they_are_given():
    calls = ShardCalls(SimpleNamespace(map=SimpleNamespace(shards=2)))
    replies = [weakref.ref(reply) for reply in calls.side_by_side([lambda: np.zeros(9), lambda: np.ones(9)])]
    for _ in range(100):  # the pool's thread may still hold its own for a moment
        gc.collect()
        if not any(reply() is not None for reply in replies):
            return
        time.sleep(0.01)
    pytest.fail("replies of the last call are held until the next one")


def test_a_caller_that_is_interrupted_while_it_waits_for_its_turn_holds_up_nobody():
    lane, inside, leave = Lane(), threading.Event(), threading.Event()

    def hold():
        with lane:
            inside.set()
            assert leave.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(30)
    before = signal.signal(signal.SIGALRM, lambda *_: interrupted())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt), lane:
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    leave.set()
    holder.join(30)
    passed = threading.Event()

    def enter():
        with lane:
            passed.set()

    threading.Thread(target=enter, daemon=True).start()
    assert passed.wait(5), "the lane waits for a caller that is gone"


def test_a_turn_that_came_with_the_interruption_is_handed_on():
    class HandedOver:
        """A lock that is handed over in the very moment in which its owner is interrupted."""

        def __init__(self, lane):
            self.lane = lane

        def acquire(self):
            if self.lane._waiting:
                with self.lane._guard:
                    self.lane._hand_over()
                interrupted()

        def release(self):
            pass

    lane = Lane()
    with pytest.MonkeyPatch.context() as patch:
        lane._busy = True
        made = HandedOver(lane)
        patch.setattr("embershard.ps_server.lane.threading", SimpleNamespace(Lock=lambda: made))
        with pytest.raises(KeyboardInterrupt), lane:
            pass
    assert not lane._busy
    begin = time.monotonic()
    with lane:
        assert time.monotonic() - begin < 5
