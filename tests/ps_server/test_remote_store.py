"""RemoteStore: routing, retries, exactly once over a bad network, limits, gradient guard, checkpoints."""

import concurrent.futures
import contextlib
import itertools
import threading
import time

import grpc
import numpy as np
import psutil
import pytest
from counters import BITS, COUNTER, keys_of, push_of, read
from lossy_proxy import lossy_proxy
from running_shards import make_spec, remote_store, running_shards

from embershard.embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from embershard.embedding.errors import UnknownTableError
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, MinCount, Sgd, TableConfig, Zeros
from embershard.embedding.table_group import TableKeys
from embershard.ps_server import chunks, shard_link
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.client import connect
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.doorbell import Piece
from embershard.ps_server.errors import GenerationError, RequestTooLargeError, StoreUnavailableError
from embershard.ps_server.gradient_guard import GuardOptions
from embershard.ps_server.local_store import LocalStore
from embershard.ps_server.mutation import ImportTablet
from embershard.ps_server.server import ShardOptions, ShardServer
from embershard.ps_server.service_name import SERVICE
from embershard.ps_server.shard_link import Patience
from embershard.ps_server.shared_memory import ClientBlock
from embershard.ps_server.tablet_map import TabletMap
from embershard.ps_server.wire_values import WireFormat

WIDE = TableConfig(name="wide", blocks=(ColumnBlock(dim=64, initializer=Zeros(), optimizer=Sgd(lr=1.0)),))

# --- routing ----------------------------------------------------------------------------------------------------------


def move(servers, tablets, receiver, epoch):
    """Tablets moved while nobody looks: imported, then the new map adopted everywhere, the receiver first."""
    old = servers[0].map
    owners = old.owners.copy()
    for tablet in tablets:
        donor = servers[int(old.owners[tablet])]
        servers[receiver].shard.apply(ImportTablet(donor.shard.snapshot(tablet)))
        owners[tablet] = receiver
    new = TabletMap(epoch, old.tablet_bits, old.addresses, owners)
    for server in sorted(servers, key=lambda server: server is not servers[receiver]):
        server.adopt(new, 0)


def test_interrupted_call_leaves_none_on_its_way_to_another_shard(folder, monkeypatch):
    write, ended = ClientBlock._write, []
    main = threading.current_thread()

    def interrupt_one_and_delay_the_other(block, piece):
        if piece is Piece.GRADIENTS:
            if threading.current_thread() is main:
                raise KeyboardInterrupt
            time.sleep(0.3)
            ended.append(piece)
        write(block, piece)

    keys = TableKeys.of("wide", np.arange(1000, dtype=np.uint64) << np.uint64(54))
    ones = np.ones(len(keys.keys), np.uint32)
    with remote_store(folder, 2, BITS, NativeTableGroup) as store:
        store.ensure_tables([WIDE])
        store.exchange(None, Pull(keys))
        push = Push(PushToken(1, 1, 0), keys, np.ones(64 * len(keys.keys), np.float32), ones, 1, 1, 0)
        with monkeypatch.context() as patch:
            patch.setattr(ClientBlock, "_write", interrupt_one_and_delay_the_other)
            with pytest.raises(KeyboardInterrupt):
                store.exchange(push, None)
        assert len(ended) == 1
        assert store.exchange(push, None).report.duplicate == 8  # the half of the shard that was not interrupted
        assert np.all(store.exchange(None, Pull(keys)).rows.values == -1)


