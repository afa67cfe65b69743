"""DurableShard: what was answered before a kill is there after the restart, to the bit; what was refused is not."""

import contextlib
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from push_log_folders import MemoryFolder
from shard_states import shard_state

from embershard.embedding.errors import DuplicateKeyError, TableConflictError, UnknownTableError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.row_types import narrow_any
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import Adagrad, Adam, Capacity, ColumnBlock, MinCount, Score, TableConfig, Ttl
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.client_tokens import ClientTokens
from embershard.ps_server.durable_shard import DurableShard
from embershard.ps_server.errors import (
    CheckpointNotBegunError,
    CorruptPushLogError,
    HalfChangedError,
    PushLogFailedError,
    PushLogFullError,
    PushLogMismatchError,
    WrongShardError,
)
from embershard.ps_server.local_store import LocalStore
from embershard.ps_server.mutation import (
    AdoptMap,
    CompleteUnit,
    DropTable,
    DropTablet,
    EnsureTables,
    ImportTablet,
    RaiseLowestLease,
)
from embershard.ps_server.push_log_writer import LogLimits
from embershard.ps_server.shard import Shard, StalenessLimit
from embershard.ps_server.shard_recovery import recover

BITS = 2
USER = TableConfig(name="user", blocks=(ColumnBlock(dim=3, optimizer=Adagrad(lr=0.3)),))
ITEM = TableConfig(
    name="item",
    blocks=(ColumnBlock(name="a", dim=2, optimizer=Adam(lr=0.1)), ColumnBlock(name="b", dim=1)),
    admission=MinCount(count=3),
    eviction=(
        Ttl(ttl_seconds=25),
        Capacity(capacity_rows=32),
        Score(min_score=1.2, half_life_seconds=40, show_weight=0.3, click_weight=0.6),
    ),
)


class TakenCheckpoint:
    """A checkpoint in memory, taken through a `DurableShard`."""

    def __init__(self):
        self._snapshots = {}

    def snapshot(self, tablet):
        return self._snapshots[tablet]

    def take(self, durable, tablet):
        self._snapshots[tablet] = durable.snapshot(tablet)

    @property
    def positions(self):
        taken = self._snapshots
        return np.array([taken[tablet].log_position if tablet in taken else -1 for tablet in range(1 << BITS)])


def start(files=None, *, checkpoints=None, staleness=None, tables=ReferenceTableGroup, **options):
    """A shard started on a copy of `files` (or a folder), and what it found."""
    folder = files if isinstance(files, MemoryFolder) else MemoryFolder(files)
    shard = Shard(tables(BITS), staleness=staleness, generation=options.pop("generation", 0))
    known = checkpoints or {}
    durable, found = recover(
        shard, folder, shard_number=0, open_base=lambda name: contextlib.nullcontext(known[name]), **options
    )
    return durable, found, folder


def request(rng, table=USER, count=6):
    pool = (rng.integers(0, 4, 40).astype(np.uint64) << np.uint64(62)) | np.arange(40, dtype=np.uint64)
    keys = TableKeys.of(table.name, np.sort(rng.choice(np.sort(pool), count, replace=False)))
    return keys, rng.standard_normal(count * table.dim).astype(np.float32)


def push(rng, unit, batch, lease=1, table=USER, **options):
    keys, gradients = request(rng, table)
    gradients = narrow_any(rng.choice(["float32", "bfloat16"]), gradients)  # as they came
    occurrences = rng.integers(1, 5, len(keys.keys)).astype(np.uint32)
    if table.keeps_clicks:
        options["clicks"] = rng.integers(0, occurrences + np.uint32(1)).astype(np.uint32)
    return Push(
        PushToken(unit, lease, batch), keys, gradients, occurrences, 8, batch + 1, 100 + batch, lr_scale=0.9, **options
    )


