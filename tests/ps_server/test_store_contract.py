"""What every store does, in one process or over shards; the same bits from all of them."""

import concurrent.futures
import contextlib
import copy
import os
import pickle
import platform
import re
import tempfile
import threading
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from dictionary_tables import same_snapshot
from running_shards import remote_store

from embershard.embedding.errors import DuplicateKeyError, TableConflictError, UnknownTableError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import Adagrad, ColumnBlock, Score, Sgd, TableConfig, Uniform, Zeros
from embershard.embedding.table_group import AppliedMemory, TableKeys
from embershard.ps_server import shard_link
from embershard.ps_server.client_tokens import CLIENT_LEASE
from embershard.ps_server.errors import SharedStoreNeededError, StoreClosedError
from embershard.ps_server.local_store import LocalStore

TABLET_BITS = 4
USER = TableConfig(name="user", blocks=(ColumnBlock(dim=3, initializer=Uniform(), optimizer=Adagrad()),))
ITEM = TableConfig(
    name="item",
    blocks=(
        ColumnBlock(name="linear", dim=1, initializer=Zeros(), optimizer=Sgd(lr=1.0)),
        ColumnBlock(name="factors", dim=4, initializer=Uniform(), optimizer=Adagrad()),
    ),
)
AD = TableConfig(
    name="ad",
    blocks=(ColumnBlock(dim=2, initializer=Zeros(), optimizer=Sgd(lr=1.0)),),
    eviction=(Score(min_score=3.0, half_life_seconds=60, show_weight=0.5, click_weight=2.0),),
)
COUNTER = TableConfig(name="counter", blocks=(ColumnBlock(dim=1, initializer=Zeros(), optimizer=Sgd(lr=1.0)),))


@contextlib.contextmanager
def local(folder):
    with LocalStore(tables=ReferenceTableGroup(TABLET_BITS)) as store:
        yield store


@contextlib.contextmanager
def local_native(folder):
    with LocalStore(TABLET_BITS, 2) as store:
        yield store


@contextlib.contextmanager
def shards_in_memory(folder):
    with (
        mock.patch.object(shard_link, "SHARED_BYTES", 0),
        remote_store(folder, 3, TABLET_BITS, NativeTableGroup) as store,
    ):
        yield store


STORES = {
    "local": local,
    "local-native": local_native,
    "one-shard": lambda folder: remote_store(folder, 1, TABLET_BITS),
    "three-shards": lambda folder: remote_store(folder, 3, TABLET_BITS),
    "three-native-shards-in-memory": shards_in_memory,
    "three-native-shards": lambda folder: remote_store(folder, 3, TABLET_BITS, NativeTableGroup),
}


@pytest.fixture(params=STORES)
def store(request):
    # Not tmp_path: a Unix socket's path has to be short.
    with tempfile.TemporaryDirectory() as folder, STORES[request.param](folder) as store:
        store.ensure_tables([USER, ITEM, COUNTER])
        yield store


