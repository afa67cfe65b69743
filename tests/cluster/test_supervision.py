"""Decisions about dead processes."""

from __future__ import annotations

import pytest

from embershard.cluster.supervision import Backoff, Supervision


def test_all_roles_are_due_at_first_and_none_once_started() -> None:
    supervision = Supervision(["a", "b"])
    assert supervision.due(0.0) == ["a", "b"]
    supervision.on_start("a", 11, 0.0)
    assert supervision.due(0.0) == ["b"]
    supervision.on_start("b", 12, 0.0)
    assert supervision.due(1e9) == []
    assert supervision.seconds_to_next(5.0) is None


def test_restarts_back_off_and_a_healthy_life_starts_anew() -> None:
    supervision = Supervision(["a"], Backoff(first_seconds=1, factor=2, most_seconds=5, healthy_seconds=30))
    now, waits = 0.0, []
    for pid in range(5):
        supervision.on_start("a", pid, now)
        assert supervision.on_exit(pid, -9, now) == "a"
        wait = supervision.seconds_to_next(now)
        assert wait is not None
        waits.append(wait)
        assert supervision.due(now + wait - 0.01) == []
        now += wait
        assert supervision.due(now) == ["a"]
    assert waits == [1, 2, 4, 5, 5]
    supervision.on_start("a", 99, now)
    supervision.on_exit(99, 1, now + 31)
    assert supervision.seconds_to_next(now + 31) == pytest.approx(1)
    (role,) = supervision.roles
    assert (role.restarts, role.last_exit, role.pid) == (5, 1, None)


def test_exit_of_a_stranger_changes_nothing() -> None:
    supervision = Supervision(["a"])
    supervision.on_start("a", 11, 0.0)
    assert supervision.on_exit(12, 0, 1.0) is None
    assert supervision.roles[0].pid == 11


def test_after_stop_nothing_is_due_and_it_is_done_when_all_have_ended() -> None:
    supervision = Supervision(["a", "b", "c"])
    supervision.on_start("a", 11, 0.0)
    supervision.on_start("b", 12, 0.0)
    assert supervision.stop() == [11, 12]
    assert supervision.due(1e9) == []
    supervision.on_exit(11, 0, 1.0)
    assert not supervision.is_done
    supervision.on_exit(12, -15, 1.0)
    assert supervision.is_done
    assert supervision.due(1e9) == []