def test_a_table_that_another_client_made_anew_is_used_after_one_refusal(folder):
    keys = TableKeys.of("wide", np.arange(8, dtype=np.uint64) << np.uint64(60))
    slim = TableConfig(name="wide", blocks=(ColumnBlock(dim=2, initializer=Zeros(), optimizer=Sgd(lr=1.0)),))

    def push_to(width):
        return Push(None, keys, np.ones(8 * width, np.float32), np.ones(8, np.uint32), 1, 1, 0)

    def verbs(store, width):
        return (
            lambda: store.exchange(push_to(width), None),
            lambda: store.exchange(None, Pull(keys)),
            lambda: store.assign(keys, np.ones(8 * width, np.float32)),
        )

    with remote_store(folder, 2, BITS, NativeTableGroup) as store:
        tables, width = [WIDE, slim], 64
        store.ensure_tables([WIDE])
        for number in range(3):
            with connect(store._links.map.addresses[0]) as other:
                other.drop_table("wide")
                other.ensure_tables([tables[(number + 1) % 2]])
            width = tables[(number + 1) % 2].dim
            call = verbs(store, width)[number]
            with pytest.raises(ValueError, match="expected"):
                call()
            call()
            assert len(store.exchange(None, Pull(keys)).rows.values) == 8 * width


@pytest.mark.parametrize("shared_bytes", [0, 1 << 30])
def test_only_keys_of_a_moved_tablet_are_rerouted_and_each_push_is_applied_once(folder, shared_bytes, monkeypatch):
    # With shared memory for all sizes, parts that two shards refused meet at one shard whose memory holds one exchange.
    monkeypatch.setattr(shard_link, "SHARED_BYTES", shared_bytes)
    spec = make_spec(folder, 3, BITS)
    with running_shards(spec, NativeTableGroup) as servers, connect(spec.shards[1]) as store:
        store.ensure_tables([COUNTER])
        numbers = range(300)
        for batch in range(6):
            if batch == 2:
                move(servers, [0, 1, 7], receiver=2, epoch=2)
            if batch == 4:
                move(servers, [0, 15], receiver=1, epoch=3)
            push = push_of(numbers, PushToken(1, 1, batch))
            answer = store.exchange(push, Pull(push.keys))
            assert answer.rows.values.tolist() == [-(batch + 1.0)] * 300
            assert answer.report.duplicate == 0
            assert answer.report.tables["counter"].applied == 300
            again = store.exchange(push, None).report
            assert again.applied == 0
        assert store._links.map.epoch == 3
        assert store.stats()["counter"].rows >= 300
        assert store.assign(TableKeys.of("counter", keys_of(numbers)), np.ones(300, np.float32)) == 300
        move(servers, [3], receiver=0, epoch=4)
        move(servers, [3], receiver=2, epoch=5)
        assert store.snapshot(3).tablet == 3
        assert store.erase(TableKeys.of("counter", keys_of(numbers))) == 300


def test_tablet_nobody_owns_is_an_error_in_time(folder):
    spec = make_spec(folder, 2, BITS)
    patience = Patience(call_seconds=0.5, attempt_seconds=1, connect_seconds=2)
    with running_shards(spec) as servers, connect(spec.shards[0], patience=patience) as store:
        store.ensure_tables([COUNTER])
        servers[0].shard._set_owned(np.zeros(16, np.bool_))
        with pytest.raises(StoreUnavailableError, match=r"owns tablets .* at map epoch 1 or later, got none"):
            read(store, range(100))


def test_tables_made_anew_with_each_others_widths_are_noticed(folder):
    """As many values in all as before, so that no sum tells; rows of one table would go to the other."""

    def config(name, dim):
        return TableConfig(name=name, blocks=(ColumnBlock(dim=dim, initializer=Zeros(), optimizer=Sgd(lr=1.0)),))

    few = np.arange(8, dtype=np.uint64) << np.uint64(60)
    keys = TableKeys(("a", "b"), np.concatenate([few, few]), np.array([0, 8, 16], np.int64))
    push = Push(None, keys, np.ones(8 * 6, np.float32), np.ones(16, np.uint32), 1, 1, 0)
    with remote_store(folder, 2, BITS, NativeTableGroup) as store:
        store.ensure_tables([config("a", 2), config("b", 4)])
        widths = (2, 4)
        for call in (
            lambda: store.exchange(push, None),
            lambda: store.exchange(None, Pull(keys)),
            lambda: store.assign(keys, np.ones(8 * 6, np.float32)),
        ):
            with connect(store._links.map.addresses[0]) as other:
                for name in ("a", "b"):
                    other.drop_table(name)
                widths = widths[::-1]
                other.ensure_tables([config("a", widths[0]), config("b", widths[1])])
            with pytest.raises(
                ValueError, match=f"expected rows of {widths[0]} values, got {widths[1]}: table 'a' was"
            ):
                call()
            call()
        assert store.exchange(None, Pull(TableKeys.of("a", few))).rows.values.tolist() == [1.0] * 8 * widths[0]


