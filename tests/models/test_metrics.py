"""Metrics: exact, against torchmetrics and plain statements."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc

from embershard.models.metrics import auc, logloss, measure


@given(st.integers(0, 2**32 - 1), st.integers(2, 200), st.integers(1, 30))
def test_auc_equals_torchmetrics_with_ties(seed: int, count: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores = (rng.integers(0, levels, count) / levels).astype(np.float32)
    labels = rng.integers(0, 2, count).astype(np.float32)
    labels[:2] = [0, 1]
    want = binary_auroc(torch.from_numpy(scores), torch.from_numpy(labels).long(), thresholds=None)
    found, note = auc(scores, labels)
    assert note is None
    assert found == pytest.approx(float(want), abs=1e-6)


def test_auc_counts_every_pair() -> None:
    scores = np.float32([0.1, 0.4, 0.35, 0.8])
    assert auc(scores, np.float32([0, 0, 1, 1]))[0] == 0.75
    assert auc(np.zeros(4, np.float32), np.float32([0, 0, 1, 1]))[0] == 0.5
    assert auc(-scores, np.float32([0, 0, 1, 1]))[0] == 0.25


def test_weight_counts_as_copies_and_soft_label_as_both() -> None:
    scores, labels = np.float32([0.2, 0.5, 0.7]), np.float32([0, 1, 0])
    repeated = np.repeat(np.arange(3), [1, 2, 3])
    weighted, _ = auc(scores, labels, np.float32([1, 2, 3]))
    assert weighted == pytest.approx(auc(scores[repeated], labels[repeated])[0])
    soft, _ = auc(np.float32([0.1, 0.9]), np.float32([0.5, 1]))
    assert soft == pytest.approx((0.5 * 0.5 + 1.0) / 1.5 * 0.5 / 0.5) or soft == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("labels", "note"), [([1, 1], "all labels are 1: AUC needs both classes"), ([0, 0], "all labels are 0: AUC needs")]
)
def test_b70_one_class_gives_nan_and_says_so(labels: list[float], note: str) -> None:
    metrics = measure(np.float32([0.1, 0.2]), np.float32(labels))
    assert math.isnan(metrics.auc)
    assert metrics.note is not None
    assert metrics.note.startswith(note)
    assert math.isfinite(metrics.logloss)


def test_b70_no_examples_and_scores_that_are_not_finite() -> None:
    empty = measure(np.empty(0, np.float32), np.empty(0, np.float32))
    assert math.isnan(empty.auc)
    assert empty.note == "no examples"
    found, note = auc(np.float32([0.1, np.nan, 0.3]), np.float32([0, 1, 1]))
    assert math.isnan(found)
    assert note == "1 scores are not finite"


def test_logloss_of_large_logits_does_not_overflow() -> None:
    assert logloss(np.float32([1000, -1000]), np.float32([1, 0])) == 0
    assert logloss(np.float32([1000, -1000]), np.float32([0, 1])) == 1000
    logits, labels = np.float32([0.3, -1.2, 2.0]), np.float32([1, 0, 0.5])
    want = torch.nn.functional.binary_cross_entropy_with_logits(torch.from_numpy(logits), torch.from_numpy(labels))
    assert logloss(logits, labels) == pytest.approx(float(want), rel=1e-6)
    assert logloss(logits, labels, np.float32([0, 1, 0])) == pytest.approx(np.log1p(np.exp(-1.2)))


def test_weights_that_are_all_zero_give_nan_and_a_note() -> None:
    found = measure(np.array([0.5, -1], np.float32), np.array([0, 1], np.float32), np.zeros(2, np.float32))
    assert np.isnan(found.auc)
    assert np.isnan(found.logloss)
    assert (found.examples, found.note) == (2, "all examples weigh 0")
