"""Arrays in memory that client and shard share: the same bits as through the socket, and nothing left behind."""

import fcntl
import os
import subprocess
import sys

import grpc
import numpy as np
import pytest
from running_shards import make_spec, running_shards

from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.row_types import narrow_any, widen
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, Score, TableConfig
from embershard.embedding.table_group import TableKeys
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server import shared_memory
from embershard.ps_server.client import connect
from embershard.ps_server.errors import SharedMemoryGoneError, WireFormatError
from embershard.ps_server.local_store import LocalStore
from embershard.ps_server.shard_link import Patience, ShardLink
from embershard.ps_server.shared_memory import BLOCK_BYTES, HALF, ClientBlock, SharedBlocks
from embershard.ps_server.wire_values import WireFormat

pytestmark = pytest.mark.skipif(not shared_memory.IS_POSSIBLE, reason="no memfd on this system")

TABLES = [
    TableConfig(name="wide", blocks=(ColumnBlock(dim=16),)),
    TableConfig(
        name="slim",
        blocks=(ColumnBlock(dim=3),),
        eviction=(Score(min_score=0.1, half_life_seconds=9, click_weight=1.0),),
    ),
]
PATIENCE = Patience(call_seconds=20, attempt_seconds=2, connect_seconds=5)


def batch(seed, count=3000):
    random = np.random.default_rng(seed)
    keys = TableKeys.concat({t.name: random.integers(0, 1 << 64, count, dtype=np.uint64) for t in TABLES})
    return keys, random.normal(0, 0.1, count * 19).astype(np.float32), random.integers(1, 5, 2 * count, dtype=np.uint32)


