"""What optimizers, admission and eviction must do with rows in cases that are known to go wrong elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from embershard.embedding.batch_rows import Bags, Pooling, RowColumns, deduplicate, pooled_fields, sum_row_gradients
from embershard.embedding.initializers import initial_weights
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.policies import bytes_per_row
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.table_config import (
    Adagrad,
    Adam,
    Capacity,
    ColumnBlock,
    Initializer,
    MinCount,
    Normal,
    Optimizer,
    RowwiseAdagrad,
    Sgd,
    TableConfig,
    Ttl,
    Uniform,
    Zeros,
)
from embershard.embedding.table_group import TableGroup, TableKeys, TableRows, TableUpdate, UpdateStep

from .table_samples import OPTIMIZERS, assert_same_rows

GroupMaker = Callable[..., TableGroup]
DAY = 86_400


@pytest.fixture(params=["native", "reference"])
def make_group(request: pytest.FixtureRequest) -> GroupMaker:
    """Maker of an empty group: make_group(tablet_bits)."""
    return NativeTableGroup if request.param == "native" else ReferenceTableGroup


def table(optimizer: Optimizer, dim: int = 1, initializer: Initializer | None = None, **fields: object) -> TableConfig:
    block = ColumnBlock(dim=dim, optimizer=optimizer, initializer=initializer or Zeros())
    return TableConfig(name="user", blocks=(block,), **fields)


def group_of(make_group: GroupMaker, config: TableConfig, tablet_bits: int = 0) -> TableGroup:
    group = make_group(tablet_bits)
    group.ensure_table(config)
    return group


def push(group: TableGroup, keys: object, gradients: object, occurrences: int = 1, **step: object) -> TableUpdate:
    request = TableKeys.of("user", keys)
    flat = np.ascontiguousarray(gradients, np.float32).reshape(-1)
    counts = np.full(len(request.keys), occurrences, np.uint32)
    return group.apply_gradients(request, flat, counts, UpdateStep(**step)).tables["user"]


def read(group: TableGroup, keys: object, absent: str = "zeros") -> np.ndarray:
    request = TableKeys.of("user", keys)
    return group.lookup(request, absent).reshape(len(request.keys), -1)


def stored(group: TableGroup) -> TableRows:
    """All rows of a group of one tablet."""
    return group.snapshot(0).tables["user"]


def state_of(group: TableGroup, key: int) -> list[float]:
    rows = stored(group)
    return rows.state[rows.keys.tolist().index(key)].tolist()


def count_of(group: TableGroup, key: int) -> int:
    rows = stored(group)
    return int(rows.count[rows.keys.tolist().index(key)])


# --- optimizers -------------------------------------------------------------------------------------------------------


def test_b16_lazy_adam_leaves_untouched_rows_bit_for_bit(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Adam(lr=0.1), 3, Normal(std=1)))
    push(group, [1, 2], np.ones((2, 3)), step=1)
    before = stored(group)
    for step in range(2, 11):
        push(group, [2], np.ones((1, 3)), step=step)
    after = stored(group)
    assert np.array_equal(after.weights[0], before.weights[0])
    assert np.array_equal(after.state[0], before.state[0])
    assert not np.array_equal(after.weights[1], before.weights[1])


def test_b16_catch_up_decays_by_each_step_that_was_missed(make_group: GroupMaker) -> None:
    decayed = Sgd(lr=0.5, weight_decay=0.1, weight_decay_mode="decoupled", catch_up=True)
    group = group_of(make_group, table(decayed))
    group.assign(TableKeys.of("user", [1]), np.ones(1, np.float32))
    push(group, [1], [0.0], step=1)
    assert read(group, [1]).item() == pytest.approx(0.95, rel=1e-6)
    push(group, [1], [0.0], step=10)
    assert read(group, [1]).item() == pytest.approx(0.95**10, rel=1e-6)


@pytest.mark.parametrize(("correction", "steps"), [("row", 1), ("request", 10)])
def test_b16_bias_correction_counts_the_steps_it_says(make_group: GroupMaker, correction: str, steps: int) -> None:
    group = group_of(make_group, table(Adam(lr=0.1, bias_correction=correction)))
    for step in range(1, 10):
        push(group, [1], [1.0], step=step)
    push(group, [7], [0.5], step=10)
    rate = 0.1 * np.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
    assert read(group, [7]).item() == pytest.approx(-rate * 0.1 / np.sqrt(0.001), rel=1e-5)


def batch_gradient(keys: list[int], gradients: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Unique keys of a one-feature batch and the gradient of each, as a trainer gives them to a push."""
    n = len(keys)
    unique = deduplicate(np.array(keys, np.uint64), np.array([0, n]), np.zeros(1, np.int32), ("user",))
    bags = Bags(unique.inverse, np.arange(n + 1), None, pooled_fields([0], [0], [Pooling.SUM], [True]))
    rows = np.zeros((len(unique.keys.keys), 1), np.float32)
    flat = np.array(gradients, np.float32)[:, None]
    return unique.keys.keys, sum_row_gradients(rows, RowColumns(0, 1), bags, flat, np.zeros_like(rows))