def keys_of(*numbers):
    """Keys spread over the tablets, the same for the same numbers."""
    return np.array(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def make_push(keys, gradients, token=None, **options):
    gradients = np.ascontiguousarray(gradients, np.float32)
    return Push(token, keys, gradients, np.ones(len(keys.keys), np.uint32), 1, 1, 0, **options)


def count_push(numbers, token=None, gradient=1.0):
    keys = TableKeys.of("counter", keys_of(*numbers))
    return make_push(keys, np.full(len(numbers), gradient), token)


def read(store, table, numbers, absent="initial"):
    return store.exchange(None, Pull(TableKeys.of(table, keys_of(*numbers)), absent)).rows.values


def snapshots(store):
    return [store.snapshot(tablet) for tablet in range(1 << TABLET_BITS)]


def test_tables_are_ensured_again_without_harm_and_listed(store):
    store.ensure_tables([USER])
    assert store.tables() == (USER, ITEM, COUNTER)


def test_conflicting_table_is_refused_by_field_and_changes_nothing(store):
    other = USER.model_copy(update={"seed": 7})
    with pytest.raises(TableConflictError, match="seed"):
        store.ensure_tables([TableConfig(name="new", blocks=(ColumnBlock(dim=1),)), other])
    assert store.tables() == (USER, ITEM, COUNTER)


def test_pull_inserts_nothing(store):
    first = read(store, "user", range(100))
    assert np.array_equal(first, read(store, "user", range(100)))
    assert np.abs(first).max() > 0
    assert not read(store, "user", range(100), absent="zeros").any()
    assert all(table.rows == 0 for table in store.stats().values())


def test_exchange_reads_what_it_pushed(store):
    push = count_push(range(50))
    answer = store.exchange(push, Pull(push.keys))
    assert answer.rows.values.tolist() == [-1.0] * 50
    assert answer.report.tables["counter"].created == 50
    assert answer.report.applied > 0
    assert answer.rows.pushes.sum() > 0


def test_clicks_of_a_push_decide_which_rows_leave(store):
    """The pushed numbers are 0 … 59 in another order; n occurred 1 + n % 3 times and was clicked n % 3 times."""
    store.ensure_tables([AD])
    numbers = np.random.default_rng(3).permutation(60)
    keys = TableKeys.concat({"counter": keys_of(*range(20)), "ad": keys_of(*numbers)})
    clicks = np.concatenate([np.zeros(20, np.int64), numbers % 3]).astype(np.uint32)
    push = replace(make_push(keys, np.ones(20 + 120)), occurrences=clicks + np.uint32(1), clicks=clicks)
    store.exchange(push, None)
    rows = [snapshot.tables["ad"] for snapshot in snapshots(store)]
    kept = {key: count for part in rows for key, count in zip(part.keys.tolist(), part.clicks.tolist(), strict=True)}
    assert kept == dict(zip(keys_of(*numbers).tolist(), (numbers % 3).tolist(), strict=True))
    assert all(len(snapshot.tables["counter"].clicks) == 0 for snapshot in snapshots(store))
    assert store.evict(0)["ad"] == 40  # ½ and 2½ of 3; 4½ stay
    left = {key for snapshot in snapshots(store) for key in snapshot.tables["ad"].keys.tolist()}
    assert left == set(keys_of(*range(2, 60, 3)).tolist())


def test_a_push_without_clicks_counts_none_and_one_with_too_many_is_refused(store):
    store.ensure_tables([AD])
    push = make_push(TableKeys.of("ad", keys_of(1, 2)), np.ones(4))
    store.exchange(push, None)
    with pytest.raises(ValueError, match="expected at most as many clicks as occurrences, got 2 of 1"):
        store.exchange(replace(push, clicks=np.full(2, 2, np.uint32)), None)
    store.exchange(replace(push, clicks=np.ones(2, np.uint32)), None)
    rows = [snapshot.tables["ad"] for snapshot in snapshots(store)]
    assert [count for part in rows for count in part.clicks.tolist()] == [1, 1]
    assert [count for part in rows for count in part.count.tolist()] == [2, 2]


def test_rows_come_in_the_order_they_were_asked_for_b25(store):
    numbers = list(range(200))
    store.exchange(make_push(TableKeys.of("counter", keys_of(*numbers)), numbers), None)
    shuffled = np.random.default_rng(0).permutation(numbers)
    assert read(store, "counter", shuffled).tolist() == [-float(number) for number in shuffled]


def test_several_tables_of_several_widths_in_one_call(store):
    keys = TableKeys.concat({"item": keys_of(*range(40)), "counter": keys_of(*range(7)), "user": keys_of(*range(60))})
    gradients = np.random.default_rng(1).normal(size=40 * 5 + 7 + 60 * 3).astype(np.float32)
    with LocalStore(tables=ReferenceTableGroup(TABLET_BITS)) as twin:
        twin.ensure_tables([USER, ITEM, COUNTER])
        expected = twin.exchange(make_push(keys, gradients), Pull(keys)).rows.values
    answer = store.exchange(make_push(keys, gradients), Pull(keys)).rows
    assert answer.values.dtype == np.float32
    assert answer.values.tobytes() == expected.tobytes()


def test_push_under_the_same_token_is_applied_once_b50(store):
    for batch in range(30):
        push = count_push(range(20), PushToken(77, 1, batch))
        assert store.exchange(push, None).report.duplicate == 0
        if batch % 3 == 0:
            report = store.exchange(push, None).report
            assert report.applied == 0
            assert report.duplicate > 0
            assert not report.tables
    assert read(store, "counter", range(20)).tolist() == [-30.0] * 20


def test_a_prepared_push_gives_the_same_rows(store):
    draw = np.random.default_rng(0)
    with LocalStore(tables=ReferenceTableGroup(TABLET_BITS)) as plain:
        plain.ensure_tables([USER, ITEM, COUNTER])
        for batch in range(6):
            numbers = draw.choice(400, 200, replace=False)
            keys = TableKeys(("user", "counter"), keys_of(*numbers, *numbers[:50]), np.array([0, 200, 250]))
            token = PushToken(5, 1, batch)
            push = make_push(keys, draw.normal(size=200 * 3 + 50), token)
            ready = replace(push, prepared=store.prepare_push(keys, push.occurrences))
            if batch == 3:  # a table that is made anew in between
                for each in (store, plain):
                    each.drop_table("counter")
                    each.ensure_tables([COUNTER])
            reports = [store.exchange(ready, None).report, plain.exchange(push, None).report]
            assert reports[0] == reports[1]
            again = replace(push, prepared=store.prepare_push(keys, push.occurrences))
            assert store.exchange(again, None).report.applied == 0
        pairs = zip(snapshots(store), snapshots(plain), strict=True)
        assert all(same_snapshot(units_only(left), units_only(right)) for left, right in pairs)


def test_pushes_without_a_unit_are_all_applied(store):
    for _ in range(3):
        store.exchange(count_push([1, 2]), None)
    assert read(store, "counter", [1, 2]).tolist() == [-3.0, -3.0]


def test_lower_lease_is_fenced(store):
    store.exchange(count_push(range(20), PushToken(5, 2, 0)), None)
    report = store.exchange(count_push(range(20), PushToken(5, 1, 1)), None).report
    assert report.applied == 0
    assert report.fenced > 0
    assert read(store, "counter", range(20)).tolist() == [-1.0] * 20


def test_completed_unit_is_fenced(store):
    push = count_push(range(20), PushToken(5, 1, 0))
    store.exchange(push, None)
    store.complete_unit(5)
    assert all(len(snapshot.applied.unit) == 0 for snapshot in snapshots(store))
    assert store.exchange(push, None).report.fenced > 0
    assert read(store, "counter", range(20)).tolist() == [-1.0] * 20


def test_a_higher_lease_goes_on_in_a_unit_that_was_completed_after_the_checkpoint(store):
    """Else the rows of the unit's batches after it would be lost; late pushes of the lease before stay fenced."""
    store.exchange(count_push(range(20), PushToken(5, 1, 0)), None)
    saved = snapshots(store)
    store.exchange(count_push(range(20), PushToken(5, 1, 1)), None)
    store.exchange(count_push(range(20), PushToken(6, 1, 0)), None)
    store.complete_unit(5)
    store.complete_unit(6)
    for snapshot in saved:
        store.restore(snapshot)
    for token in (PushToken(5, 1, 1), PushToken(6, 1, 0)):
        assert store.exchange(count_push(range(20), token), None).report.applied == 0
    for token in (PushToken(5, 2, 1), PushToken(6, 2, 0)):
        report = store.exchange(count_push(range(20), token), None).report
        assert (report.applied > 0, report.fenced, report.duplicate) == (True, 0, 0)
    assert store.exchange(count_push(range(20), PushToken(5, 2, 1)), None).report.applied == 0
    assert read(store, "counter", range(20)).tolist() == [-3.0] * 20
    store.complete_unit(5)
    assert store.exchange(count_push(range(20), PushToken(5, 2, 2)), None).report.fenced > 0


def test_push_counters_grow_where_keys_lie(store):
    before = read_pushes(store)
    store.exchange(count_push([3]), None)
    assert (read_pushes(store) - before).sum() == 1


def read_pushes(store):
    return store.exchange(None, Pull(TableKeys.of("counter", keys_of(*range(100))))).rows.pushes


def test_non_finite_rows_are_refused_by_name_and_the_others_applied_b59(store, caplog):
    keys = TableKeys.of("counter", keys_of(*range(30)))
    gradients = np.ones(30, np.float32)
    gradients[[4, 20]] = np.nan, np.inf
    report = store.exchange(make_push(keys, gradients), None).report
    assert report.tables["counter"].non_finite == 2
    assert sorted(report.non_finite_keys["counter"]) == sorted(keys_of(4, 20).tolist())
    values = read(store, "counter", range(30))
    assert values[[4, 20]].tolist() == [0.0, 0.0]
    assert values.sum() == -28.0
    said = [record.getMessage() for record in caplog.records if record.name.endswith("refused_rows")]
    (line,) = said
    assert line.startswith(f"worker {platform.node()}:{os.getpid()}, table 'counter', push (unit ")
    assert "2 rows refused, their gradients are not finite: keys " in line
    for key in keys_of(4, 20).tolist():
        assert str(key) in line


KEYS = TableKeys.of("counter", keys_of(1, 2))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("gradients", np.ones(2), "float64 (2,)"),
        ("gradients", np.ones(2, np.int32), "int32 (2,)"),
        ("gradients", np.ones((2, 1), np.float32), "float32 (2, 1)"),
        ("gradients", np.ones(4, np.float32)[::2], "float32 (2,) not in C order"),
        ("gradients", [1.0, 1.0], "[1.0, 1.0]"),
        ("occurrences", np.ones(2, np.int32), "int32 (2,)"),
        ("occurrences", np.ones(2, np.int64), "int64 (2,)"),
        ("clicks", np.ones(2, np.float32), "float32 (2,)"),
        ("seen_pushes", np.zeros(1 << TABLET_BITS, np.int64), "int64 (16,)"),
        ("keys", replace(KEYS, keys=KEYS.keys.view(np.int64)), "int64 (2,)"),
        ("keys", replace(KEYS, splits=KEYS.splits.astype(np.int32)), "int32 (2,)"),
    ],
)
def test_arrays_of_another_dtype_are_refused_and_not_read_as_what_they_are_not(store, field, value, named):
    """int32 ones are tiny gradients as float32 bytes, and pass for them where only the length is looked at."""
    push = replace(make_push(KEYS, np.ones(2)), **{field: value})
    what = "splits" if named == "int32 (2,)" and field == "keys" else field
    with pytest.raises(TypeError, match=rf"^expected flat arrays in C order .*, got {re.escape(f'{what} {named}')}$"):
        store.exchange(push, None)
    if field == "gradients":
        with pytest.raises(TypeError, match=re.escape(f"got weights {named}")):
            store.assign(KEYS, value)
        with pytest.raises(TypeError, match=re.escape(f"got state {named}")):
            store.assign(KEYS, np.ones(2, np.float32), value)
    if field == "keys":
        with pytest.raises(TypeError, match=re.escape(f"got {what} {named}")):
            store.exchange(None, Pull(value))
        with pytest.raises(TypeError, match=re.escape(f"got {what} {named}")):
            store.erase(value)
    assert read(store, "counter", [1, 2]).tolist() == [0.0, 0.0]
    assert store.stats()["counter"].rows == 0


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"token": PushToken(-1, 0, 0)}, ValueError, "expected the token's unit from 0 to 2^64 - 1, got -1"),
        ({"token": PushToken(0, 1 << 64, 0)}, ValueError, "expected the token's lease from 0 to 2^64 - 1, got "),
        ({"token": PushToken(0, 0, -2)}, ValueError, "expected the token's batch from 0 to 2^63 - 1, got -2"),
        ({"token": PushToken("a", 0, 0)}, TypeError, "expected a whole number as the token's unit, got 'a'"),
        ({"token": 5}, TypeError, "expected a PushToken, got 5"),
        ({"examples": 0}, ValueError, "expected examples from 1 to 2^32 - 1, got 0"),
        ({"examples": 1 << 32}, ValueError, "expected examples from 1 to 2^32 - 1, got 4294967296"),
        ({"step": 1.5}, TypeError, "expected a whole number as step, got 1.5"),
        ({"step": 0}, ValueError, "expected step from 1 to 2^63 - 1, got 0"),
        ({"now": True}, TypeError, "expected a whole number as now, got True"),
        ({"now": 1 << 32}, ValueError, "expected now from 0 to 2^32 - 1, got 4294967296"),
        ({"lr_scale": float("nan")}, ValueError, "expected lr_scale from 0 to 3.40282e+38, got nan"),
        ({"lr_scale": 1e39}, ValueError, "expected lr_scale from 0 to 3.40282e+38, got 1e+39"),
        ({"lr_scale": "1"}, ValueError, "expected lr_scale from 0 to 3.40282e+38, got '1'"),
        ({"keys": [1, 2]}, TypeError, "expected TableKeys, got [1, 2]"),
        ({"keys": replace(KEYS, splits=np.array([0, 1]))}, ValueError, "expected 2 ascending splits from 0 to 2, got "),
        ({"keys": TableKeys(("counter",) * 2, KEYS.keys, np.array([0, 1, 2]))}, ValueError, "expected distinct tables"),
    ],
)
def test_a_push_that_is_none_is_refused_in_words_by_every_store(store, change, kind, message):
    push = make_push(KEYS, np.ones(2))
    with pytest.raises(kind, match=rf"^{re.escape(message)}"):
        store.exchange(replace(push, **change), Pull(KEYS))
    assert read(store, "counter", [1, 2]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("pull", "kind", "message"),
    [
        (Pull(KEYS, "none"), ValueError, "expected absent rows as one of ['initial', 'zeros', 'unseen'], got 'none'"),
        (Pull(TableKeys.of("nothing", [1])), UnknownTableError, "expected one of tables"),
        (
            Pull(replace(KEYS, splits=np.array([0, 3]))),
            ValueError,
            "expected 2 ascending splits from 0 to 2, got [0 3]",
        ),
        ("counter", TypeError, "expected a Pull, got 'counter'"),
    ],
)
def test_a_pull_that_is_refused_leaves_the_push_beside_it_undone(store, pull, kind, message):
    """A push without a token would else be applied again by the caller's next try."""
    with pytest.raises(kind, match=re.escape(message)):
        store.exchange(count_push([1, 2]), pull)
    assert read(store, "counter", [1, 2]).tolist() == [0.0, 0.0]