def push_of(token, data):
    keys, gradients, occurrences = data
    return Push(token, keys, gradients, occurrences, 8, 1, 5, clicks=occurrences // np.uint32(2))


def clicks_of(store):
    """Clicks of every row of `slim`, by key."""
    rows = [store.snapshot(tablet).tables["slim"] for tablet in range(1 << store.tablet_bits)]
    return np.concatenate([part.clicks for part in rows]).tolist()


def train(store, batches=6, dtype="float32"):
    """Rows pulled beside each push. dtype: in which gradients have been on their way to the store."""
    store.ensure_tables(TABLES)
    pulled = []
    for number in range(batches):
        (keys, gradients, occurrences), following = batch(number % 3), batch((number + 1) % 3)
        data = keys, widen(dtype, narrow_any(dtype, gradients)), occurrences
        answer = store.exchange(push_of(PushToken(1, 1, number), data), Pull(following[0]))
        pulled.append((answer.rows, answer.report))
    return pulled


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_rows_and_reports_are_those_of_the_socket(tmp_path, shards, dtype):
    answers, clicks = {}, {}
    for shares in (True, False):
        spec = make_spec(tmp_path, shards, name=f"shares-{shares}")
        with running_shards(spec, NativeTableGroup) as servers:
            with connect(spec.shards[0], shared_memory=shares, wire=WireFormat(dtype)) as store:
                answers[shares] = train(store)
                clicks[shares] = clicks_of(store)
                assert [len(server.service.shared_blocks) for server in servers] == [int(shares)] * shards
            assert [len(server.service.shared_blocks) for server in servers] == [0] * shards
    with LocalStore(4) as local:
        alone = train(local, dtype=dtype)
        assert clicks == dict.fromkeys((True, False), clicks_of(local))
    assert sum(clicks[True]) > 0
    for (rows, report), (plain, plain_report), (exact, exact_report) in zip(
        answers[True], answers[False], alone, strict=True
    ):
        # A pull's rows are its own: later exchanges through the same memory have not changed them.
        assert rows.values.tobytes() == plain.values.tobytes()
        assert rows.pushes.tolist() == plain.pushes.tolist()
        assert report == plain_report
        assert report.tables == exact_report.tables
        assert rows.values.tobytes() == widen(dtype, narrow_any(dtype, exact.values)).tobytes()


def test_small_exchanges_zstd_and_proxies_use_no_shared_memory(tmp_path):
    spec = make_spec(tmp_path)
    with running_shards(spec, NativeTableGroup) as servers:
        blocks = servers[0].service.shared_blocks
        with connect(spec.shards[0]) as store:
            store.ensure_tables(TABLES)
            store.exchange(None, Pull(TableKeys.of("wide", [1, 2, 3])))
            assert len(blocks) == 0
        with connect(spec.shards[0], wire=WireFormat(compression="zstd")) as store:
            store.exchange(None, Pull(batch(1)[0]))
            assert len(blocks) == 0
        servers[0].service.address = "unix:/where/the/shard/really/is"
        with connect(spec.shards[0]) as store:
            store.exchange(None, Pull(batch(1)[0]))
            assert len(blocks) == 0


class LostAnswer(grpc.RpcError):
    """What a call raises whose answer did not come."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "answer lost"

    def trailing_metadata(self):
        return ()


@pytest.mark.parametrize("bells", [0, 16])
def test_call_without_an_answer_is_repeated_without_the_memory_that_the_shard_may_still_use(
    tmp_path, monkeypatch, bells
):
    spec = make_spec(tmp_path)
    with running_shards(spec, NativeTableGroup) as servers, connect(spec.shards[0], patience=PATIENCE) as store:
        servers[0].service.doorbells.most = bells
        blocks = servers[0].service.shared_blocks
        store.ensure_tables(TABLES)
        store.exchange(None, Pull(batch(0)[0]))
        (first,) = blocks._blocks
        link = store._links.link(0)
        assert link._block.bell.is_connected == (bells > 0)
        attempt, ring, sent = link._try, ClientBlock.call, []

        def lose_first_answer(method, data, timeout):
            answer = attempt(method, data, timeout)
            if method == "Exchange":
                sent.append(data)
                if len(sent) == 1:
                    raise LostAnswer
            return answer

        def lose_first_ring(block, data, seconds):
            answer = ring(block, data, seconds)
            sent.append(data)
            if len(sent) == 1:
                raise TimeoutError
            return answer

        monkeypatch.setattr(link, "_try", lose_first_answer)
        monkeypatch.setattr(link, "_try_again", lose_first_answer)
        monkeypatch.setattr(ClientBlock, "call", lose_first_ring)
        answer = store.exchange(push_of(PushToken(1, 1, 0), batch(0)), Pull(batch(0)[0]))
        assert (answer.report.applied, answer.report.duplicate) == (0, 16)
        assert [pb.ExchangeRequest.FromString(data).HasField("shared") for data in sent] == [True, False]
        assert set(blocks._blocks) <= {first}
        again = store.exchange(push_of(PushToken(1, 1, 1), batch(1)), Pull(batch(0)[0]))
        assert again.report.applied == 16
        (second,) = blocks._blocks
        assert second != first
    with LocalStore(4) as local:
        local.ensure_tables(TABLES)
        expected = local.exchange(push_of(PushToken(1, 1, 0), batch(0)), Pull(batch(0)[0])).rows
        assert answer.rows.values.tobytes() == expected.values.tobytes()


def test_shard_that_has_lost_the_block_gets_the_arrays_themselves(tmp_path):
    spec = make_spec(tmp_path)
    with running_shards(spec, NativeTableGroup) as servers, connect(spec.shards[0]) as store:
        blocks = servers[0].service.shared_blocks
        store.ensure_tables(TABLES)
        store.exchange(None, Pull(batch(0)[0]))
        blocks.remove(next(iter(blocks._blocks)))
        assert store.exchange(push_of(PushToken(1, 1, 0), batch(0)), None).report.applied == 16
        assert len(blocks) == 0
        assert store.exchange(push_of(PushToken(1, 1, 1), batch(0)), None).report.applied == 16
        assert len(blocks) == 1


def test_exchange_with_more_than_the_memory_holds_goes_through_the_socket(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "HALF", 64 << 10)
    spec = make_spec(tmp_path)
    with running_shards(spec, NativeTableGroup), connect(spec.shards[0]) as store:
        through_socket = train(store, 2)
    with LocalStore(4) as local:
        alone = train(local, 2)
    for (rows, _), (exact, _) in zip(through_socket, alone, strict=True):
        assert rows.values.tobytes() == exact.values.tobytes()


def test_system_that_gives_no_memory_to_share_is_served_through_the_socket(tmp_path, monkeypatch):
    def refuse(name, flags):
        raise PermissionError("no memfd in this sandbox")

    monkeypatch.setattr(os, "memfd_create", refuse)
    spec = make_spec(tmp_path)
    with running_shards(spec, NativeTableGroup) as servers, connect(spec.shards[0]) as store:
        assert len(train(store, 2)) == 2
        assert len(servers[0].service.shared_blocks) == 0


def request_of(client_block, **changes):
    request = client_block.request(pb.CallHeader())
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def test_only_a_sealed_block_of_the_process_that_says_so_is_mapped():
    blocks, mine = SharedBlocks(), ClientBlock()
    number = mine.number.to_bytes(8, "little")
    unsealed, shorter = os.memfd_create("unsealed"), os.memfd_create("shorter", os.MFD_ALLOW_SEALING)
    for file, size in ((unsealed, BLOCK_BYTES), (shorter, BLOCK_BYTES // 2)):
        os.ftruncate(file, size)
        os.pwrite(file, number, 0)
    fcntl.fcntl(shorter, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    reader, writer = os.pipe()
    try:
        for changes in (
            {"descriptor": unsealed},
            {"descriptor": shorter},
            {"descriptor": reader},
            {"descriptor": 1 << 20},
            {"process": 1 << 30},
            {"block": mine.number ^ 2},
            {"bytes": 0},
            {"bytes": 8},
            {"bytes": BLOCK_BYTES + 1},
        ):
            assert blocks.add(request_of(mine, **changes)) is None, changes
        assert len(blocks) == 0
        assert blocks.add(request_of(mine)) is not None
    finally:
        for file in (unsealed, shorter, reader, writer):
            os.close(file)
        mine.close()


def test_places_outside_the_block_are_refused():
    blocks, mine = SharedBlocks(), ClientBlock()
    assert blocks.add(request_of(mine)) is not None
    placed = mine.place([(16, np.arange(5, dtype=np.uint64)), (17, b"abc")], 100)
    fields = blocks.fields(placed)
    assert bytes(fields[16]) == np.arange(5, dtype=np.uint64).tobytes()
    assert bytes(fields[17]) == b"abc"
    assert fields[16].readonly
    blocks.reply_room(placed, 3)[:] = [7, 8, 9]
    assert bytes(mine.reply(3)) == bytes([7, 8, 9])
    assert blocks.reply_room(placed, HALF + 1) is None
    assert mine.place([(16, b"")], HALF + 1) is None
    for changes in (
        {"offsets": [64, BLOCK_BYTES]},
        {"offsets": [64, (1 << 64) - 64]},
        {"sizes": [40, 1 << 63]},
        {"offsets": [64, 65]},
        {"sizes": [40]},
    ):
        wrong = pb.SharedArrays()
        wrong.CopyFrom(placed)
        for name, values in changes.items():
            getattr(wrong, name)[:] = values
        with pytest.raises(WireFormatError):
            blocks.fields(wrong)
    for offset, size in ((BLOCK_BYTES, 64), (HALF, HALF + 64), (HALF + 1, 8)):
        with pytest.raises(WireFormatError):
            blocks.reply_room(pb.SharedArrays(block=mine.number, reply_offset=offset, reply_bytes=size), 1)
    with pytest.raises(SharedMemoryGoneError):
        blocks.fields(pb.SharedArrays(block=mine.number + 1))
    mine.close()


OWNER = """
import sys
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.shared_memory import ClientBlock
block = ClientBlock()
print(block.request(pb.CallHeader()).SerializeToString().hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_block_of_a_process_that_is_gone_is_dropped_when_the_next_one_comes():
    blocks = SharedBlocks()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        request = pb.ShareMemoryRequest.FromString(bytes.fromhex(other.stdout.readline().decode()))
        assert blocks.add(request) is not None
        other.kill()
    mine = ClientBlock()
    assert blocks.add(request_of(mine)) is not None
    assert list(blocks._blocks) == [mine.number]
    mine.close()


def test_blocks_beyond_the_limit_push_out_the_one_used_longest_ago(monkeypatch):
    monkeypatch.setattr(shared_memory, "MOST_BLOCKS", 2)
    blocks, three = SharedBlocks(), [ClientBlock() for _ in range(3)]
    for block in three[:2]:
        assert blocks.add(request_of(block)) is not None
    blocks.fields(pb.SharedArrays(block=three[0].number))
    assert blocks.add(request_of(three[2])) is not None
    assert list(blocks._blocks) == [three[0].number, three[2].number]
    for block in three:
        block.close()


def test_a_block_that_is_mapped_holds_no_descriptor():
    """A shard maps up to 1,024 of them, as many as a process mostly may have descriptors."""
    blocks, mine = SharedBlocks(), [ClientBlock() for _ in range(8)]
    before = len(os.listdir("/proc/self/fd"))
    kept = [blocks.add(request_of(block)) for block in mine]
    assert len(os.listdir("/proc/self/fd")) == before
    kept[0][100] = 7
    assert mine[0]._bytes[100] == 7
    view = kept[0][90:110]
    del kept
    for block in mine:
        blocks.remove(block.number)
        block.close()
    assert view[10] == 7  # as long as there is an array over it


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_try_has_time_for_its_bytes_through_shared_memory_too(tmp_path, monkeypatch, in_memory):
    seen, ring, attempt = [], ShardLink._ring, ShardLink._try
    spec, data = make_spec(tmp_path), batch(0)

    def noting_ring(link, block, request, timeout):
        seen.append(timeout)
        return ring(link, block, request, timeout)

    def noting(link, method, request, timeout):
        if method == "Exchange":
            seen.append(timeout)
        return attempt(link, method, request, timeout)

    monkeypatch.setattr(ShardLink, "_ring", noting_ring)
    monkeypatch.setattr(ShardLink, "_try", noting)
    patience = Patience(call_seconds=100, attempt_seconds=2, seconds_per_megabyte=10)
    with running_shards(spec, NativeTableGroup), connect(spec.shards[0], patience=patience) as store:
        store._links.link(0)._wants_block = store._links.link(0)._shares_memory = in_memory
        store.ensure_tables(TABLES)
        store.exchange(push_of(PushToken(1, 1, 0), data), Pull(data[0]))
    (timeout,) = seen
    rows = 3000 * 19 * 4  # pushed and pulled; keys twice, occurrences, clicks
    assert timeout == pytest.approx(2 + 10 * (2 * rows + 2 * 6000 * 8 + 2 * 6000 * 4) / 1e6, rel=0.01)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 0, -1, 1e10, True, "5"])