@pytest.mark.parametrize("clip", ["clip_norm", "clip_value"])
def test_b17_clipping_sees_the_sum_over_a_keys_occurrences(make_group: GroupMaker, clip: str) -> None:
    group = group_of(make_group, table(Sgd(lr=1, **{clip: 2.0})))
    push(group, *batch_gradient([5, 5, 6], [3.0, 1.0, 1.5]))
    assert read(group, [5, 6]).ravel().tolist() == [-2.0, -1.5]


def test_b17_a_zero_gradient_survives_clipping_by_norm(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1, clip_norm=1.0), 3, Normal(std=1)))
    start = read(group, [5], "initial")
    push(group, [5], np.zeros((1, 3)))
    assert np.array_equal(read(group, [5]), start)


def test_b18_steps_of_one_row_are_not_lost_between_threads(make_group: GroupMaker) -> None:
    clients = 8
    pushes = 1000 if make_group is NativeTableGroup else 60
    group, keys = make_group(2), TableKeys.concat({name: np.arange(10, dtype=np.uint64) for name in ("sgd", "adam")})
    for name, optimizer in (("sgd", Sgd(lr=1)), ("adam", Adam())):
        blocks = (ColumnBlock(dim=1, optimizer=optimizer, initializer=Zeros()),)
        group.ensure_table(TableConfig(name=name, blocks=blocks))
    ready = threading.Barrier(clients)

    def client() -> None:
        ready.wait()
        for _ in range(pushes):
            group.apply_gradients(keys, np.ones(20, np.float32), np.ones(20, np.uint32), UpdateStep())

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = clients * pushes
    rows = [group.snapshot(tablet).tables for tablet in range(4)]
    assert np.concatenate([tables["sgd"].weights for tables in rows]).ravel().tolist() == [-total] * 10
    adam = np.concatenate([np.hstack([tables["adam"].weights, tables["adam"].state]) for tables in rows])
    assert np.isfinite(adam).all()
    assert adam[:, -1].tolist() == [total] * 10
    assert all((tables[name].count == total).all() for tables in rows for name in ("sgd", "adam"))


def test_b33_rowwise_adagrad_takes_the_mean_of_squares(make_group: GroupMaker) -> None:
    for lr in (1.0, 0.1):
        group = group_of(make_group, table(RowwiseAdagrad(lr=lr, eps=0), 2))
        push(group, [1], [3.0, 4.0])
        assert state_of(group, 1) == [12.5]
        assert read(group, [1])[0] == pytest.approx(-lr * np.array([3, 4]) / np.sqrt(12.5), rel=1e-6)


def test_b33_first_adam_step_is_the_rate_in_the_gradients_direction(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Adam(lr=0.01), 3))
    push(group, [1], [0.5, -3.0, 100.0])
    assert read(group, [1])[0] == pytest.approx([-0.01, 0.01, -0.01], rel=1e-4)


@pytest.mark.parametrize("mode", ["l2", "decoupled"])
def test_b35_weight_decay_is_for_the_rows_of_the_push(make_group: GroupMaker, mode: str) -> None:
    group = group_of(make_group, table(Sgd(lr=1, weight_decay=0.1, weight_decay_mode=mode)))
    group.assign(TableKeys.of("user", [1, 2]), np.ones(2, np.float32))
    push(group, [1], [0.0])
    assert read(group, [1, 2]).ravel() == pytest.approx([0.9, 1.0], rel=1e-6)
    assert push(group, [], []).applied == 0
    assert read(group, [2]).item() == 1.0


def test_b35_weight_decay_without_a_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="weight_decay_mode"):
        Sgd(weight_decay=0.1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_b59_a_refused_gradient_leaves_weights_state_and_count(make_group: GroupMaker, optimizer: Optimizer) -> None:
    group = group_of(make_group, table(optimizer, 2, Uniform()))
    push(group, [1], [0.5, -0.5], step=1, now=5)
    before = stored(group)
    refused = 0
    for step, bad in enumerate(([np.nan, 1.0], [1.0, np.inf], [1e38, 1e38]), start=2):
        refused += push(group, [1, 2], [bad, [0.1, 0.2]], step=step, now=9).non_finite
    after = stored(group)
    assert refused == 3
    assert after.weights[0].tolist() == before.weights[0].tolist()
    assert after.state[0].tolist() == before.state[0].tolist()
    assert after.count.tolist() == [1, 3]
    assert after.touched_at.tolist() == [5, 9]
    assert np.isfinite(after.weights).all()
    assert np.isfinite(after.state).all()


# --- capacity ---------------------------------------------------------------------------------------------------------


def test_b28_no_key_is_lost_below_capacity(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), eviction=(Capacity(capacity_rows=2048),)))
    keys = np.arange(1, 1025)
    assert push(group, keys, -keys).created == 1024
    assert read(group, keys).ravel().tolist() == keys.tolist()