def test_other_arguments_that_are_none_are_refused_in_words_and_leave_a_store_that_works(store):
    for tables, got in (("user", "'user'"), (["user"], "'user'"), (None, "None"), ([USER, 5], "5")):
        with pytest.raises(TypeError, match=rf"^expected a list of TableConfig, got {re.escape(got)}$"):
            store.ensure_tables(tables)
    store.ensure_tables(table for table in (USER, TableConfig(name="late", blocks=USER.blocks)))
    assert "late" in {table.name for table in store.tables()}
    for tablet in ("a", 1.5, None):
        for verb in (store.snapshot, store.cut):
            with pytest.raises(TypeError, match=re.escape(f"expected a whole number as tablet, got {tablet!r}")):
                verb(tablet)
    with pytest.raises(ValueError, match="expected since_version from 0"):
        store.snapshot(0, -1)
    for unit, message in (
        (-1, "expected unit from 0 to"),
        (1 << 64, "expected unit from 0"),
        ("a", "a whole number as"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            store.complete_unit(unit)
    with pytest.raises(TypeError, match="expected a TabletSnapshot, got None"):
        store.restore(None)
    with pytest.raises(TypeError, match="expected TableKeys, got None"):
        store.erase(None)
    store.exchange(count_push([1, 2]), None)
    assert read(store, "counter", [1, 2]).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("now", [1.5, True, np.True_, -1, 1 << 32, "5", None])
def test_a_time_that_is_none_is_refused_by_evict(store, now):
    with pytest.raises(ValueError, match=re.escape(f"expected whole seconds 0 <= now < 2^32, got {now!r} (evict)")):
        store.evict(now)
    for max_rows in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=re.escape(f"expected max_rows of at least 1, got {max_rows} (evict)")):
            store.evict(0, max_rows)
    assert store.evict(np.int64(5), np.int64(3)) == store.evict(5) or store.evict(5) == {}


def test_assign_and_erase(store):
    keys = TableKeys.of("user", keys_of(*range(30)))
    weights = np.arange(90, dtype=np.float32)
    assert store.assign(keys, weights) == 30
    assert read(store, "user", range(30)).tolist() == weights.tolist()
    assert store.assign(keys, -weights, if_absent=True) == 0
    assert store.assign(keys, -weights, np.full(90, 2.0, np.float32)) == 30
    assert read(store, "user", range(30)).tolist() == (-weights).tolist()
    assert store.stats()["user"].rows == 30
    assert store.erase(TableKeys.of("user", keys_of(*range(10, 100)))) == 20
    assert store.stats()["user"].rows == 10


def test_assign_lays_state_out_by_table(store):
    keys = TableKeys.concat({"user": keys_of(1, 2), "counter": keys_of(1), "item": keys_of(5, 6, 7)})
    weights = np.arange(6 + 1 + 15, dtype=np.float32)
    state = np.arange(6 + 0 + 12, dtype=np.float32) + 1
    assert store.assign(keys, weights, state) == 6
    found = {}
    for snapshot in snapshots(store):
        for table, rows in snapshot.tables.items():
            found.update({(table, key): row.tolist() for key, row in zip(rows.keys.tolist(), rows.state, strict=True)})
    assert found["user", int(keys_of(2)[0])] == [4.0, 5.0, 6.0]
    assert found["item", int(keys_of(7)[0])] == [15.0, 16.0, 17.0, 18.0]


def test_evict_without_policies_keeps_all(store):
    store.exchange(count_push(range(10)), None)
    assert sum(store.evict(now=1 << 30).values()) == 0
    assert store.stats()["counter"].rows == 10


def test_an_eviction_looks_at_no_more_rows_than_it_may_and_the_next_goes_on(store):
    store.ensure_tables([AD])
    store.exchange(make_push(TableKeys.of("ad", keys_of(*range(90))), np.zeros(180)), None)
    removed = [store.evict(0, max_rows=4).get("ad", 0) for _ in range(23)]
    assert removed[0] > 0
    assert max(removed) <= 4 * 3, "4 rows of each of at most 3 shards"
    assert sum(removed) == 90
    assert store.stats()["ad"].rows == 0


def test_an_eviction_of_some_tablets_looks_at_all_rows_of_these_alone(store):
    store.ensure_tables([AD])
    keys = keys_of(*range(90))
    store.exchange(make_push(TableKeys.of("ad", keys), np.zeros(180)), None)
    store.evict(0, max_rows=4)
    tablets = np.arange(1 << TABLET_BITS) % 3 == 1
    here = tablets[(keys >> np.uint64(64 - TABLET_BITS)).astype(int)]
    before = {key for snapshot in snapshots(store) for key in snapshot.tables["ad"].keys.tolist()}
    removed = store.evict(0, tablets=tablets).get("ad", 0)
    left = {key for snapshot in snapshots(store) for key in snapshot.tables["ad"].keys.tolist()}
    assert before - left == before & set(keys[here].tolist())
    assert removed == len(before - left) > 0
    rest = [store.evict(0, max_rows=4).get("ad", 0) for _ in range(23)]  # goes on where it was
    assert sum(rest) == len(left)
    with pytest.raises(ValueError, match="expected max_rows or tablets, got both"):
        store.evict(0, max_rows=4, tablets=tablets)


@pytest.mark.parametrize("size", [0, 15, 32])
@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float64])
def test_an_eviction_of_other_tablets_than_there_are_removes_nothing(store, size, dtype):
    store.ensure_tables([AD])
    store.exchange(make_push(TableKeys.of("ad", keys_of(*range(90))), np.zeros(180)), None)
    got = rf"got \({size},\) {np.dtype(dtype)} \(evict\)"
    with pytest.raises(ValueError, match=rf"expected \(16,\) bool tablets, {got}"):
        store.evict(0, tablets=np.ones(size, dtype))
    assert store.stats()["ad"].rows == 90


