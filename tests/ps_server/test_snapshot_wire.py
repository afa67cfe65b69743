"""A tablet on the wire: plain protobuf, whole or a delta, every row type, and what is no tablet."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.embedding.store import PushToken
from embershard.embedding.table_group import AppliedMemory, TableRows, TabletSnapshot
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.errors import WireFormatError
from embershard.ps_server.snapshot_wire import decode_restore, decode_snapshot, encode_restore, encode_snapshot

HEADER = pb.CallHeader(shard=2, generation=3, epoch=4, incarnation=5)
TOKEN = PushToken((1 << 64) - 1, 6, 7)
U32 = np.arange(5, dtype=np.uint32)


def rows_of(dtype, state_width, clicks=False):
    return TableRows(
        np.arange(5, dtype=np.uint64) << np.uint64(60),
        np.arange(15).reshape(5, 3).astype(dtype),
        np.arange(5 * state_width, dtype=np.float32).reshape(5, state_width),
        U32,
        U32 + np.uint32(1),
        U32 + np.uint32(2),
        np.array([7, 9, (1 << 64) - 1], np.uint64),
        np.array([1, 2, 3], np.uint32),
        np.array([8], np.uint64),
        np.array([4], np.uint32),
        U32 if clicks else np.empty(0, np.uint32),
    )


SNAPSHOT = TabletSnapshot(
    3,
    2,
    9,
    None,
    11,
    {
        "wide": rows_of(np.float32, 2, clicks=True),
        "half": rows_of(np.float16, 0),
        "brain": rows_of(np.uint16, 7),
        "empty": TableRows(*(np.array(getattr(rows_of(np.float32, 1), f.name)[:0]) for f in fields(TableRows))),
    },
    AppliedMemory(np.array([1, 2], np.uint64), np.array([3, 4], np.uint64), np.array([5, -6], np.int64)),
    2,
    1 << 40,
)


def assert_same(left, right):
    for name in ("tablet", "tablet_bits", "version", "since_version", "push_count", "erased_since", "log_position"):
        assert getattr(left, name) == getattr(right, name), name
    assert list(left.tables) == list(right.tables)
    pairs = [(left.applied, right.applied), *((left.tables[name], right.tables[name]) for name in left.tables)]
    for ours, theirs in pairs:
        for field in fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            assert (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist()), field.name


@pytest.mark.parametrize("since", [None, 0, 8])
def test_tablet_comes_back_from_a_reply_and_from_a_request(since):
    snapshot = replace(SNAPSHOT, since_version=since)
    message = encode_snapshot(snapshot)
    assert_same(decode_snapshot(message), snapshot)
    header, token, restored = decode_restore(encode_restore(HEADER, TOKEN, message))
    assert (header, token) == (HEADER, TOKEN)
    assert_same(restored, snapshot)


def test_messages_are_plain_protobuf_both_ways():
    library = pb.TabletSnapshot.FromString(encode_snapshot(SNAPSHOT))
    assert [table.table for table in library.tables] == list(SNAPSHOT.tables)
    assert library.tables[1].weights == SNAPSHOT.tables["half"].weights.tobytes()
    assert library.applied_batch == SNAPSHOT.applied.batch.tobytes()
    assert_same(decode_snapshot(library.SerializeToString()), SNAPSHOT)
    request = pb.RestoreRequest.FromString(encode_restore(HEADER, TOKEN, encode_snapshot(SNAPSHOT)))
    assert request.snapshot == library
    assert_same(decode_restore(request.SerializeToString())[2], SNAPSHOT)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("count", "5 rows of table 'wide', 4 of count"),
        ("clicks", "5 rows, 4 clicks"),
        ("admission_counts", "3 admission keys, 2 counts"),
        ("erased_versions", "1 erased keys, 0 versions"),
        ("weights", "cannot reshape"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(name, what):
    message = pb.TabletSnapshot.FromString(encode_snapshot(SNAPSHOT))
    array = getattr(SNAPSHOT.tables["wide"], name)
    setattr(message.tables[0], name, array[:-1].tobytes())
    with pytest.raises(WireFormatError, match=f"expected a snapshot of tablet 3, got: {what}"):
        decode_snapshot(message.SerializeToString())


def test_unknown_row_type_is_refused():
    message = pb.TabletSnapshot.FromString(encode_snapshot(SNAPSHOT))
    message.tables[0].dtype = "float8"
    with pytest.raises(WireFormatError, match="float8"):
        decode_snapshot(message.SerializeToString())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_messages_are_refused_or_make_sense(data):
    message = bytearray(encode_restore(HEADER, TOKEN, encode_snapshot(SNAPSHOT)))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        snapshot = decode_restore(bytes(message[: data.draw(st.integers(0, len(message)))]))[2]
    except WireFormatError:
        return
    for rows in snapshot.tables.values():
        assert len(rows.keys) == len(rows.weights) == len(rows.state) == len(rows.version)