@pytest.mark.parametrize("tablet_bits", [0, 4])
@pytest.mark.parametrize("order", ["lru", "lfu"])
def test_b28_a_request_above_capacity_reports_what_it_dropped(
    make_group: GroupMaker, order: str, tablet_bits: int
) -> None:
    policy = Capacity(capacity_rows=2048, order=order)
    group = group_of(make_group, table(Sgd(lr=1), eviction=(policy,)), tablet_bits)
    spread = np.uint64(0x9E3779B97F4A7C15)
    old, keys = np.arange(20_001, 20_501, dtype=np.uint64), np.arange(1, 10_001, dtype=np.uint64)
    created = push(group, old * spread, -old.astype(np.float32)).created
    update = push(group, keys * spread, -keys.astype(np.float32), now=1)
    rows = group.stats()["user"].rows
    assert rows <= 2048
    assert rows == created + update.created - update.evicted
    assert update.created + update.over_limit == 10_000
    values = read(group, keys * spread).ravel()
    assert set(values.tolist()) <= {0.0, *keys.tolist()}
    held = values != 0
    assert np.array_equal(values[held], keys[held].astype(np.float32))
    assert held.sum() == update.created


@pytest.mark.parametrize(("order", "leaving"), [("lru", [1, 2, 3]), ("lfu", [6, 7, 8])])
def test_b28_an_assigned_row_makes_room_as_a_pushed_one_does(
    make_group: GroupMaker, order: str, leaving: list[int]
) -> None:
    config = table(Sgd(lr=1), eviction=(Capacity(capacity_rows=8, order=order),))
    group = group_of(make_group, config)
    for key in range(1, 9):
        push(group, [key], [-key], occurrences=10 - key, now=key)
    copy, base = restarted(make_group, group), group.snapshot(0).version
    group.cut(0)
    assert group.assign(TableKeys.of("user", [100, 4, 101]), np.array([70, 71, 72], np.float32), now=9) == 3
    rows = stored(group)
    assert rows.keys.tolist() == sorted({*range(1, 9), 100, 101} - set(leaving))
    assert rows.erased_keys.tolist() == leaving
    assert read(group, [4, 100, 101]).ravel().tolist() == [71, 70, 72]
    copy.import_tablet(group.snapshot(0, base))
    assert_same_rows(copy, group)


def test_b28_assigned_rows_leave_out_the_largest_keys_and_never_one_another(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), eviction=(Capacity(capacity_rows=8),)))
    push(group, [3, 50, 60], [-1.0, -1.0, -1.0], now=1)
    keys = np.arange(20, 0, -1)
    assert group.assign(TableKeys.of("user", keys), keys.astype(np.float32), if_absent=True, now=2) == 7
    assert stored(group).keys.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert read(group, [3, 8]).ravel().tolist() == [1, 8]


def test_b28_assigned_rows_without_room_are_not_set(make_group: GroupMaker) -> None:
    config = table(Sgd(lr=1))
    config = config.model_copy(update={"memory_limit_bytes": 4 * bytes_per_row(config)})
    group = group_of(make_group, config)
    assert group.assign(TableKeys.of("user", [2, 1]), np.array([2, 1], np.float32)) == 2
    values = np.array([50, 10, 40, 30, 20], np.float32)
    assert group.assign(TableKeys.of("user", [5, 1, 4, 3, 2]), values) == 4
    assert stored(group).keys.tolist() == [1, 2, 3, 4]
    assert stored(group).erased_keys.tolist() == []
    assert read(group, [1, 2, 3, 4, 5]).ravel().tolist() == [10, 20, 30, 40, 0]


def test_b28_an_import_above_capacity_is_exact_and_the_next_push_evicts(make_group: GroupMaker) -> None:
    donor = group_of(make_group, table(Sgd(lr=1)))
    for key in range(1, 21):
        push(donor, [key], [-key], now=key)
    group = group_of(make_group, table(Sgd(lr=1), eviction=(Capacity(capacity_rows=8),)))
    group.import_tablet(donor.snapshot(0))
    assert_same_rows(group, donor)
    assert push(group, [5], [0.0], now=21).evicted == 13
    assert stored(group).keys.tolist() == [5, 15, 16, 17, 18, 19, 20]