@pytest.mark.parametrize("now", [-1, 1 << 32])
def test_an_eviction_at_no_time_is_refused(store, now):
    with pytest.raises(ValueError, match=rf"expected whole seconds 0 <= now < 2\^32, got {now}"):
        store.evict(now)


@pytest.mark.parametrize("max_rows", [0, -1])
def test_an_eviction_that_may_look_at_no_row_is_refused(store, max_rows):
    with pytest.raises(ValueError, match=f"got {max_rows}|range: {max_rows}"):
        store.evict(0, max_rows=max_rows)


def test_drop_table(store):
    store.exchange(count_push(range(10)), None)
    store.drop_table("counter")
    assert store.tables() == (USER, ITEM)
    with pytest.raises(UnknownTableError, match="counter"):
        read(store, "counter", [1])
    with pytest.raises(UnknownTableError, match="counter"):
        store.drop_table("counter")


def units_only(snapshot):
    is_unit = snapshot.applied.lease < CLIENT_LEASE
    memory = (snapshot.applied.unit, snapshot.applied.lease, snapshot.applied.batch)
    return replace(snapshot, applied=AppliedMemory(*(array[is_unit] for array in memory)))


def test_snapshots_restore_rows_counts_and_applied_memory_b25(store):
    store.exchange(count_push(range(100), PushToken(9, 3, 4)), None)
    store.exchange(make_push(TableKeys.of("user", keys_of(*range(50))), np.ones(150)), None)
    taken = snapshots(store)
    assert sum(len(snapshot.tables["counter"].keys) for snapshot in taken) == 100
    with LocalStore(tables=ReferenceTableGroup(TABLET_BITS)) as other:
        other.ensure_tables([USER, ITEM, COUNTER])
        for snapshot in taken:
            other.restore(snapshot)
        assert all(same_snapshot(left, right) for left, right in zip(taken, snapshots(other), strict=True))
        assert other.exchange(count_push(range(100), PushToken(9, 3, 4)), None).report.applied == 0
    store.exchange(count_push(range(100), PushToken(9, 3, 5)), None)
    for snapshot in taken:
        store.restore(snapshot)
    # A restore over the wire has a token of its own, which the tablet remembers too.
    pairs = zip(taken, snapshots(store), strict=True)
    assert all(same_snapshot(units_only(left), units_only(right)) for left, right in pairs)
    assert store.exchange(count_push(range(100), PushToken(9, 3, 5)), None).report.applied > 0