def test_a_push_to_a_table_that_was_dropped_beside_a_pull_of_a_new_one_names_it(folder):
    """The pull of a table that the client does not know makes it read the tables anew, without the push's."""
    few = np.arange(8, dtype=np.uint64) << np.uint64(60)
    push = Push(None, TableKeys.of("a", few), np.ones(16, np.float32), np.ones(8, np.uint32), 1, 1, 0)
    a, b = (TableConfig(name=name, blocks=(ColumnBlock(dim=2, optimizer=Sgd(lr=1.0)),)) for name in "ab")
    with remote_store(folder, 2, BITS, NativeTableGroup) as store:
        store.ensure_tables([a])
        with connect(store._links.map.addresses[0]) as other:
            other.drop_table("a")
            other.ensure_tables([b])
        with pytest.raises(UnknownTableError, match=r"expected one of tables \['b'\], got 'a'"):
            store.exchange(push, Pull(TableKeys.of("b", few)))
        assert len(store.exchange(None, Pull(TableKeys.of("b", few))).rows.values) == 16


def test_another_generation_is_refused_until_the_client_connects_anew(folder):
    spec = make_spec(folder, 2, BITS)
    with running_shards(spec) as servers:
        with connect(spec.shards[0]) as store:
            store.ensure_tables([COUNTER])
            for server in servers:
                server.adopt(server.map, 1)
            with pytest.raises(GenerationError, match="expected generation 1, got 0"):
                read(store, range(10))
        with connect(spec.shards[0]) as store:
            assert read(store, range(10)) == [0.0] * 10


def test_shards_may_start_after_the_client(folder):
    spec = make_spec(folder, 2, BITS)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(connect, list(spec.shards))
        with running_shards(spec), future.result() as store:
            assert store.tables() == ()


def test_rows_are_spread_evenly_b57():
    mixed = keys_of(np.arange(100_000) * 64)
    for shards in (4, 5):
        owners = TabletMap.even([f"unix:/s{index}" for index in range(shards)], 8).shard_of_keys(mixed)
        load = np.bincount(owners, minlength=shards)
        assert load.max() / load.mean() < 1.1