@pytest.mark.parametrize("field", ["call_seconds", "attempt_seconds", "connect_seconds"])
def test_patience_that_is_no_time_is_refused_by_field(field, seconds):
    with pytest.raises(ValueError, match=rf"^expected seconds from 0.001 to 1e\+09, got .* \(Patience.{field}\)$"):
        Patience(**{field: seconds})
    with pytest.raises(ValueError, match="seconds_per_megabyte"):
        Patience(seconds_per_megabyte=-1)


def test_the_longest_patience_waits(tmp_path):
    spec, longest = make_spec(tmp_path), 1e9
    patience = Patience(longest, longest, longest, longest)
    with running_shards(spec, NativeTableGroup), connect(spec.shards[0], patience=patience) as store:
        assert len(train(store, 1)) == 1
        assert len(store.exchange(None, Pull(TableKeys.of("wide", [1]))).rows.values) == 16


def test_connections_leave_no_descriptor_and_no_mapping(tmp_path):
    def mappings():
        with open("/proc/self/maps", encoding="ascii") as maps:
            return sum("memfd:embershard" in line for line in maps)

    spec = make_spec(tmp_path)
    before = len(os.listdir("/proc/self/fd")), mappings()
    with running_shards(spec, NativeTableGroup) as servers:
        for _ in range(20):
            with connect(spec.shards[0]) as store:
                store.ensure_tables(TABLES)
                store.exchange(None, Pull(batch(0)[0]))
        assert len(servers[0].service.shared_blocks) == 0
    assert mappings() == before[1]
    assert len(os.listdir("/proc/self/fd")) <= before[0] + 5