def test_delta_holds_what_changed_since_the_cut(store):
    store.exchange(count_push(range(100)), None)
    versions = [store.cut(tablet) for tablet in range(1 << TABLET_BITS)]
    store.exchange(count_push([3, 5]), None)
    store.erase(TableKeys.of("counter", keys_of(7)))
    changed, erased = [], []
    for tablet, version in enumerate(versions):
        rows = store.snapshot(tablet, since_version=version - 1).tables["counter"]
        changed += rows.keys.tolist()
        erased += rows.erased_keys.tolist()
    assert sorted(changed) == sorted(keys_of(3, 5).tolist())
    assert erased == keys_of(7).tolist()


def test_unknown_table_and_duplicate_keys_change_nothing(store):
    with pytest.raises(UnknownTableError, match="nobody"):
        store.exchange(make_push(TableKeys.of("nobody", keys_of(1)), [1.0]), None)
    twice = make_push(TableKeys.of("counter", keys_of(1, 1)), np.ones(2))
    for push in (twice, replace(twice, prepared=store.prepare_push(twice.keys, twice.occurrences))):
        with pytest.raises(DuplicateKeyError):
            store.exchange(push, None)
    assert store.prepare_push(TableKeys.of("nobody", keys_of(1)), np.ones(1, np.uint32)) is None
    store.prepare_push(KEYS, np.ones(2, np.int64))  # what is wrong the push tells
    assert store.stats()["counter"].rows == 0