# --- exactly once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1])
def test_calls_lost_repeated_delayed_and_sent_again_are_applied_once_b50(folder, seed):
    inner = make_spec(folder, 1, BITS, name="inner")
    outer = ClusterSpec(name="inner", shards=(f"unix:{folder}/proxy.sock",), tablet_bits=BITS)
    with running_shards(inner, NativeTableGroup) as servers:
        # The map names the proxy, so that the client goes through it.
        servers[0].service.tablet_map = TabletMap.even(outer.shards, BITS)
        with lossy_proxy(outer.shards[0], inner.shards[0], seed) as proxy, connect(outer.shards[0]) as store:
            store.ensure_tables([COUNTER])
            for batch in range(80):
                push = push_of(range(5), PushToken(7 + batch % 2, 1, batch // 2))
                answer = store.exchange(push, Pull(push.keys))
                assert answer.rows.values.tolist() == [-(batch + 1.0)] * 5
                assert answer.report.applied + answer.report.duplicate > 0
            assert min(proxy.lost_calls, proxy.lost_replies, proxy.repeated, proxy.resent) > 1
            duplicates = store.status()[0].duplicates
            assert duplicates >= proxy.repeated


def test_two_clients_with_disjoint_units_through_bad_networks_b50(folder):
    inner = make_spec(folder, 1, BITS, name="inner")
    with running_shards(inner, NativeTableGroup) as servers:
        address = f"unix:{folder}/proxy.sock"
        servers[0].service.tablet_map = TabletMap.even([address], BITS)
        with lossy_proxy(address, inner.shards[0], 5):
            with connect(address) as store:
                store.ensure_tables([COUNTER])

            def work(unit):
                with connect(address) as store:
                    for batch in range(40):
                        store.exchange(push_of(range(5), PushToken(unit, 1, batch)), None)

            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(work, (1, 2)))
            with connect(address) as store:
                assert read(store, range(5)) == [-80.0] * 5


def test_stale_batch_is_recomputed_under_the_same_token(folder):
    spec = make_spec(folder, 2, BITS)
    options = {"max_staleness": 1, "staleness_lr": 0.5}
    with (
        running_shards(spec, **options),
        connect(spec.shards[0]) as slow,
        connect(spec.shards[0]) as fast,
    ):
        slow.ensure_tables([COUNTER])
        seen = slow.exchange(None, Pull(TableKeys.of("counter", keys_of(range(50))))).rows.pushes
        for batch in range(2):
            fast.exchange(push_of(range(25), PushToken(1, 1, batch)), None)
        push = push_of(range(50), PushToken(2, 1, 0), seen_pushes=seen)
        report = slow.exchange(push, None).report
        assert report.stale > 0
        fresh = slow.exchange(None, Pull(push.keys)).rows
        again = push_of(range(50), PushToken(2, 1, 0), seen_pushes=fresh.pushes, recomputed=True)
        second = slow.exchange(again, None).report
        assert second.stale == 0
        assert second.duplicate == report.applied
        assert read(slow, range(50)) == [-3.0] * 25 + [-1.0] * 25


# --- large messages ---------------------------------------------------------------------------------------------------


def test_large_push_and_pull_go_in_chunks_b53(folder, monkeypatch):
    monkeypatch.setattr(chunks, "LARGE_BYTES", 1 << 20)
    spec = make_spec(folder, 2, BITS)
    with running_shards(spec, NativeTableGroup), connect(spec.shards[0]) as store:
        store.ensure_tables([WIDE])
        push = push_of(range(20_000), table="wide", width=64)
        answer = store.exchange(push, Pull(push.keys))
        assert answer.rows.values.shape == (20_000 * 64,)
        assert (answer.rows.values == -1.0).all()


def test_hundred_thousand_keys_of_64_floats_need_no_tuning_b53(folder):
    spec = make_spec(folder, 1, BITS)
    with running_shards(spec, NativeTableGroup), connect(spec.shards[0]) as store:
        store.ensure_tables([WIDE])
        push = push_of(range(150_000), table="wide", width=64)
        assert push.gradients.nbytes > chunks.LARGE_BYTES
        answer = store.exchange(push, Pull(push.keys))
        assert (answer.rows.values == -1.0).all()


def test_pull_beyond_the_limit_of_a_call_is_sliced_and_such_a_push_refused_b53(folder):
    spec = make_spec(folder, 1, BITS)
    limit = {"max_request_bytes": 1 << 20}
    with running_shards(spec, NativeTableGroup, **limit), connect(spec.shards[0]) as store:
        store.ensure_tables([WIDE, COUNTER])
        numbers = np.arange(10_000)
        for part in np.array_split(numbers, 5):
            store.exchange(push_of(part, table="wide", width=64), None)
        both = TableKeys.concat({"counter": keys_of(numbers[:50]), "wide": keys_of(numbers)})
        values = store.exchange(None, Pull(both)).rows.values
        assert not values[:50].any()
        assert (values[50:] == -1.0).all()
        refused = rf"at most 1048576 bytes a shard, got .* 1 shards \(at {spec.shards[0]}\); use a smaller batch"
        with pytest.raises(RequestTooLargeError, match=f"expected a push of {refused}"):
            store.exchange(push_of(numbers, table="wide", width=64), None)
        with pytest.raises(RequestTooLargeError, match=f"expected rows to assign of {refused}"):
            store.assign(TableKeys.of("wide", keys_of(numbers)), np.zeros(640_000, np.float32))
        assert (store.exchange(None, Pull(both)).rows.values == values).all()


def test_push_that_is_too_large_for_one_of_several_shards_is_applied_by_none_b53(folder):
    spec = make_spec(folder, 2, BITS)
    with running_shards(spec, NativeTableGroup, max_request_bytes=1 << 20), connect(spec.shards[0]) as store:
        store.ensure_tables([WIDE])
        keys = keys_of(np.arange(9000))
        first = store._links.map.owners[(keys >> np.uint64(64 - BITS)).astype(np.intp)] == 0
        uneven = np.concatenate([keys[first], keys[~first][:100]])  # 1.2 MB for the first shard alone
        push = push_of(range(len(uneven)), table="wide", width=64)
        push.keys.keys[:] = uneven
        with pytest.raises(
            RequestTooLargeError, match=rf"shard 0 at {spec.shards[0]} .*expected a push of at most 10485"
        ):
            store.exchange(push, None)
        assert store.stats()["wide"].rows == 0
    half = WireFormat("bfloat16")
    with running_shards(spec, NativeTableGroup, max_request_bytes=1 << 20), connect(spec.shards[0], wire=half) as store:
        store.ensure_tables([WIDE])
        assert store.exchange(push, None).report.tables["wide"].applied == len(uneven)  # half as many bytes


BEYOND = (1 << 31) // 4096 + 1000
"""Rows of 1,024 floats that are more than 2^31 bytes."""


@pytest.mark.slow
@pytest.mark.skipif(psutil.virtual_memory().available < 14 << 30, reason="needs 14 GiB of free memory")
def test_push_and_pull_of_more_than_2_31_bytes(folder):
    block = ColumnBlock(dim=1024, initializer=Zeros(), optimizer=Sgd(lr=1.0))
    # Rows are admitted at their second push, so that the first one takes no memory for them.
    table = TableConfig(name="wide", blocks=(block,), admission=MinCount(count=2))
    spec = make_spec(folder, 4, BITS)
    with running_shards(spec, NativeTableGroup), connect(spec.shards[0]) as store:
        store.ensure_tables([table])
        keys, few = TableKeys.of("wide", keys_of(np.arange(BEYOND))), [0, BEYOND // 2, BEYOND - 1]
        gradients = np.ones(BEYOND * 1024, np.float32)
        push = Push(PushToken(1, 1, 0), keys, gradients, np.ones(BEYOND, np.uint32), 1, 1, 0)
        report = store.exchange(push, None).report
        assert (report.applied, report.tables["wide"].not_admitted) == (16, BEYOND)
        del push, gradients
        again = TableKeys.of("wide", keys.keys[few])
        store.exchange(
            Push(PushToken(1, 1, 1), again, np.full(3072, -7, np.float32), np.ones(3, np.uint32), 1, 1, 0), None
        )
        rows = store.exchange(None, Pull(keys)).rows.values.reshape(BEYOND, 1024)
        assert rows.nbytes > 1 << 31
        assert (rows[few] == 7.0).all()
        assert np.flatnonzero(rows[:, 1023]).tolist() == few


def test_server_refuses_three_gigabytes_at_the_first_chunk_and_stays_up(folder):
    spec = make_spec(folder, 1, BITS)
    with running_shards(spec) as servers, grpc.insecure_channel(spec.shards[0]) as channel:
        chunk = pb.Chunk(method="Exchange", total_bytes=3 << 30, data=b"x").SerializeToString()
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream(f"/{SERVICE}/Chunked")(itertools.repeat(chunk), timeout=10))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "got 3221225472" in caught.value.details()
        with connect(servers[0].address) as store:
            assert store.tables() == ()


def test_half_precision_wire_is_close_and_counts_exact(folder):
    spec = make_spec(folder, 2, BITS)
    with running_shards(spec, NativeTableGroup):
        for number, wire in enumerate((WireFormat("bfloat16"), WireFormat("float16", "zstd"))):
            with connect(spec.shards[0], wire=wire) as store:
                store.ensure_tables([WIDE])
                push = push_of(range(1000), table="wide", width=64, gradient=0.1)
                values = store.exchange(push, Pull(push.keys)).rows.values
                assert np.allclose(values, -0.1 * (number + 1), rtol=2**-7)
                counts = [store.snapshot(tablet).tables["wide"].count for tablet in range(1 << BITS)]
                assert np.concatenate(counts).sum() == 1000 * (number + 1)


# --- gradient guard ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["hold_out", "clip"])
def test_broken_worker_cannot_poison_a_table_b59(folder, action):
    spec = make_spec(folder, 2, BITS)
    guard = GuardOptions(max_ratio=10, action=action, min_pushes=20)
    with (
        running_shards(spec, NativeTableGroup),
        connect(spec.shards[0], guard=guard) as sound,
        connect(spec.shards[0], guard=guard) as broken,
    ):
        sound.ensure_tables([COUNTER])
        for _ in range(40):
            sound.exchange(push_of(range(50)), None)
        broken.exchange(push_of(range(50)), None)  # brings the norms of all workers back
        before = np.array(read(sound, range(50)))
        report = broken.exchange(push_of(range(50), gradient=1e6), None).report
        after = np.array(read(sound, range(50)))
        if action == "hold_out":
            assert report.held_out == {"counter": 50}
            assert after.tolist() == before.tolist()
        else:
            assert report.clipped == ("counter",)
            assert np.allclose(before - after, 10.0, rtol=0.1)
        bad = push_of(range(50))
        bad.gradients[3] = np.nan
        report = broken.exchange(bad, None).report
        assert report.held_out == {"counter": 1}
        assert report.tables["counter"].applied == 49
        norms = [status.gradient_norms["counter"] for status in sound.status()]
        assert all(abs(norm.mean - 1.0) < 0.1 for norm in norms)


class NoAnswer(grpc.RpcError):
    """What gRPC raises where no reply comes."""

    def __init__(self, code, details):
        self.code, self.details = lambda: code, lambda: details

    def trailing_metadata(self):
        return ()


def test_a_last_try_without_time_does_not_hide_why_the_ones_before_it_failed(folder, monkeypatch):
    closed = NoAnswer(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    late = NoAnswer(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    with remote_store(folder) as store:
        link = store._links.link(0)

        def fail(_method, _data, timeout):
            if timeout < 0.2:
                time.sleep(timeout)
                raise late
            raise closed

        monkeypatch.setattr(link, "_try", fail)
        monkeypatch.setattr(link, "_try_again", fail)
        with pytest.raises(
            StoreUnavailableError, match=r"UNAVAILABLE: Socket closed \(so does a server that expects TLS"
        ):
            link.call("Status", b"", 0.5)
        monkeypatch.setattr(link, "patience", Patience(attempt_seconds=0.1))
        with pytest.raises(StoreUnavailableError, match="DEADLINE_EXCEEDED: Deadline Exceeded"):
            link.call("Status", b"", 0.3)
        monkeypatch.undo()


# --- checkpoints ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def logging_shards(folder, spec):
    """A function that starts the cluster's shards, again from their push logs if they run."""
    servers = []

    def stop():
        while servers:
            servers.pop().stop(1.0)

    def start():
        stop()
        for index in range(len(spec.shards)):
            options = ShardOptions(spec=spec, index=index, folder=folder / f"shard-{index}", durability="log")
            servers.append(ShardServer(options, NativeTableGroup(BITS)).start())

    try:
        yield start
    finally:
        stop()


class ExportingSource:
    """A store through which another thread trains and exports, before and after each snapshot of the checkpoint."""

    def __init__(self, store, train):
        self._store, self._train = store, train

    def __getattr__(self, name):
        return getattr(self._store, name)

    def snapshot(self, tablet, since_version=None):
        self._store.snapshot(tablet)
        self._train()
        snapshot = self._store.snapshot(tablet, since_version)
        self._train()
        self._store.snapshot(tablet)
        return snapshot


def test_checkpoint_and_export_through_one_store_trim_the_push_logs_and_shards_start_from_it(folder):
    spec = make_spec(folder, 2, BITS)
    batches = iter(range(1000))
    with logging_shards(folder, spec) as start:
        start()
        with connect(spec.shards[0]) as store:
            store.ensure_tables([COUNTER])

            def train():
                store.exchange(push_of(range(100), PushToken(1, 1, next(batches))), None)

            for _ in range(200):
                train()
            before = sum(status.log_bytes for status in store.status())
            source = ExportingSource(store, train)
            path = write_checkpoint(folder / "checkpoints", source, TrainingState(step=1))
            assert store.commit_checkpoint(str(path))
            assert sum(status.log_bytes for status in store.status()) < before / 2
            trained = next(batches)
            start()
            assert read(store, range(100)) == [-trained] * 100
            assert store.exchange(push_of(range(100), PushToken(1, 1, trained - 1)), None).report.applied == 0


def test_second_checkpoint_through_one_store_gives_the_first_one_up_and_shards_start_right(folder, caplog):
    spec = make_spec(folder, 2, BITS)
    with logging_shards(folder, spec) as start:
        start()
        with connect(spec.shards[0]) as store:
            store.ensure_tables([COUNTER])
            inner = []

            class Interrupted(ExportingSource):
                def snapshot(self, tablet, since_version=None):
                    if tablet == 3 and not inner:
                        store.exchange(push_of(range(100), PushToken(1, 1, 0)), None)
                        inner.append(write_checkpoint(folder / "inner", store, TrainingState(step=1)))
                        store.exchange(push_of(range(100), PushToken(1, 1, 1)), None)
                    return store.snapshot(tablet, since_version)

            outer = write_checkpoint(folder / "outer", Interrupted(store, None), TrainingState(step=2))
            assert "push log kept until the next one" in caplog.text
            assert store.commit_checkpoint(str(inner[0]))
            assert not store.commit_checkpoint(str(outer))
            start()
            assert read(store, range(100)) == [-2.0] * 100


def test_checkpoint_of_three_shards_restores_into_two_and_into_one_process(folder):
    numbers = np.arange(500)
    three, two = make_spec(folder, 3, BITS, name="three"), make_spec(folder, 2, BITS, name="two")
    with running_shards(three, NativeTableGroup), connect(three.shards[0]) as store:
        store.ensure_tables([COUNTER])
        store.exchange(push_of(numbers, PushToken(1, 1, 0)), None)
        path = write_checkpoint(folder / "checkpoints", store, TrainingState(step=1))
    with running_shards(two, NativeTableGroup), connect(two.shards[0]) as store, LocalStore(BITS) as local:
        for target in (store, local):
            with open_checkpoint(path) as checkpoint:
                checkpoint.restore(target)
            assert read(target, numbers) == [-1.0] * 500
            assert target.exchange(push_of(numbers, PushToken(1, 1, 0)), None).report.applied == 0


def test_tablet_larger_than_a_batch_may_be_is_saved_and_restored(folder, monkeypatch):
    monkeypatch.setattr(chunks, "LARGE_BYTES", 1 << 18)
    spec = make_spec(folder, 1, 0)
    numbers = np.arange(8000)
    with running_shards(spec, NativeTableGroup, max_request_bytes=1 << 20) as servers, connect(spec.shards[0]) as store:
        store.ensure_tables([WIDE])
        for part in np.array_split(numbers, 4):
            store.exchange(push_of(part, table="wide", width=64), None)
        snapshot = store.snapshot(0)
        assert snapshot.tables["wide"].weights.nbytes > servers[0].options.max_request_bytes
        store.erase(TableKeys.of("wide", keys_of(numbers)))
        store.restore(snapshot)
        assert store.stats()["wide"].rows == 8000
