"""The show/click score: which occurrences count as clicks, which rows it lets go, and what keeps the counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.policies import bytes_per_row
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.table_config import Capacity, ColumnBlock, MinCount, Score, Sgd, TableConfig, Zeros
from embershard.embedding.table_group import TableGroup, TableKeys, TableRows, TableUpdate, UpdateStep

from .table_samples import assert_same_rows

MOST = 2**32 - 1
SCORE = Score(min_score=4.0, half_life_seconds=100, show_weight=0.5, click_weight=3.0)
SHOWS = Score(min_score=4.0, half_life_seconds=100, show_weight=0.5)

GroupMaker = Callable[..., TableGroup]


@pytest.fixture(params=[NativeTableGroup, ReferenceTableGroup], ids=["native", "reference"])
def scored(request: pytest.FixtureRequest) -> GroupMaker:
    """Maker of a group with table `ad`: scored(eviction, …)."""

    def make(*eviction: object, name: str = "ad", tablet_bits: int = 0, **fields: object) -> TableGroup:
        group: TableGroup = request.param(tablet_bits)
        block = ColumnBlock(dim=2, optimizer=Sgd(lr=1), initializer=Zeros())
        group.ensure_table(TableConfig(name=name, blocks=(block,), eviction=eviction or (SCORE,), **fields))
        return group

    return make


def push(group: TableGroup, keys: list[int], seen: list[int], clicked: list[int] | None, now: int = 0) -> TableUpdate:
    request = TableKeys.of(group.tables()[0].name, keys)
    clicks = None if clicked is None else np.array(clicked, np.uint32)
    gradients = np.ones(2 * len(keys), np.float32)
    report = group.apply_gradients(request, gradients, np.array(seen, np.uint32), UpdateStep(now=now), None, clicks)
    return report.tables[request.tables[0]]


def rows_of(group: TableGroup) -> TableRows:
    return group.snapshot(0).tables[group.tables()[0].name]


def test_clicks_of_pushes_add_up_beside_the_count_and_saturate(scored: GroupMaker) -> None:
    group = scored()
    push(group, [7, 3], [4, 2], [1, 2])
    push(group, [3, 7], [5, 5], [0, 3])
    assert rows_of(group).keys.tolist() == [3, 7]
    assert rows_of(group).count.tolist() == [7, 9]
    assert rows_of(group).clicks.tolist() == [2, 4]
    push(group, [7], [MOST], [MOST - 3])
    assert rows_of(group).clicks.tolist() == [2, MOST]


def test_a_push_without_clicks_counts_shows_alone(scored: GroupMaker) -> None:
    group = scored()
    push(group, [7], [3], [2])
    push(group, [7], [3], None)
    assert (rows_of(group).count.tolist(), rows_of(group).clicks.tolist()) == ([6], [2])


def test_rows_leave_below_the_score_of_their_shows_and_clicks(scored: GroupMaker) -> None:
    """4 = min_score = ½ · 8 shows = 3 · 1 click + ½ · 2 shows."""
    group = scored()
    push(group, [1, 2, 3, 4], [8, 7, 3, 2], [0, 0, 1, 1], now=50)
    assert group.expired(50).keys.tolist() == [2, 4]
    assert group.evict(50) == {"ad": 2}
    assert rows_of(group).keys.tolist() == [1, 3]


def test_a_score_is_halved_by_each_half_life_without_a_touch(scored: GroupMaker) -> None:
    group = scored()
    push(group, [1, 2], [2, 16], [2, 0], now=0)  # scores 6 and 8
    assert group.expired(57).keys.tolist() == []
    assert group.expired(59).keys.tolist() == [1]  # 6 · 2^(−0.585) = 4
    assert group.expired(100).keys.tolist() == [1]
    assert group.expired(101).keys.tolist() == [1, 2]
    push(group, [1], [1], [0], now=90)
    assert group.expired(101).keys.tolist() == [2]


def test_without_a_click_weight_no_clicks_are_kept_and_scores_are_those_of_shows(scored: GroupMaker) -> None:
    group = scored(SHOWS)
    push(group, [1, 2], [8, 7], [8, 7])
    assert rows_of(group).clicks.tolist() == []
    assert group.expired(0).keys.tolist() == [2]


def test_only_a_table_that_keeps_clicks_pays_for_them(scored: GroupMaker) -> None:
    counted, plain = scored(SCORE), scored(SHOWS)
    for group in (counted, plain):
        push(group, [1, 2, 3], [1, 1, 1], [1, 0, 0])
    more = counted.stats()["ad"].bytes_by_part["counters"] - plain.stats()["ad"].bytes_by_part["counters"]
    assert more == 3 * 4
    assert counted.stats()["ad"].bytes_by_part["state"] == plain.stats()["ad"].bytes_by_part["state"]
    assert bytes_per_row(counted.tables()[0]) > bytes_per_row(plain.tables()[0])


def test_clicks_go_to_their_rows_past_refused_and_held_back_keys(scored: GroupMaker) -> None:
    """40 keys are several blocks of the native push; some gradients are refused, some keys not admitted."""
    group = scored(SCORE, Capacity(capacity_rows=1000), admission=MinCount(count=3), tablet_bits=2)
    rng = np.random.default_rng(8)
    keys = rng.permutation(np.arange(1, 41, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    old = keys[::4]
    request = TableKeys.of("ad", old)
    group.apply_gradients(request, np.ones(20, np.float32), np.full(10, 3, np.uint32), UpdateStep())
    seen = rng.integers(1, 9, 40).astype(np.uint32)
    clicked = rng.integers(0, seen + np.uint32(1)).astype(np.uint32)
    gradients = np.ones((40, 2), np.float32)
    refused = rng.random(40) < 0.3
    gradients[refused, 1] = np.nan
    group.apply_gradients(TableKeys.of("ad", keys), gradients.ravel(), seen, UpdateStep(), None, clicked)
    kept = {}
    for tablet in range(4):
        rows = group.snapshot(tablet).tables["ad"]
        kept.update(zip(rows.keys.tolist(), rows.clicks.tolist(), strict=True))
    has_row = np.isin(keys, old) | (~refused & (seen >= 3))
    assert refused[has_row].sum() > 0
    assert (~has_row).sum() > 0
    counted = np.where(refused, 0, clicked)
    assert kept == dict(zip(keys[has_row].tolist(), counted[has_row].tolist(), strict=True))


def test_masked_tablets_count_no_clicks(scored: GroupMaker) -> None:
    group = scored(tablet_bits=1)
    keys = np.array([1, 2**63 + 1, 2, 2**63 + 2], np.uint64)
    ones, mask = np.ones(4, np.uint32), np.array([False, True])
    clicks = np.array([1, 0, 1, 1], np.uint32)
    group.apply_gradients(TableKeys.of("ad", keys), np.ones(8, np.float32), ones, UpdateStep(), mask, clicks)
    assert rows_of(group).keys.tolist() == []
    assert group.snapshot(1).tables["ad"].clicks.tolist() == [0, 1]


def test_occurrences_before_admission_count_as_shows(scored: GroupMaker) -> None:
    group = scored(admission=MinCount(count=3))
    push(group, [5], [2], [2])
    push(group, [5], [4], [1])
    assert (rows_of(group).count.tolist(), rows_of(group).clicks.tolist()) == ([6], [1])


def test_a_key_in_a_freed_row_starts_without_clicks(scored: GroupMaker) -> None:
    group = scored()
    push(group, [5], [4], [4])
    group.erase(TableKeys.of("ad", [5]))
    push(group, [6], [4], None)
    assert (rows_of(group).keys.tolist(), rows_of(group).clicks.tolist()) == ([6], [0])
    assert group.assign(TableKeys.of("ad", [8]), np.ones(2, np.float32)) == 1
    assert rows_of(group).clicks.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("clicks", "message"),
    [
        (np.array([1, 3], np.uint32), "got 3 of 2"),
        (np.array([1], np.uint32), r"expected clicks \(2,\) uint32, got \(1,\)"),
        (np.array([1, 1], np.int64), "got .* int64"),
    ],
)
def test_clicks_that_do_not_fit_are_refused_and_nothing_changes(
    scored: GroupMaker, clicks: np.ndarray, message: str
) -> None:
    group, seen = scored(), np.array([2, 2], np.uint32)
    with pytest.raises(ValueError, match=message):
        group.apply_gradients(TableKeys.of("ad", [1, 2]), np.ones(4, np.float32), seen, UpdateStep(), None, clicks)
    assert group.stats()["ad"].rows == 0
    assert not group.push_counts().any()


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_clicks_survive_a_restart_and_a_delta(scored: GroupMaker) -> None:
    group, again = scored(), scored()
    push(group, [1, 2, 3], [3, 3, 3], [1, 2, 3])
    base = group.snapshot(0)
    again.import_tablet(base)
    assert_same_rows(group, again)
    group.cut(0)
    push(group, [3, 4], [2, 2], [2, 1])
    delta = group.snapshot(0, base.version)
    assert delta.tables["ad"].clicks.tolist() == [5, 1]
    again.import_tablet(delta)
    assert_same_rows(group, again)
    assert rows_of(again).clicks.tolist() == [1, 2, 5, 1]


def test_rows_saved_without_clicks_start_to_count_them(scored: GroupMaker) -> None:
    before, after = scored(SHOWS), scored(SCORE)
    push(before, [1, 2], [9, 9], [5, 6])
    push(after, [2], [1], [1])
    after.import_tablet(before.snapshot(0))
    assert (rows_of(after).count.tolist(), rows_of(after).clicks.tolist()) == ([9, 9], [0, 0])
    push(after, [2], [1], [1])
    assert rows_of(after).clicks.tolist() == [0, 1]


def test_a_table_that_keeps_no_clicks_lets_those_of_a_snapshot_go(scored: GroupMaker) -> None:
    before, after = scored(SCORE), scored(SHOWS)
    push(before, [1, 2], [9, 9], [5, 6])
    after.import_tablet(before.snapshot(0))
    assert (rows_of(after).count.tolist(), rows_of(after).clicks.tolist()) == ([9, 9], [])


def test_a_snapshot_with_clicks_of_some_rows_is_refused(scored: GroupMaker) -> None:
    group, again = scored(), scored()
    push(group, [1, 2], [9, 9], [5, 6])
    snapshot = group.snapshot(0)
    rows = replace(snapshot.tables["ad"], clicks=np.array([5], np.uint32))
    with pytest.raises(ValueError, match="expected clicks of 2 rows or none, got 1"):
        again.import_tablet(replace(snapshot, tables={"ad": rows}))
    assert again.stats()["ad"].rows == 0