def test_a_pull_may_name_a_key_twice(store):
    store.exchange(count_push([3]), None)
    rows = store.exchange(None, Pull(TableKeys.of("counter", keys_of(3, 1, 3)))).rows
    assert rows is not None
    assert rows.values[0] == rows.values[2] != rows.values[1]


def test_gradients_of_the_wrong_length_are_refused(store):
    with pytest.raises(ValueError, match=r"expected.*2.*got.*3"):
        store.exchange(make_push(TableKeys.of("counter", keys_of(1, 2)), np.ones(3)), None)


def test_empty_push_and_pull(store):
    nothing = TableKeys.of("counter", [])
    answer = store.exchange(make_push(nothing, []), Pull(nothing))
    assert len(answer.rows.values) == 0
    assert store.exchange(None, None).rows is None
    assert store.exchange(None, None).report is None


def test_tablet_out_of_range(store):
    with pytest.raises(ValueError, match="expected a tablet from 0 to 15, got 16"):
        store.snapshot(16)


def test_calls_from_many_threads_are_applied_each_once_b20(store):
    def work(thread):
        for batch in range(25):
            store.exchange(count_push(range(10), PushToken(1000 + thread, 1, batch)), None)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert read(store, "counter", range(10)).tolist() == [-200.0] * 10


