"""Gradient guard: what it keeps back, what it scales, what it says."""

import logging
import os
import platform
from dataclasses import replace

import numpy as np
import pytest

from embershard.embedding.store import Push, PushReport, PushToken
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.gradient_guard import GradientGuard, GuardOptions
from embershard.ps_server.gradient_norms import GradientNorms
from embershard.ps_server.wire import NormSummary

WIDTHS = {"a": 2, "b": 1}
KEYS = TableKeys.concat({"a": np.array([1, 2, 3], np.uint64), "b": np.array([4, 5], np.uint64)})


def push(a, b):
    gradients = np.concatenate([np.ravel(a), np.ravel(b)]).astype(np.float32)
    return Push(PushToken(1, 1, 1), KEYS, gradients, np.arange(5, dtype=np.uint32), 1, 1, 0)


def test_sound_push_passes_untouched():
    sound = push([[3, 4]] * 3, [1, 1])
    guarded = GradientGuard(GuardOptions()).inspect(sound, WIDTHS)
    assert guarded.push is sound
    assert guarded.norms == {"a": 5.0, "b": 1.0}


def test_rows_that_are_not_finite_are_left_out_with_their_counts():
    unfit = replace(
        push([[1, 1], [np.nan, 1], [2, 2]], [np.inf, 7]), clicks=np.array([0, 1, 1, 2, 3], np.uint32), prepared=KEYS
    )
    guarded = GradientGuard(GuardOptions()).inspect(unfit, WIDTHS)
    assert guarded.push.keys.keys.tolist() == [1, 3, 5]
    assert guarded.push.keys.splits.tolist() == [0, 2, 3]
    assert guarded.push.gradients.tolist() == [1, 1, 2, 2, 7]
    assert guarded.push.occurrences.tolist() == [0, 2, 4]
    assert guarded.push.clicks.tolist() == [0, 1, 3]
    assert guarded.push.prepared is None
    assert guarded.held_out == {"a": 1, "b": 1}


def test_rows_that_are_held_out_are_named_with_worker_push_and_keys(caplog):
    caplog.set_level(logging.WARNING)
    guarded = GradientGuard(GuardOptions()).inspect(push([[1, 1], [np.nan, 1], [2, 2]], [np.inf, 7]), WIDTHS)
    assert guarded.add_to(PushReport()).non_finite_keys == {"a": (2,), "b": (4,)}
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"gradient guard: worker {platform.node()}:{os.getpid()}, table 'a', push (unit 0x1")
    assert first.endswith("1 rows are not finite; held out: keys 2")
    assert "table 'b'" in second


def test_gradients_whose_square_overflows_are_finite_all_the_same():
    guarded = GradientGuard(GuardOptions()).inspect(push([[1e30, 0]] * 3, [1, 1]), WIDTHS)
    assert not guarded.held_out
    assert guarded.norms["a"] == pytest.approx(1e30)


def test_push_of_nothing_but_nan_keeps_no_key():
    guarded = GradientGuard(GuardOptions()).inspect(push([[np.nan, 1]] * 3, [np.nan] * 2), WIDTHS)
    assert len(guarded.push.keys.keys) == len(guarded.push.gradients) == 0
    assert guarded.held_out == {"a": 3, "b": 2}


@pytest.mark.parametrize("action", ["hold_out", "clip"])
def test_table_far_beyond_the_running_norm(action, caplog):
    guard = GradientGuard(GuardOptions(max_ratio=10, action=action, min_pushes=5))
    wild = push([[30, 40]] * 3, [1, 1])
    guard.learn({"a": NormSummary(1.0, 0.1, 4)})
    assert guard.inspect(wild, WIDTHS).push is wild, "the mean of four pushes is not trusted yet"
    guard.learn({"a": NormSummary(1.0, 0.1, 5)})
    with caplog.at_level(logging.WARNING):
        guarded = guard.inspect(wild, WIDTHS)
    assert "table 'a', push (unit 0x1, lease 0x1, batch 1): gradient norm 50 is 50 times" in caplog.text
    assert "times the mean 1 of 5 pushes (this worker's last: 50, 50)" in caplog.text
    assert "a" not in guarded.norms, "what is kept back must not move the mean"
    if action == "hold_out":
        assert guarded.push.keys.keys.tolist() == [4, 5]
        assert guarded.held_out == {"a": 3}
    else:
        assert guarded.push.gradients.tolist() == pytest.approx([6, 8] * 3 + [1, 1])
        assert guarded.clipped == ("a",)


def test_norms_weigh_early_pushes_alike_and_forget_old_ones():
    norms = GradientNorms()
    for value in (1.0, 3.0):
        norms.add({"a": value, "b": float("nan")})
    assert norms.all()["a"] == NormSummary(2.0, 1.0, 2)
    assert "b" not in norms.all()
    for _ in range(2000):
        norms.add({"a": 5.0})
    assert norms.summaries(["a", "nobody"])["a"].mean == pytest.approx(5.0)
