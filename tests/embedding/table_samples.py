"""Tables and helpers that the table group's tests share."""

from __future__ import annotations

import numpy as np

from embershard.embedding.table_config import (
    Adagrad,
    Adam,
    AdamW,
    Capacity,
    ColumnBlock,
    Ftrl,
    MinCount,
    MinL2,
    Momentum,
    Normal,
    Optimizer,
    Probability,
    Rmsprop,
    RowwiseAdagrad,
    RowwiseAdam,
    Score,
    Sgd,
    TableConfig,
    TruncatedNormal,
    Ttl,
    Zeros,
)
from embershard.embedding.table_group import TableGroup, TableRows

DECAY = {"weight_decay": 0.03, "weight_decay_mode": "decoupled", "catch_up": True}
L2 = {"weight_decay": 0.03, "weight_decay_mode": "l2"}

OPTIMIZERS: tuple[Optimizer, ...] = (
    Sgd(),
    Sgd(**DECAY, clip_value=0.5, clip_norm=0.8, max_norm=1.5, gradient="sum"),
    Momentum(),
    Momentum(nesterov=True, **L2),
    Adagrad(),
    Adagrad(initial_accumulator=0.1, eps=0.0, **L2, catch_up=True),
    RowwiseAdagrad(),
    RowwiseAdagrad(clip_norm=0.5, **DECAY),
    Adam(),
    Adam(bias_correction="request", eps=0.0, max_norm=0.7),
    AdamW(),
    RowwiseAdam(),
    RowwiseAdam(bias_correction="request", **L2),
    Rmsprop(),
    Ftrl(),
    Ftrl(l1=0.02, l2=0.1, beta=0.5, gradient="mean", max_norm=0.5),
    Ftrl(**DECAY, clip_value=0.3),
)
"""Every optimizer, plain and with decay, clipping and limits."""


def two_blocks(name: str, **fields: object) -> TableConfig:
    """A table with an FTRL column and an Adam block of odd width."""
    blocks = (
        ColumnBlock(name="linear", dim=1, optimizer=Ftrl(), initializer=Zeros()),
        ColumnBlock(name="factors", dim=5, optimizer=Adam(), initializer=Normal(std=0.1)),
    )
    return TableConfig(name=name, blocks=blocks, **fields)


POLICY_TABLES = (
    two_blocks("plain"),
    two_blocks("counted", admission=MinCount(count=4, counter_capacity=24), unseen="unknown_row"),
    two_blocks("thrown", admission=Probability(p=0.3), eviction=(Ttl(ttl_seconds=40),)),
    two_blocks("recent", eviction=(Capacity(capacity_rows=50), MinL2(min_l2=0.1))),
    two_blocks("frequent", eviction=(Capacity(capacity_rows=37, order="lfu"),), admission=MinCount(count=2)),
    two_blocks("scored", eviction=(Score(min_score=1.5, half_life_seconds=30),), dtype="bfloat16"),
    two_blocks(
        "clicked",
        eviction=(
            Score(min_score=2.0, half_life_seconds=25, show_weight=0.4, click_weight=1.5),
            Capacity(capacity_rows=70),
        ),
        admission=MinCount(count=2),
    ),
    two_blocks("limited", memory_limit_bytes=9000, dtype="float16", admission=Probability(p=0.5), unseen="unknown_row"),
    two_blocks("frozen", trainable=False),
    TableConfig(name="half", dtype="float16", blocks=(ColumnBlock(dim=9, initializer=TruncatedNormal(std=1e-6)),)),
)
"""Tables whose policies and row types all differ."""


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have one dtype, shape and content, bit for bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return np.array_equal(np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8))


def assert_same_rows(a: TableGroup, b: TableGroup) -> None:
    """Every tablet's snapshot is the same, bit for bit."""
    for tablet in range(1 << a.tablet_bits):
        left, right = a.snapshot(tablet), b.snapshot(tablet)
        facts = [(s.version, s.push_count, s.since_version, s.erased_since, list(s.tables)) for s in (left, right)]
        assert facts[0] == facts[1], tablet
        for name, rows in left.tables.items():
            for field in TableRows.__slots__:
                mine, other = getattr(rows, field), getattr(right.tables[name], field)
                assert same_bits(mine, other), (tablet, name, field, mine, other)