def test_exchanges_are_carried_out_in_call_order(store):
    """Thread i starts its call when thread i − 1 waits in the lane; a push overtaken by a later batch would be lost."""
    with store._lane:
        threads = []
        for batch in range(20):
            push = count_push([1], PushToken(4, 1, batch))
            threads.append(threading.Thread(target=store.exchange, args=(push, None)))
            threads[-1].start()
            while len(store._lane._waiting) <= batch:
                os.sched_yield()
    for thread in threads:
        thread.join()
    assert read(store, "counter", [1]).tolist() == [-20.0]


def test_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.tables()


def test_store_is_neither_copied_nor_pickled(store):
    with pytest.raises(TypeError, match="deepcopy"):
        copy.deepcopy(store)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(store)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_is_told_to_connect_b56(store):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.exchange(None, None)
            os.write(writer, b"no error")
        except SharedStoreNeededError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        assert "es.connect" in pipe.read()
    assert store.tables()


def test_world_size_above_one_needs_a_shared_store(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SharedStoreNeededError, match=r"world size 1, got 2: .*es\.connect"):
        LocalStore(tables=ReferenceTableGroup(TABLET_BITS))


def test_identities_differ():
    with LocalStore(tables=ReferenceTableGroup(0)) as one, LocalStore(tables=ReferenceTableGroup(0)) as two:
        assert one.identity != two.identity