class Traffic:
    """A seeded stream of calls of all kinds, valid and not, as many clients would send them."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.tokens = ClientTokens(client=9, incarnation=3)
        self.batches = dict.fromkeys(range(1, 5), 0)
        self.sent = []
        self.refused = self.evicted = 0

    def call(self, durable):
        rng, kind = self.rng, int(self.rng.integers(0, 14))
        unit = int(rng.integers(1, 5))
        table = (USER, ITEM)[int(rng.integers(0, 2))]
        keys, values = request(rng, table)
        try:
            if kind < 6:
                new = push(rng, unit, self.batches[unit], table=table)
                self.batches[unit] += 1
                self.sent.append(new)
                durable.push(new)
            elif kind == 6 and self.sent:
                assert durable.push(self.sent[int(rng.integers(0, len(self.sent)))]).applied == 0
            elif kind == 7:
                durable.assign(self.tokens.next(), keys, values, None, if_absent=bool(rng.integers(0, 2)), now=7)
            elif kind == 8:
                durable.erase(self.tokens.next(), keys)
            elif kind == 9:
                durable.cut(self.tokens.next(), int(rng.integers(0, 4)))
            elif kind == 10:
                done = self.batches[unit]
                durable.apply(CompleteUnit(1000 + done))
                self.evicted += sum(durable.evict(self.tokens.next(), 130 + done, max_rows=7).values())
            elif kind == 11:
                twice = TableKeys.of("user", [5, 5])
                durable.push(Push(PushToken(50, 1, 0), twice, np.ones(6, np.float32), np.ones(2, np.uint32), 1, 1, 0))
            elif kind == 12:
                durable.apply(DropTable("nowhere"))
            else:
                durable.ensure_tables((USER, ITEM, USER.model_copy(update={"seed": 5})))
        except (DuplicateKeyError, UnknownTableError, TableConflictError):
            self.refused += 1


@pytest.mark.parametrize(("tables", "durability"), [(ReferenceTableGroup, "log"), (NativeTableGroup, "fsync")])
@pytest.mark.parametrize("seed", range(3))
def test_killed_shard_comes_back_with_the_same_bits_after_every_call(seed, tables, durability):
    durable, _, folder = start(tables=tables, durability=durability, limits=LogLimits(segment_bytes=4000))
    durable.ensure_tables((USER, ITEM))
    traffic = Traffic(seed)
    for call in range(150):
        traffic.call(durable)
        if call % 10 == 0 or call == 149:
            again, found, _ = start(folder.copy(), tables=tables, durability=durability)
            assert found.repairs == ()
            assert found.end == durable.log_end
            assert shard_state(again.shard) == shard_state(durable.shard)
    assert traffic.refused > 10
    assert traffic.evicted > 0
    assert len(folder.names()) > 2


def test_restart_goes_on_in_the_same_log_and_repeats_are_duplicates():
    rng, sent = np.random.default_rng(1), []
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    for batch in range(12):
        sent.append(push(rng, 1, batch))
        assert durable.push(sent[-1]).applied > 0
        durable, found, _ = start(folder)  # the old object is a process that was killed
        assert found.replayed == batch + 3  # and the map and the table
        assert durable.push(sent[-1]).applied == 0
    assert all(durable.push(old).applied == 0 for old in sent)
    counted = sum(int(durable.shard.snapshot(t).tables["user"].count.sum()) for t in range(4))
    assert counted == sum(int(old.occurrences.sum()) for old in sent)


def test_refused_mutation_leaves_no_record_and_no_trace():
    rng = np.random.default_rng(2)
    durable, _, folder = start()
    durable.ensure_tables((USER, ITEM))
    durable.push(push(rng, 1, 0))
    before, files = shard_state(durable.shard), folder.copy()
    good = push(rng, 1, 1)
    keys = TableKeys.of("user", [1, 1])
    ones = np.ones(2, np.uint32)
    for bad, error in [
        (Push(good.token, keys, np.ones(6, np.float32), ones, 1, 1, 0), DuplicateKeyError),
        (Push(good.token, TableKeys.of("none", [1, 2]), np.ones(6, np.float32), ones, 1, 1, 0), UnknownTableError),
        (Push(good.token, TableKeys.of("user", [1, 2]), np.ones(5, np.float32), ones, 1, 1, 0), ValueError),
    ]:
        with pytest.raises(error):
            durable.push(bad)
    with pytest.raises(TableConflictError):
        durable.ensure_tables((USER.model_copy(update={"seed": 1}),))
    assert folder.copy() == files
    assert shard_state(durable.shard) == before
    assert durable.push(good).applied > 0


def test_several_new_tables_are_records_of_their_own_so_that_a_refused_one_takes_none_back():
    class Picky(ReferenceTableGroup):
        def ensure_table(self, config):
            if config.name == "item":
                raise ValueError("no")
            super().ensure_table(config)

    folder = MemoryFolder()
    durable, _ = recover(Shard(Picky(BITS)), folder, shard_number=0)
    with pytest.raises(ValueError, match="no"):
        durable.apply(EnsureTables((USER, ITEM)))
    durable.push(push(np.random.default_rng(3), 1, 0))
    again, _, _ = start(folder)
    assert shard_state(again.shard) == shard_state(durable.shard)


def test_process_that_dies_between_append_and_refusal_is_repaired_and_says_so():
    rng = np.random.default_rng(4)
    durable, _, folder = start(durability="fsync")
    durable.ensure_tables((USER,))
    durable.push(push(rng, 1, 0))
    before, end = shard_state(durable.shard), durable.log_end
    bad = Push(PushToken(1, 1, 1), TableKeys.of("user", [1, 1]), np.ones(6, np.float32), np.ones(2, np.uint32), 1, 1, 0)
    writer = durable._log.writer
    writer.rewind = writer.wait_durable  # killed before it could take the record back, when it was synced already
    with pytest.raises(DuplicateKeyError):
        durable.push(bad)
    for _ in range(2):  # the second start finds a sound log
        again, found, _ = start(folder, durability="fsync")
        assert shard_state(again.shard) == before
        assert found.end == end
    assert found.repairs == ()
    with pytest.raises(DuplicateKeyError):
        again.push(bad)
    assert again.push(push(rng, 1, 1)).applied > 0


def test_record_that_cannot_be_applied_in_the_middle_of_the_log_is_refused_by_name():
    rng = np.random.default_rng(5)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    durable._log.writer.append(DropTable("nowhere"))
    durable.push(push(rng, 1, 0))
    with pytest.raises(CorruptPushLogError, match=r"segment-0+\.log, offset \d+: record 2 cannot be applied"):
        start(folder.copy())


def test_full_disk_refuses_the_push_changes_nothing_and_takes_the_same_token_later():
    rng = np.random.default_rng(6)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    durable.push(push(rng, 1, 0))
    before = shard_state(durable.shard)
    late = push(rng, 1, 1)
    folder.room = 100
    for _ in range(3):
        with pytest.raises(PushLogFullError, match="no room for record 3 of the push log, nothing was changed"):
            durable.push(late)
        assert shard_state(durable.shard) == before
        assert durable.exchange(None, Pull(late.keys)).rows is not None
    folder.room = None
    assert durable.push(late).applied > 0
    assert shard_state(start(folder)[0].shard) == shard_state(durable.shard)


def test_duplicate_is_not_acknowledged_before_its_first_record_is_durable():
    rng = np.random.default_rng(7)
    durable, _, folder = start(durability="fsync")
    durable.ensure_tables((USER,))
    new = push(rng, 1, 0)
    folder.fails_sync = True
    for _ in range(2):
        with pytest.raises(PushLogFailedError):
            durable.push(new)
    folder.fails_sync = False
    with pytest.raises(PushLogFailedError):
        durable.push(new)


def test_mutation_that_stopped_half_way_stops_the_shard():
    class Exhausted(ReferenceTableGroup):
        def erase(self, request, tablets=None):
            raise MemoryError

    durable, _ = recover(Shard(Exhausted(BITS)), MemoryFolder(), shard_number=0)
    durable.ensure_tables((USER,))
    with pytest.raises(PushLogFailedError, match=r"stopped half way in EraseRows of 1 rows .* with MemoryError"):
        durable.erase(ClientTokens().next(), TableKeys.of("user", [1]))
    with pytest.raises(PushLogFailedError, match=r"stopped half way in EraseRows of 1 rows .* with MemoryError"):
        durable.push(push(np.random.default_rng(8), 1, 0))
    # A checkpoint would trim the record away, of which half is in these rows.
    with pytest.raises(HalfChangedError, match="some of these rows are changed, others are not"):
        durable.snapshot(0)


@pytest.mark.parametrize("init_from", ["none.parquet", "numbers.parquet", "text.arrow"])
def test_vectors_that_cannot_be_read_stop_no_shard_and_are_no_record(tmp_path, init_from):
    """Else the shard would stop, and stop again at each start, as its log says to read them."""
    pq.write_table(pa.table({"key": pa.array([1], pa.uint64()), "vector": [1.5]}), tmp_path / "numbers.parquet")
    (tmp_path / "text.arrow").write_text("no vectors")
    table = TableConfig(name="init", blocks=(ColumnBlock(dim=3),), init_from=str(tmp_path / init_from))
    rng = np.random.default_rng(8)
    durable, _, folder = start(tables=NativeTableGroup, durability="log")
    for _ in range(2):
        with pytest.raises((OSError, ValueError), match=init_from):
            durable.ensure_tables((USER, table))
    assert durable.push(push(rng, 1, 0)).applied
    again, found, _ = start(folder.copy(), tables=NativeTableGroup)
    assert [known.name for known in again.shard.tables()] == ["user"]
    assert found.repairs == ()
    with LocalStore(BITS) as store:
        with pytest.raises((OSError, ValueError), match=init_from):
            store.ensure_tables((table,))
        store.ensure_tables((USER,))


def test_refusal_as_stale_outlives_a_restart_so_that_no_batch_overtakes_it():
    rng = np.random.default_rng(9)
    limit = StalenessLimit(max_staleness=0)
    durable, _, folder = start(staleness=limit)
    durable.ensure_tables((USER,))
    durable.push(push(rng, 1, 0))
    seen = np.zeros(4, np.uint64)
    old = push(rng, 2, 0, seen_pushes=seen)
    assert durable.push(old).stale > 0
    durable, _, _ = start(folder, staleness=limit)
    following = push(rng, 2, 1)
    assert durable.push(following).stale > 0
    assert durable.push(Push(**{**fields(old), "recomputed": True})).applied > 0
    assert durable.push(following).applied > 0
    assert shard_state(start(folder)[0].shard) == shard_state(durable.shard)


def fields(record):
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}


@pytest.mark.parametrize("tables", [ReferenceTableGroup, NativeTableGroup])
@pytest.mark.parametrize("seed", range(3))
def test_checkpoint_taken_while_pushes_go_on_and_replay_give_the_same_bits(seed, tables):
    durable, _, folder = start(tables=tables, limits=LogLimits(segment_bytes=3000))
    durable.ensure_tables((USER, ITEM))
    durable.apply(RaiseLowestLease(1))
    traffic, tokens, checkpoints = Traffic(seed), ClientTokens(), {}
    for number in range(3):
        for _ in range(30):
            traffic.call(durable)
        name = f"step-{number}"
        taken = checkpoints[name] = TakenCheckpoint()
        durable.begin_checkpoint()
        for tablet in traffic.rng.permutation(4).tolist():
            durable.cut(tokens.next(), tablet)
            for _ in range(3):
                traffic.call(durable)
            taken.take(durable, tablet)
            traffic.call(durable)
        killed = folder.copy()  # before the commit: the checkpoint before counts
        assert shard_state(start(killed, checkpoints=checkpoints, tables=tables)[0].shard) == shard_state(durable.shard)
        before = durable.log_bytes
        assert durable.commit_checkpoint(name, taken.positions) < before
        again, found, _ = start(folder.copy(), checkpoints=checkpoints, tables=tables)
        assert found.checkpoint == name
        assert shard_state(again.shard) == shard_state(durable.shard)
    for call in range(40):
        traffic.call(durable)
        if call % 8 == 0:
            again, _, _ = start(folder.copy(), checkpoints=checkpoints, tables=tables)
            assert shard_state(again.shard) == shard_state(durable.shard)


def test_checkpoint_without_all_tablets_is_not_committed():
    durable, _, folder = start()
    with pytest.raises(CheckpointNotBegunError, match=r"expected checkpoint 1 \(x\) to be begun, got none"):
        durable.commit_checkpoint("x", TakenCheckpoint().positions, 1)
    taken = TakenCheckpoint()
    taken.take(durable, 1)
    durable.ensure_tables((USER,))
    durable.begin_checkpoint(1)
    taken.take(durable, 0)
    for late in (-1, durable.log_end + 1):  # tablet 1 was taken before it began
        positions = taken.positions
        positions[3] = late
        with pytest.raises(CheckpointNotBegunError, match=r"got none of tablets \[1, 2, 3\]"):
            durable.commit_checkpoint("x", positions, 1)
    assert "base.json" not in folder.names()


def test_commit_repeated_is_one_and_one_that_comes_late_is_not_taken_for_the_next():
    rng = np.random.default_rng(13)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    taken = {}
    for number in (1, 2):
        taken[f"step-{number}"] = TakenCheckpoint()
        durable.begin_checkpoint(number)
        for tablet in range(4):
            taken[f"step-{number}"].take(durable, tablet)
            durable.push(push(rng, number, tablet))
        if number == 2:
            durable.commit_checkpoint("step-1", taken["step-1"].positions, 1)
            with pytest.raises(CheckpointNotBegunError, match="got checkpoint 2"):
                durable.commit_checkpoint("step-0", taken["step-1"].positions, 0)
        for _ in range(2):
            durable.commit_checkpoint(f"step-{number}", taken[f"step-{number}"].positions, number)
        again, found, _ = start(folder.copy(), checkpoints=taken)
        assert found.checkpoint == f"step-{number}"
        assert shard_state(again.shard) == shard_state(durable.shard)
        again.commit_checkpoint(f"step-{number}", taken[f"step-{number}"].positions, number)


@pytest.mark.parametrize("comes_first", [True, False])
def test_other_snapshots_during_a_checkpoint_lose_no_push_and_repeat_none(comes_first):
    """Those of an export, or of a call that was repeated: the checkpoint holds the first, or the second of a tablet."""
    rng = np.random.default_rng(17)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    taken, other = TakenCheckpoint(), TakenCheckpoint()
    durable.begin_checkpoint(7)
    for tablet in range(4):
        (taken if comes_first else other).take(durable, tablet)
        durable.push(push(rng, 1, tablet))
        (other if comes_first else taken).take(durable, tablet)
    durable.commit_checkpoint("step-1", taken.positions, 7)
    again, found, _ = start(folder.copy(), checkpoints={"step-1": taken})
    assert found.checkpoint == "step-1"
    assert shard_state(again.shard) == shard_state(durable.shard)


@pytest.mark.parametrize("durability", ["log", "fsync"])
@pytest.mark.parametrize("trimmed", ["not", "to its end", "before its end"])
@pytest.mark.parametrize("torn", [0, 7])
def test_full_disk_at_the_start_serves_reads_and_refuses_changes_until_there_is_room(durability, trimmed, torn):
    rng = np.random.default_rng(11)
    durable, _, folder = start(durability=durability)
    durable.ensure_tables((USER,))
    taken = TakenCheckpoint()
    for batch in range(5):
        durable.push(push(rng, 1, batch))
    if trimmed != "not":
        durable.begin_checkpoint()
        for tablet in range(4):
            taken.take(durable, tablet)
        durable.commit_checkpoint("step-1", taken.positions)
        if trimmed == "before its end":
            durable.push(push(rng, 1, 5))
    files = folder.copy()
    last = max(name for name in files if name.startswith("segment"))
    files[last] += bytes(torn)
    expected, last_push = shard_state(durable.shard), push(rng, 1, 6)
    for _ in range(2):  # and after one more kill, still full
        folder = MemoryFolder(files)
        folder.room = 0
        again, found, _ = start(folder, checkpoints={"step-1": taken}, durability=durability)
        assert len(found.repairs) == bool(torn)
        assert shard_state(again.shard) == expected
        for change, argument in ((again.push, last_push), (again.ensure_tables, (ITEM,))):
            with pytest.raises(PushLogFullError, match=r"no room for record \d+ of the push log.*segment-"):
                change(argument)
        assert shard_state(again.shard) == expected
        files, torn = folder.copy(), 0
    folder.room = None
    again.push(last_push)
    durable.push(last_push)
    again.close()
    third, _, _ = start(folder.copy(), checkpoints={"step-1": taken}, durability=durability)
    assert shard_state(third.shard) == shard_state(again.shard) == shard_state(durable.shard)


def test_full_disk_at_the_start_keeps_replayed_records_that_were_never_answered():
    rng = np.random.default_rng(12)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    durable._wait = lambda end: None  # killed between the append and the answer
    durable.push(push(rng, 1, 0))
    unanswered = push(rng, 1, 1)
    durable.push(unanswered)
    folder = MemoryFolder(folder.copy())
    folder.room = 0
    again, _, _ = start(folder)
    assert again.push(unanswered).duplicate
    files = folder.copy()
    last = max(name for name in files if name.startswith("segment"))
    with pytest.raises(CorruptPushLogError, match=r"record 3: a record is cut short"):  # it counts as answered now
        start({**files, last: files[last][:-1]})


def test_full_disk_at_the_first_start_is_refused_and_leaves_nothing():
    folder = MemoryFolder()
    folder.room = 0
    with pytest.raises(PushLogFullError, match="no room for record 0 of the push log"):
        start(folder)
    assert folder.names() == []
    folder.room = None
    assert start(folder)[1].end == 0


def test_full_disk_at_a_checkpoint_leaves_a_log_that_still_starts():
    rng = np.random.default_rng(10)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    for batch in range(5):
        durable.push(push(rng, 1, batch))
    taken = TakenCheckpoint()
    folder.room = 0
    durable.begin_checkpoint()
    for tablet in range(4):
        taken.take(durable, tablet)
    with pytest.raises(OSError, match="injected"):
        durable.commit_checkpoint("full", taken.positions)
    assert shard_state(start(folder.copy())[0].shard) == shard_state(durable.shard)
    folder.room = None
    durable.commit_checkpoint("full", taken.positions)
    again, found, _ = start(folder, checkpoints={"full": taken})
    assert (found.checkpoint, found.replayed) == ("full", 0)
    assert shard_state(again.shard) == shard_state(durable.shard)


def test_damaged_base_is_refused_by_name():
    durable, _, folder = start()
    durable.begin_checkpoint()
    taken = TakenCheckpoint()
    for tablet in range(4):
        taken.take(durable, tablet)
    durable.commit_checkpoint("here", taken.positions)
    data = folder.copy()["base.json"]
    for offset in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[offset] ^= 4
        with pytest.raises(CorruptPushLogError, match=r"base\.json"):
            start({**folder.copy(), "base.json": damaged}, checkpoints={"here": TakenCheckpoint()})


def test_tablets_and_map_are_where_they_were_after_a_restart():
    rng = np.random.default_rng(11)
    durable, _, folder = start()
    durable.ensure_tables((USER,))
    for batch in range(4):
        durable.push(push(rng, 1, batch))
    moved = durable.snapshot(2)
    durable.apply(DropTablet(2))
    durable.apply(AdoptMap(np.array([True, False, False, True]), 5, 3))
    with pytest.raises(WrongShardError):
        durable.snapshot(2)
    again, _, _ = start(folder.copy())
    assert shard_state(again.shard) == shard_state(durable.shard)
    assert (again.shard.epoch, again.shard.generation) == (5, 3)
    again.apply(ImportTablet(moved))
    with pytest.raises(PushLogMismatchError, match="expected a push log of generation 4, got one of 3"):
        start(folder.copy(), generation=4)


def test_many_threads_push_and_all_is_in_the_log_in_the_order_it_was_applied():
    durable, _, folder = start(durability="fsync", limits=LogLimits(segment_bytes=5000))
    durable.ensure_tables((USER,))
    errors = []

    def client(unit):
        rng = np.random.default_rng(unit)
        try:
            for batch in range(25):
                assert durable.push(push(rng, unit, batch)).applied > 0
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(unit,)) for unit in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    again, found, _ = start(folder)
    assert found.replayed == 2 + 6 * 25
    assert shard_state(again.shard) == shard_state(durable.shard)


def test_without_a_log_the_same_calls_do_the_same():
    plain, logged = DurableShard(Shard(ReferenceTableGroup(BITS))), start()[0]
    for durable in (plain, logged):
        durable.ensure_tables((USER, ITEM))
        traffic = Traffic(5)
        for _ in range(60):
            traffic.call(durable)
    assert shard_state(plain.shard) == shard_state(logged.shard)
    assert (plain.log_bytes, plain.log_end, plain.wants_checkpoint) == (0, 0, False)


def test_closed_shard_refuses_mutations():
    durable, _, _ = start()
    durable.close()
    durable.close()
    with pytest.raises(PushLogFailedError, match="was closed"):
        durable.ensure_tables((USER,))


def test_restore_and_drop_that_come_late_a_second_time_undo_nothing():
    rng, tokens = np.random.default_rng(12), ClientTokens()
    durable, _, folder = start()
    durable.ensure_tables((USER, ITEM))
    durable.push(push(rng, 1, 0))
    old, restoring, dropping = durable.snapshot(1), tokens.next(), tokens.next()
    durable.restore(restoring, old)
    durable.drop_table(dropping, "item")
    durable.ensure_tables((ITEM,))
    durable.push(push(rng, 1, 1))
    durable.push(push(rng, 1, 2, table=ITEM))
    before = shard_state(durable.shard)
    for again in (durable, start(folder)[0]):
        again.restore(restoring, old)
        again.drop_table(dropping, "item")
        assert shard_state(again.shard) == before
    with pytest.raises(UnknownTableError):
        durable.drop_table(tokens.next(), "nowhere")


def test_shard_that_is_given_other_tablets_than_its_log_has_is_refused():
    folder = MemoryFolder()

    def shard_of(*tablets, epoch=1):
        owned = np.zeros(4, np.bool_)
        owned[list(tablets)] = True
        return Shard(ReferenceTableGroup(BITS), owned=owned, epoch=epoch)

    durable, _ = recover(shard_of(0, 1), folder, shard_number=0)
    with pytest.raises(
        PushLogMismatchError, match="expected a push log of 3 tablets at map epoch 1, got one of 2 others"
    ):
        recover(shard_of(0, 1, 2), folder, shard_number=0)
    durable.apply(AdoptMap(np.array([True, False, True, False]), 2, 0))
    again, _ = recover(shard_of(0, 1), folder, shard_number=0)
    assert (again.shard.epoch, np.flatnonzero(again.shard.owned).tolist()) == (2, [0, 2])
