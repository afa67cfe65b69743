"""Wire: golden bytes, round trips, and bytes that are no message."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.embedding.row_types import dtype_name, narrow_any, widen
from embershard.embedding.store import Exchange, Pull, Push, PushReport, PushToken, Rows
from embershard.embedding.table_group import TableKeys, TableUpdate
from embershard.ps_server import chunks
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.errors import RequestTooLargeError, WireFormatError
from embershard.ps_server.message_fields import join_message, split_message
from embershard.ps_server.wire import (
    ExchangeReplyRoom,
    NormSummary,
    cluster_hash,
    decode_exchange,
    decode_exchange_reply,
    encode_exchange_reply,
    encode_mask,
    encode_token,
    exchange_message,
)
from embershard.ps_server.wire_values import WireFormat, gradient_exponent, pack_values, unpack_values

BITS = 3
HEADER = pb.CallHeader(cluster=cluster_hash("golden"), shard=2, generation=3, epoch=4, incarnation=5)
KEYS = TableKeys.concat({"user": np.array([1, 1 << 63], np.uint64), "item": np.array([7], np.uint64)})
PUSH = Push(
    PushToken((1 << 64) - 1, 6, 7),
    KEYS,
    np.array([0.5, -1.0, 2.0], np.float32),
    np.array([1, 2, 3], np.uint32),
    8,
    9,
    10,
    0.25,
    np.arange(8, dtype=np.uint64),
    True,
)
TABLETS = np.array([1, 0, 0, 0, 1, 0, 0, 1], np.bool_)

GOLDEN_EXCHANGE = bytes.fromhex(
    "0a1809dd56de4137951d9c100218032004290500000000000000124a0a1409ffffffffffffffff1106000000000000001807"
    "12100a04757365720a046974656d1202020118082009280a31000000000000d03f3801520f0a047573657211000000000000"
    "e03f1a140a100a04757365720a046974656d1202020110027a07000000000000008201180100000000000000000000000000"
    "008007000000000000007a030000008a010c0000003f000080bf000000407a070000000000000092010c0100000002000000"
    "030000007a07000000000000009a014000000000000000000100000000000000020000000000000003000000000000000400"
    "0000000000000500000000000000060000000000000007000000000000007a03000000a20101917a020000aa011801000000"
    "0000000000000000000000800700000000000000"
)
GOLDEN_REPLY = bytes.fromhex(
    "0a4c08011002180320042a240a0475736572100118022003280430053a100100000000000000ffffffffffffffff4006321a"
    "0a046974656d11000000000000f03f19000000000000e03f2009380110017a03000000820106003f80bf00407a0500000000"
    "008a014000000000000000000100000000000000020000000000000003000000000000000400000000000000050000000000"
    "000006000000000000000700000000000000"
)

GOLDEN_EVICT = bytes.fromhex(
    "0a1809dd56de4137951d9c100218032004290500000000000000121409ffffffffffffffff11060000000000000018071809208020"
)


def test_golden_exchange():
    """Bytes that a shard of any version has to understand; a change here is a new protocol number."""
    data = join_message(
        *exchange_message(HEADER, PUSH, Pull(KEYS, "unseen"), WireFormat(), tablets=TABLETS, norms={"user": 0.5})
    )
    assert data.hex() == GOLDEN_EXCHANGE.hex()
    assert same_push(decode_exchange(GOLDEN_EXCHANGE, BITS).push, PUSH)


def test_golden_widths():
    """Field 3 of the tables of pushes and pulls; a caller that does not tell them is not asked."""
    data = join_message(*exchange_message(HEADER, PUSH, Pull(KEYS), WireFormat(), widths={"item": 9, "user": 300}))
    small = pb.ExchangeRequest.FromString(data)
    assert small.push.tables.SerializeToString().hex() == "0a04757365720a046974656d120202011a03ac0209"
    assert small.pull.tables == small.push.tables
    call = decode_exchange(data, BITS)
    assert call.push_widths == call.pull_widths == (300, 9)
    assert decode_exchange(GOLDEN_EXCHANGE, BITS).push_widths == ()
    small.pull.tables.widths.append(1)
    with pytest.raises(WireFormatError, match="expected one width for each of 2 tables, got 3"):
        decode_exchange(small.SerializeToString(), BITS)


def test_golden_reply():
    report = PushReport(1, 2, 3, 4, {"user": TableUpdate(1, 2, 3, 4, 5, 6)}, {"user": (1, (1 << 64) - 1)})
    rows = Rows(KEYS, np.array([0.5, -1.0, 2.0], np.float32), np.arange(8, dtype=np.uint64))
    norms = {"item": NormSummary(1.0, 0.5, 9)}
    data = encode_exchange_reply(Exchange(report, rows), WireFormat("bfloat16"), norms, wants_checkpoint=True)
    assert data.hex() == GOLDEN_REPLY.hex()
    assert decode_exchange_reply(GOLDEN_REPLY, Pull(KEYS), BITS).exchange.report == report


def test_golden_evict():
    bounded = pb.EvictRequest(header=HEADER, token=encode_token(PUSH.token), now=9, max_rows=4096)
    whole = pb.EvictRequest(header=HEADER, token=encode_token(PUSH.token), now=9)
    assert bounded.SerializeToString().hex() == GOLDEN_EVICT.hex()
    assert whole.SerializeToString().hex() == GOLDEN_EVICT.removesuffix(bytes.fromhex("208020")).hex()
    mask = encode_mask(np.arange(1 << BITS) % 2 == 0)
    some = pb.EvictRequest(header=HEADER, token=encode_token(PUSH.token), now=9, tablets=mask)
    tail = bytes([0x2A, len(mask), *mask])
    assert some.SerializeToString().hex() == whole.SerializeToString().hex() + tail.hex()


def same_keys(left, right):
    return (
        left.tables == right.tables
        and left.keys.tobytes() == right.keys.tobytes()
        and left.splits.tobytes() == right.splits.tobytes()
    )


def same_push(left, right):
    arrays = ("occurrences", "seen_pushes", "clicks")
    gradients = [widen(dtype_name(push.gradients), push.gradients) for push in (left, right)]
    return (
        same_keys(left.keys, right.keys)
        and np.array_equal(*gradients)
        and all(np.array_equal(getattr(left, name), getattr(right, name)) for name in arrays)
        and (left.token, left.examples, left.step, left.now, left.lr_scale, left.recomputed)
        == (right.token, right.examples, right.step, right.now, right.lr_scale, right.recomputed)
    )


@pytest.mark.parametrize("wire", [WireFormat(), WireFormat("float16", "zstd"), WireFormat("bfloat16")])
def test_exchange_comes_back(wire):
    data = join_message(
        *exchange_message(HEADER, PUSH, Pull(KEYS, "unseen"), wire, tablets=TABLETS, norms={"user": 0.5})
    )
    call = decode_exchange(data, BITS)
    assert call.header == HEADER
    assert same_push(call.push, PUSH)
    assert same_keys(call.pull.keys, KEYS)
    assert call.pull.absent == "unseen"
    assert call.tablets.tolist() == TABLETS.tolist()
    assert call.rows_format == wire
    assert call.norms == {"user": 0.5}


@pytest.mark.parametrize("wire", [WireFormat(), WireFormat("float16", "zstd")])
def test_clicks_come_back_and_stay_away_where_there_are_none(wire):
    clicked = replace(PUSH, clicks=np.array([1, 0, 3], np.uint32))
    plain, data = (join_message(*exchange_message(HEADER, push, None, wire)) for push in (PUSH, clicked))
    assert same_push(decode_exchange(data, BITS).push, clicked)
    assert decode_exchange(plain, BITS).push.clicks is None
    if wire == WireFormat():
        assert np.frombuffer(pb.ExchangeRequest.FromString(data).push_clicks, "<u4").tolist() == [1, 0, 3]


@pytest.mark.parametrize("wire", [WireFormat(), WireFormat("float16", "zstd"), WireFormat("bfloat16")])
def test_answer_comes_back(wire):
    report = PushReport(1, 2, 3, 4, {"user": TableUpdate(1, 2, 3, 4, 5, 6)}, {"user": (1, (1 << 64) - 1)})
    rows = Rows(KEYS, np.array([0.5, -1.0, 2.0], np.float32), np.arange(8, dtype=np.uint64))
    norms = {"item": NormSummary(1.0, 0.5, 9)}
    data = encode_exchange_reply(Exchange(report, rows), wire, norms, wants_checkpoint=True)
    answer = decode_exchange_reply(data, Pull(KEYS), BITS)
    assert answer.exchange.report == report
    assert answer.exchange.rows.values.tolist() == [0.5, -1.0, 2.0]
    assert answer.exchange.rows.pushes.tolist() == list(range(8))
    assert answer.norms == norms
    assert answer.wants_checkpoint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("writes", ["into the message", "elsewhere"])
def test_reply_whose_rows_are_written_in_place_has_the_bytes_of_one_that_is_put_together(dtype, writes):
    report = PushReport(1, 2, 3, 4, {"user": TableUpdate(1, 2, 3, 4, 5, 6)}, {"user": (1, 7)})
    values, pushes = np.array([0.3, -1.7, 2.0, 1e-40, np.inf], np.float32), np.arange(8, dtype=np.uint64)
    norms = {"item": NormSummary(1.0, 0.5, 9)}
    expected = encode_exchange_reply(Exchange(report, Rows(KEYS, values, pushes)), WireFormat(dtype), norms)
    reply = ExchangeReplyRoom(report, dtype, 5, 8, norms)
    if writes == "into the message":
        reply.values[:] = pack_values(values, dtype)
        assert reply.finish(Rows(KEYS, reply.values, pushes)).hex() == expected.hex()
    else:
        assert reply.finish(Rows(KEYS, values, pushes)).hex() == expected.hex()
    empty = Rows(KEYS, np.empty(0, np.float32), pushes)
    assert ExchangeReplyRoom(None, dtype, 0, 8).finish(empty) == encode_exchange_reply(
        Exchange(None, empty), WireFormat(dtype)
    )


def test_message_is_plain_protobuf_with_aligned_arrays():
    """What a client in another language sees: the generated code alone reads it, and arrays start at multiples of 8."""
    data = join_message(*exchange_message(HEADER, PUSH, Pull(KEYS), WireFormat(), tablets=TABLETS))
    message = pb.ExchangeRequest.FromString(data)
    assert np.frombuffer(message.push_keys, "<u8").tolist() == [1, 1 << 63, 7]
    assert np.frombuffer(message.gradients, "<f4").tolist() == [0.5, -1.0, 2.0]
    assert list(message.push.tables.counts) == [2, 1]
    _, arrays = split_message(data, pb.ExchangeRequest())
    for view in arrays.values():
        start = np.frombuffer(view, np.uint8).ctypes.data - np.frombuffer(data, np.uint8).ctypes.data
        assert start % 8 == 0
    assert decode_exchange(message.SerializeToString(), BITS).push.gradients.tolist() == [0.5, -1.0, 2.0]


def test_bfloat16_rounds_to_nearest_even():
    exact = np.array([1.0, -0.0, 3.140625, np.inf, -np.inf], np.float32)
    assert unpack_values(pack_values(exact, "bfloat16"), "bfloat16").tobytes() == exact.tobytes()
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    rounded = unpack_values(pack_values(halfway, "bfloat16"), "bfloat16")
    assert rounded.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]
    assert np.isnan(unpack_values(pack_values(np.array([np.nan, -np.nan], np.float32), "bfloat16"), "bfloat16")).all()
    random = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    assert np.abs(unpack_values(pack_values(random, "bfloat16"), "bfloat16") / random - 1).max() <= 2**-8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_value_and_its_neighbours_agree_with_numpy(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16) if dtype == "float16" else bits
    wide = unpack_values(halves, dtype)
    expected = halves.astype(np.float32) if dtype == "float16" else (bits.astype(np.uint32) << 16).view(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(wide[~nan], expected[~nan])
    assert np.isnan(wide[nan]).all()
    packed = pack_values(wide, dtype)
    assert np.array_equal(packed.view(np.uint16)[~nan], bits[~nan])
    assert np.isnan(unpack_values(packed[nan], dtype)).all()
    if dtype == "float16":
        random = np.random.default_rng(0).normal(0, 100, 10_000).astype(np.float32)
        assert pack_values(random, dtype).tobytes() == random.astype(np.float16).tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_values_of_any_bits_are_narrowed_as_numpy_defines_it(dtype):
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1 << 16, np.uint32)
    edges = np.array([0x7F7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0xFF800001, 0x477FEFFF, 0x477FF000, 1], np.uint32)
    values = np.concatenate([bits, edges]).view(np.float32)
    assert pack_values(values, dtype).tobytes() == narrow_any(dtype, values).tobytes()


def test_float16_gradients_are_scaled_by_a_power_of_two():
    tiny = np.array([3e-9, -1e-9, 0.0], np.float32)
    exponent = gradient_exponent(tiny, "float16")
    back = unpack_values(pack_values(tiny, "float16", exponent), "float16", exponent)
    assert np.allclose(back, tiny, rtol=2**-10)
    large = np.array([1e30, np.inf, np.nan], np.float32)
    exponent = gradient_exponent(large, "float16")
    back = unpack_values(pack_values(large, "float16", exponent), "float16", exponent)
    assert np.isclose(back[0], 1e30, rtol=2**-10)
    assert np.isinf(back[1])
    assert np.isnan(back[2])
    assert gradient_exponent(np.zeros(3, np.float32), "float16") == 0


@given(st.binary(max_size=200))
@settings(max_examples=120, deadline=None)
def test_random_bytes_are_refused_or_make_sense(data):
    try:
        call = decode_exchange(data, BITS)
    except WireFormatError:
        return
    assert call.push is None or len(call.push.keys.keys) == len(call.push.occurrences)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_damaged_messages_are_refused_or_make_sense(data):
    good = bytearray(join_message(*exchange_message(HEADER, PUSH, Pull(KEYS), WireFormat(), tablets=TABLETS)))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            call = decode_exchange(damaged, BITS)
        except WireFormatError:
            continue
        assert call.push is None or len(call.push.keys.keys) == len(call.push.occurrences)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m.push.tables.counts.append(1), "one count for each table"),
        (lambda m: m.push.tables.tables.__setitem__(0, "item"), "distinct tables"),
        (lambda m: setattr(m, "push_keys", m.push_keys + b"x"), "push_keys as 8-byte values"),
        (lambda m: setattr(m, "push_keys", m.push_keys + b"x" * 8), "expected 3 values of push_keys, got 4"),
        (lambda m: setattr(m, "occurrences", b""), "occurrences"),
        (lambda m: setattr(m, "push_clicks", b"x" * 8), "expected push_clicks of 3 keys or none, got 2"),
        (lambda m: setattr(m, "seen_pushes", b"x" * 8), "seen_pushes of 8 tablets"),
        (lambda m: setattr(m, "push_tablets", b"xx"), "tablet mask of 1 bytes"),
        (lambda m: setattr(m.push.token, "batch", -1), "batch from 0"),
        (lambda m: setattr(m, "compression", 1), "zstd data"),
        (lambda m: setattr(m.push, "dtype", 7), "push.dtype below 3, got 7"),
    ],
)
def test_message_that_contradicts_itself_is_refused(change, what):
    message = pb.ExchangeRequest.FromString(join_message(*exchange_message(HEADER, PUSH, Pull(KEYS), WireFormat())))
    change(message)
    with pytest.raises(WireFormatError, match=what):
        decode_exchange(message.SerializeToString(), BITS)


def test_decompression_is_bounded():
    zeros = Push(
        PushToken(1, 1, 1),
        TableKeys.of("t", range(9000)),
        np.zeros(90000, np.float32),
        np.ones(9000, np.uint32),
        1,
        1,
        0,
    )
    data = join_message(*exchange_message(HEADER, zeros, None, WireFormat(compression="zstd")))
    with pytest.raises(RequestTooLargeError, match="expected at most 100000 bytes after decompression, got 360000"):
        decode_exchange(data, BITS, max_bytes=100_000)


def test_chunks_come_back_and_bad_ones_are_refused(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)
    data = bytes(range(256)) * 40
    pieces = list(chunks.cut(data, "Exchange"))
    assert len(pieces) == 11
    assert chunks.collect(pieces, 1 << 20) == ("Exchange", data)
    assert chunks.collect(chunks.cut(b""), 10) == ("", b"")
    with pytest.raises(RequestTooLargeError, match="got 10240"):
        chunks.collect(iter(pieces), 9999)
    with pytest.raises(WireFormatError, match="stopped early"):
        chunks.collect(pieces[:-1], 1 << 20)
    with pytest.raises(WireFormatError, match="or more"):
        chunks.collect([*pieces, pieces[-1]], 1 << 20)


def test_small_fields_survive_beside_arrays():
    data = join_message(pb.ExchangeReply(dtype="FLOAT16"), [(16, b""), (17, np.arange(3, dtype=np.uint64))])
    small, arrays = split_message(data, pb.ExchangeReply())
    assert small.dtype == pb.FLOAT16
    assert 16 not in arrays
    assert bytes(arrays[17]) == np.arange(3, dtype=np.uint64).tobytes()
