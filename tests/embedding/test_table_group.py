"""Contract of the table group, run on the native group and on its NumPy definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embershard.embedding.errors import DuplicateKeyError, TableConflictError, UnknownTableError
from embershard.embedding.initializers import initial_weights
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.table_config import (
    Adagrad,
    Adam,
    ColumnBlock,
    Ftrl,
    MinCount,
    RowwiseAdagrad,
    Sgd,
    TableConfig,
    Uniform,
    Zeros,
)
from embershard.embedding.table_group import TableGroup, TableKeys, UpdateStep

from .table_samples import assert_same_rows

GroupMaker = Callable[..., TableGroup]

EDGE_KEYS = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, 2**24 + 1, 2**53 + 1], np.uint64)


@pytest.fixture(params=["native", "reference"])
def make_group(request: pytest.FixtureRequest) -> GroupMaker:
    """Maker of an empty group: make_group(tablet_bits)."""
    return NativeTableGroup if request.param == "native" else ReferenceTableGroup


def table(name: str = "user", dim: int = 4, optimizer: object = None, **fields: object) -> TableConfig:
    block = ColumnBlock(dim=dim, optimizer=optimizer or Adagrad(), initializer=fields.pop("initializer", Uniform()))
    return TableConfig(name=name, blocks=(block,), **fields)


def push(
    group: TableGroup, keys: object, gradients: object, *, name: str = "user", occurrences: int = 1, **step: object
):
    request = TableKeys.of(name, keys)
    flat = np.ascontiguousarray(gradients, np.float32).reshape(-1)
    return group.apply_gradients(request, flat, np.full(len(request.keys), occurrences, np.uint32), UpdateStep(**step))


def rows_of(group: TableGroup, keys: object, absent: str = "initial", name: str = "user") -> np.ndarray:
    request = TableKeys.of(name, keys)
    return group.lookup(request, absent).reshape(len(request.keys), -1)


def test_lookup_of_absent_keys_gives_initial_weights_and_stores_nothing(make_group: GroupMaker) -> None:
    group, config = make_group(), table()
    group.ensure_table(config)
    assert np.array_equal(rows_of(group, EDGE_KEYS), initial_weights(config, EDGE_KEYS))
    assert not rows_of(group, EDGE_KEYS, "zeros").any()
    assert group.stats()["user"].rows == 0


def test_what_another_kind_of_group_prepared_is_refused(make_group: GroupMaker) -> None:
    group, other = make_group(), (ReferenceTableGroup if make_group is NativeTableGroup else NativeTableGroup)(8)
    keys, once = TableKeys.of("user", [1]), np.ones(1, np.uint32)
    for each in (group, other):
        each.ensure_table(table())
    for prepared in (other.prepare(keys, once), "keys", 0):
        with pytest.raises(TypeError, match="expected prepared as prepare of this table group gives it, got "):
            group.apply_gradients(keys, np.ones(4, np.float32), once, UpdateStep(), prepared=prepared)
    assert group.stats()["user"].rows == 0


def test_push_creates_rows_from_initial_weights_and_updates_them(make_group: GroupMaker) -> None:
    group, config = make_group(), table(optimizer=Sgd(lr=0.5))
    group.ensure_table(config)
    gradients = np.arange(32, dtype=np.float32).reshape(8, 4)
    update = push(group, EDGE_KEYS, gradients).tables["user"]
    assert (update.applied, update.created) == (8, 8)
    assert np.array_equal(rows_of(group, EDGE_KEYS), initial_weights(config, EDGE_KEYS) - np.float32(0.5) * gradients)
    assert push(group, EDGE_KEYS, gradients).tables["user"].created == 0
    assert group.stats()["user"].rows == 8


def test_count_adds_occurrences_and_saturates(make_group: GroupMaker) -> None:
    group = make_group(tablet_bits=0)
    group.ensure_table(table())
    push(group, [7], np.ones(4), occurrences=3, now=50)
    push(group, [7], np.ones(4), occurrences=2, now=60)
    rows = group.snapshot(0).tables["user"]
    assert (rows.count.tolist(), rows.touched_at.tolist()) == ([5], [60])
    push(group, [7], np.ones(4), occurrences=2**32 - 2)
    assert group.snapshot(0).tables["user"].count.tolist() == [2**32 - 1]


def test_duplicate_keys_are_refused_and_nothing_changes(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table("item"))
    group.ensure_table(table())
    keys = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64)
    keys[999] = keys[3]
    request = TableKeys.concat({"item": keys[:999], "user": keys})
    flat = np.ones(len(request.keys) * 4, np.float32)
    for verb in (
        lambda: group.apply_gradients(request, flat, np.ones(len(request.keys), np.uint32), UpdateStep()),
        lambda: group.assign(request, flat),
        lambda: group.erase(request),
    ):
        with pytest.raises(DuplicateKeyError, match=rf"key {keys[3]} .*'user'"):
            verb()
    assert group.stats()["user"].rows == group.stats()["item"].rows == 0
    assert not group.push_counts().any()


def test_tables_may_share_a_key_without_sharing_a_row(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table("user", 3, Sgd(lr=1), initializer=Zeros()))
    group.ensure_table(table("item", 2, Sgd(lr=1), initializer=Zeros()))
    request = TableKeys.concat({"item": EDGE_KEYS, "user": EDGE_KEYS[:5]})
    gradients = np.concatenate([np.full(16, 1, np.float32), np.full(15, 2, np.float32)])
    group.apply_gradients(request, gradients, np.ones(13, np.uint32), UpdateStep())
    assert np.array_equal(group.lookup(request), -gradients)
    assert not rows_of(group, EDGE_KEYS[5:]).any()


def test_unknown_table_is_named(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table())
    with pytest.raises(UnknownTableError, match=r"'user'.*'usr'"):
        rows_of(group, [1], name="usr")


def test_rows_of_unknown_keys_change_with_their_table_alone(make_group: GroupMaker) -> None:
    group = make_group(tablet_bits=0)
    group.ensure_table(table(admission=MinCount(count=2), unseen="unknown_row", optimizer=Sgd(lr=1)))
    push(group, [7], np.ones(4))
    before = group.snapshot(0)
    aimed = TableKeys.concat({"user": EDGE_KEYS, "user/unknown": EDGE_KEYS})
    flat = np.ones(len(aimed.keys) * 4, np.float32)
    for verb in (
        lambda: group.apply_gradients(aimed, flat, np.ones(len(aimed.keys), np.uint32), UpdateStep()),
        lambda: group.assign(aimed, flat),
        lambda: group.erase(aimed),
    ):
        with pytest.raises(ValueError, match=r"got 'user/unknown': it holds the unknown rows of table 'user'"):
            verb()
    after = group.snapshot(0)
    assert after.push_count == before.push_count
    assert after.tables["user/unknown"].keys.tolist() == [0]
    assert after.tables["user"].keys.tolist() == []
    assert rows_of(group, [0], name="user/unknown").tolist() == [[-1.0] * 4]
    push(group, [8], np.ones(4))
    assert rows_of(group, [0], name="user/unknown").tolist() == [[-2.0] * 4]


def test_a_table_may_be_named_unknown_where_it_is_nobodys(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table(admission=MinCount(count=2), unseen="unknown_row"))
    group.drop_table("user")
    group.ensure_table(table("user/unknown"))
    assert push(group, [7], np.ones(4), name="user/unknown").tables["user/unknown"].created == 1
    assert group.erase(TableKeys.of("user/unknown", [7])) == 1


def test_ensure_table_is_idempotent_and_refuses_another_configuration(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table(dim=4))
    group.ensure_table(table(dim=4))
    with pytest.raises(TableConflictError, match=r"^expected blocks\[0\]\.dim 4, got 5 \(table 'user', which is there"):
        group.ensure_table(table(dim=5))
    assert len(group.tables()) == 1


def test_b59_non_finite_gradients_refuse_their_row_only(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table(dim=2, optimizer=Sgd(lr=1), initializer=Zeros()))
    push(group, [1], [1, 1])
    for bad in ([np.nan, 0], [0, np.inf], [1e38, 1e38]):
        report = push(group, [5, 1, 9], [[1, 2], bad, [3, 4]])
        assert (report.tables["user"].applied, report.tables["user"].non_finite) == (2, 1)
        assert report.non_finite_keys == {"user": (1,)}
    assert np.array_equal(rows_of(group, [1, 5, 9]), [[-1, -1], [-3, -6], [-9, -12]])


def test_refused_gradient_creates_no_row(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table(dim=2))
    push(group, np.arange(40), np.full((40, 2), np.nan))
    assert group.stats()["user"].rows == 0


def test_mask_leaves_other_tablets_alone(make_group: GroupMaker) -> None:
    group = make_group(tablet_bits=2)
    group.ensure_table(table(dim=1, optimizer=Sgd(lr=1), initializer=Zeros()))
    keys = np.array([1, 2**62, 2**63, 2**63 + 2**62], np.uint64)
    request = TableKeys.of("user", keys)
    mask = np.array([True, False, False, True])
    group.apply_gradients(request, np.ones(4, np.float32), np.ones(4, np.uint32), UpdateStep(), mask)
    assert rows_of(group, keys).ravel().tolist() == [-1, 0, 0, -1]
    assert group.push_counts().tolist() == [1, 0, 0, 1]
    assert group.assign(request, np.full(4, 7, np.float32), tablets=~mask) == 2
    assert rows_of(group, keys).ravel().tolist() == [-1, 7, 7, -1]
    assert group.erase(request, mask) == 2
    assert rows_of(group, keys).ravel().tolist() == [0, 7, 7, 0]


def test_assign_sets_weights_and_state(make_group: GroupMaker) -> None:
    group = make_group(tablet_bits=0)
    group.ensure_table(table(dim=2))
    request = TableKeys.of("user", [3, 4])
    assert group.assign(request, np.arange(4, dtype=np.float32), now=9) == 2
    assert group.snapshot(0).tables["user"].state.tolist() == [[0, 0], [0, 0]]
    assert group.assign(request, np.ones(4, np.float32), np.full(4, 5, np.float32)) == 2
    rows = group.snapshot(0).tables["user"]
    assert (rows.weights.tolist(), rows.state.tolist()) == ([[1, 1], [1, 1]], [[5, 5], [5, 5]])
    assert group.assign(request, np.zeros(4, np.float32), if_absent=True) == 0
    assert group.assign(TableKeys.of("user", [4, 5]), np.zeros(4, np.float32), if_absent=True) == 1


def test_b30_erased_rows_come_back_with_fresh_weights_state_and_count(make_group: GroupMaker) -> None:
    group, config = make_group(tablet_bits=0), table(dim=3, optimizer=RowwiseAdagrad(initial_accumulator=0.5))
    group.ensure_table(config)
    for _ in range(20):
        push(group, np.arange(30), np.ones((30, 3)), occurrences=9)
    assert group.erase(TableKeys.of("user", np.arange(25, 60))) == 5
    fresh = np.arange(100, 105, dtype=np.uint64)
    assert np.array_equal(rows_of(group, fresh), initial_weights(config, fresh))
    push(group, fresh, np.zeros((5, 3)))
    rows = group.snapshot(0).tables["user"]
    reused = np.isin(rows.keys, fresh)
    assert np.array_equal(rows.weights[reused], initial_weights(config, fresh))
    assert rows.state[reused].tolist() == [[0.5]] * 5
    assert rows.count[reused].tolist() == [1] * 5


def filled_group(make_group: GroupMaker) -> TableGroup:
    group = make_group(tablet_bits=3)
    group.ensure_table(table("user", 5, Adam()))
    blocks = (
        ColumnBlock(name="linear", dim=1, optimizer=Ftrl(), initializer=Zeros()),
        ColumnBlock(name="factors", dim=7),
    )
    group.ensure_table(TableConfig(name="item", blocks=blocks))
    rng = np.random.default_rng(5)
    for step in range(1, 4):
        keys = rng.choice(2000, 500, replace=False).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        request = TableKeys.concat({"user": keys, "item": keys[:300]})
        gradients = rng.normal(size=500 * 5 + 300 * 8).astype(np.float32)
        occurrences = rng.integers(1, 9, 800).astype(np.uint32)
        group.apply_gradients(request, gradients, occurrences, UpdateStep(step=step, now=10 * step))
    return group


def test_snapshots_rebuild_an_equal_group(make_group: GroupMaker) -> None:
    group, copy = filled_group(make_group), make_group(tablet_bits=3)
    for config in group.tables():
        copy.ensure_table(config)
    push(copy, [1, 2, 3], np.ones((3, 5)))
    for tablet in range(8):
        copy.import_tablet(group.snapshot(tablet))
    assert_same_rows(group, copy)
    assert all((np.diff(group.snapshot(t).tables["user"].keys.astype(np.float64)) > 0).all() for t in range(8))


def test_base_and_delta_rebuild_an_equal_group(make_group: GroupMaker) -> None:
    group, copy = filled_group(make_group), make_group(tablet_bits=3)
    for config in group.tables():
        copy.ensure_table(config)
    since = []
    for tablet in range(8):
        base = group.snapshot(tablet)
        since.append(base.version)
        copy.import_tablet(base)
        assert group.cut(tablet) == base.version + 1
    keys = np.concatenate([group.snapshot(t).tables["user"].keys for t in range(8)])
    push(group, keys[::3], np.ones((len(keys[::3]), 5)))
    push(group, np.arange(50), np.ones((50, 5)))
    group.erase(TableKeys.of("user", keys[1::7]))
    push(group, keys[1::14], np.ones((len(keys[1::14]), 5)))
    for tablet in range(8):
        delta = group.snapshot(tablet, since[tablet])
        assert 0 < len(delta.tables["user"].keys) < group.snapshot(tablet).tables["user"].keys.size
        assert len(delta.tables["item"].keys) == 0
        copy.import_tablet(delta)
    assert_same_rows(group, copy)


def test_drop_tablet_forgets_its_rows_only(make_group: GroupMaker) -> None:
    group = filled_group(make_group)
    before = group.stats()["user"].rows_by_tablet
    group.drop_tablet(3)
    after = group.stats()["user"].rows_by_tablet
    assert after[3] == 0
    assert np.array_equal(np.delete(after, 3), np.delete(before, 3))


def test_import_refuses_another_layout_before_changing_anything(make_group: GroupMaker) -> None:
    group, other = filled_group(make_group), make_group(tablet_bits=3)
    other.ensure_table(table("user", 6, Adam()))
    other.ensure_table(next(config for config in group.tables() if config.name == "item"))
    with pytest.raises(ValueError, match="'user'"):
        other.import_tablet(group.snapshot(0))
    assert other.stats()["item"].rows == 0


def test_order_of_keys_and_calls_changes_no_bit(make_group: GroupMaker) -> None:
    rng = np.random.default_rng(1)
    keys = rng.permutation(np.arange(300, dtype=np.uint64) << np.uint64(56) | np.arange(300, dtype=np.uint64))
    gradients = rng.normal(size=(300, 4)).astype(np.float32)
    a, b = make_group(), make_group()
    for group in (a, b):
        group.ensure_table(table())
    push(a, keys, gradients)
    order = rng.permutation(300)
    push(b, keys[order], gradients[order])
    for tablet in range(256):
        x, y = a.snapshot(tablet).tables["user"], b.snapshot(tablet).tables["user"]
        assert np.array_equal(x.weights, y.weights)
        assert np.array_equal(x.keys, y.keys)


def test_out_is_filled_in_place(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table())
    out = np.empty(8, np.float32)
    assert group.lookup(TableKeys.of("user", [1, 2]), out=out) is out
    assert np.array_equal(out.reshape(2, 4), rows_of(group, [1, 2]))


def test_empty_requests_are_fine(make_group: GroupMaker) -> None:
    group = make_group()
    group.ensure_table(table())
    nothing = TableKeys.concat({})
    assert group.lookup(nothing).size == 0
    assert group.apply_gradients(nothing, np.empty(0, np.float32), np.empty(0, np.uint32), UpdateStep()).tables == {}
    assert push(group, [], np.empty((0, 4))).tables["user"].applied == 0