def test_b28_a_full_table_has_room_again_after_an_erase(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), eviction=(Capacity(capacity_rows=64),)))
    keys = np.arange(1, 65)
    push(group, keys, -keys)
    assert group.erase(TableKeys.of("user", [17])) == 1
    update = push(group, [1000], [-1000.0])
    assert (update.created, update.evicted, update.over_limit) == (1, 0, 0)
    assert read(group, [16, 17, 18, 1000]).ravel().tolist() == [16, 0, 18, 1000]


def test_b29_a_key_in_a_freed_row_starts_to_count_anew(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), eviction=(Capacity(capacity_rows=2, order="lfu"),)))
    a, b, c, d = 10, 30, 20, 40  # ties would go by key, so the key that must leave is the larger
    push(group, [a], [1.0], occurrences=1000)
    push(group, [c], [1.0], occurrences=5)
    group.erase(TableKeys.of("user", [a]))
    push(group, [b], [1.0])
    assert count_of(group, b) == 1
    push(group, [d], [1.0])
    assert stored(group).keys.tolist() == [c, d]


@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.5), RowwiseAdagrad(lr=0.5, initial_accumulator=0.25), Adam(lr=0.5)])
def test_b30_a_key_that_evicts_another_inherits_nothing(make_group: GroupMaker, optimizer: Optimizer) -> None:
    config = table(optimizer, 4, Normal(std=1), eviction=(Capacity(capacity_rows=2),))
    group, fresh = group_of(make_group, config), group_of(make_group, config)
    for now in range(1, 101):
        push(group, [1], np.ones(4), now=now)
        push(group, [2], np.ones(4), now=now + 1)
    assert np.array_equal(read(group, [3], "initial"), initial_weights(config, np.array([3], np.uint64)))
    assert push(group, [3], np.full(4, 0.5), now=200).evicted == 1
    push(fresh, [3], np.full(4, 0.5))
    assert stored(group).keys.tolist() == [2, 3]
    assert state_of(group, 3) == state_of(fresh, 3)
    assert np.array_equal(read(group, [3]), read(fresh, [3]))
    assert np.array_equal(read(group, [1], "initial"), initial_weights(config, np.array([1], np.uint64)))
    assert read(group, [1, 2, 3], "initial").any(axis=1).all()


# --- admission and age over a restart ---------------------------------------------------------------------------------


def restarted(make_group: GroupMaker, group: TableGroup) -> TableGroup:
    """A new group with the rows of `group`'s one tablet."""
    other = make_group(0)
    for config in group.tables():
        other.ensure_table(config)
    other.import_tablet(group.snapshot(0))
    return other


def test_b32_admission_counts_occurrences_not_batches(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), admission=MinCount(count=3)))
    assert push(group, [1], [1.0], occurrences=3).created == 1
    assert count_of(group, 1) == 3
    assert push(group, [2], [1.0], occurrences=2).not_admitted == 1
    assert stored(group).keys.tolist() == [1]


def test_b32_occurrences_counted_so_far_survive_a_restart(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), admission=MinCount(count=3)))
    push(group, [1], [1.0], occurrences=2)
    again = restarted(make_group, group)
    assert push(again, [1], [1.0]).created == 1
    assert count_of(again, 1) == 3
    assert stored(again).admission_keys.tolist() == []


def test_b32_age_is_by_the_datas_clock_over_a_restart(make_group: GroupMaker) -> None:
    group = group_of(make_group, table(Sgd(lr=1), eviction=(Ttl(ttl_seconds=7 * DAY),)))
    push(group, [1], [1.0], now=100 * DAY)
    again = restarted(make_group, group)
    assert again.evict(now=106 * DAY) == {"user": 0}
    assert again.evict(now=108 * DAY) == {"user": 1}


# --- initial weights --------------------------------------------------------------------------------------------------


def arrivals() -> dict[str, tuple[int, list[np.ndarray]]]:
    """(tablet_bits, keys of each client) by how the same thousand keys arrive."""
    keys = np.arange(1, 1001, dtype=np.uint64)
    return {
        "in order": (0, [keys]),
        "reversed": (0, [keys[::-1]]),
        "four clients": (2, [keys[client::4] for client in range(4)]),
        "many tablets": (8, [np.random.default_rng(0).permutation(keys)]),
    }


@pytest.mark.parametrize("arrival", arrivals())
def test_b77_a_new_row_is_a_function_of_seed_table_and_key(make_group: GroupMaker, arrival: str) -> None:
    config = table(Sgd(), 4, Normal(std=1))
    tablet_bits, parts = arrivals()[arrival]
    group = group_of(make_group, config, tablet_bits)
    threads = [threading.Thread(target=push, args=(group, part, np.zeros((len(part), 4)))) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = np.arange(1, 1001, dtype=np.uint64)
    assert group.stats()["user"].rows == 1000
    assert np.array_equal(read(group, keys), initial_weights(config, keys))
