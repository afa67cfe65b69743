"""Mutations as bytes: every kind comes back as it was, and the bytes do not change from version to version."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.embedding.store import PushToken
from embershard.embedding.table_config import Adam, ColumnBlock, Ftrl, MinCount, TableConfig, Ttl, Zeros
from embershard.embedding.table_group import AppliedMemory, TableKeys, TableRows, TabletSnapshot, UpdateStep
from embershard.ps_server import mutation as m
from embershard.ps_server.mutation_encoding import (
    KINDS,
    SNAPSHOT_NUMBERS,
    MalformedMutationError,
    decode_mutation,
    encode_mutation,
)

TOKEN = PushToken((1 << 64) - 1, (1 << 63) | 5, 7)
KEYS = TableKeys.concat({"user": np.array([3, 1, (1 << 64) - 1], np.uint64), "dense/w": np.array([0], np.uint64)})
MASK = np.array([True, False, True, True])
NONE = np.zeros(4, np.bool_)
STEP = UpdateStep(examples=4096, step=12, now=1_700_000_000, lr_scale=0.1, unit=TOKEN.unit, batch=7)
TABLE = TableConfig(
    name="user",
    blocks=(
        ColumnBlock(name="linear", dim=1, initializer=Zeros(), optimizer=Ftrl(lr=0.1)),
        ColumnBlock(name="factors", dim=3, optimizer=Adam()),
    ),
    dtype="bfloat16",
    seed=(1 << 64) - 1,
    admission=MinCount(count=3),
    eviction=(Ttl(ttl_seconds=60),),
)


def table_rows(count, dtype):
    numbers = np.arange(count, dtype=np.uint32)
    return TableRows(
        keys=numbers.astype(np.uint64) << np.uint64(40),
        weights=np.arange(count * 4).reshape(count, 4).astype(dtype),
        state=(np.arange(count * 3) / 4).astype(np.float32).reshape(count, 3),
        count=numbers,
        touched_at=numbers + np.uint32(1),
        version=numbers + np.uint32(2),
        admission_keys=numbers[:1].astype(np.uint64),
        admission_counts=numbers[:1],
        erased_keys=numbers[:2].astype(np.uint64),
        erased_versions=numbers[:2],
    )


SNAPSHOT = TabletSnapshot(
    tablet=3,
    tablet_bits=2,
    version=9,
    since_version=None,
    push_count=77,
    erased_since=4,
    tables={"user": table_rows(5, np.uint16), "item": table_rows(0, np.float32), "half": table_rows(3, np.float16)},
    applied=AppliedMemory(np.array([5, 6], np.uint64), np.array([1, 2], np.uint64), np.array([10, 0], np.int64)),
)
GRADIENTS = (np.arange(13) / 8 - 1).astype(np.float32)
MUTATIONS = [
    m.ApplyPush(TOKEN, KEYS, GRADIENTS, np.arange(4, dtype=np.uint32), STEP, MASK, ~MASK, 0.25),
    m.AssignRows(TOKEN, KEYS, GRADIENTS, None, True, 5, MASK),
    m.AssignRows(TOKEN, KEYS, GRADIENTS, GRADIENTS[:3], False, 0, MASK),
    m.EraseRows(TOKEN, KEYS, MASK),
    m.EvictRows(TOKEN, KEYS),
    m.EnsureTables((TABLE, TableConfig(name="item", blocks=(ColumnBlock(dim=8),)))),
    m.DropTable("user"),
    m.DropTable("user", TOKEN),
    m.CutTablet(TOKEN, 3),
    m.ImportTablet(SNAPSHOT, TOKEN),
    m.ImportTablet(dataclasses.replace(SNAPSHOT, since_version=4, applied=AppliedMemory.empty())),
    m.DropTablet(3),
    m.CompleteUnit((1 << 64) - 1),
    m.RaiseLowestLease(1 << 40),
    m.AdoptMap(MASK, 5, 6),
    m.RefusePush(TOKEN, NONE),
]
BFLOAT16_PUSH = dataclasses.replace(MUTATIONS[0], gradients=(GRADIENTS.view(np.uint32) >> 16).astype(np.uint16))


def encoded(mutation):
    kind, buffers = encode_mutation(mutation)
    return kind, np.frombuffer(b"".join(buffers), np.uint8).copy()


def same(left, right):
    """Equality that knows arrays, dtypes and shapes."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    return type(left) is type(right) and left == right


def with_clicks(mutation):
    """The push, or the import, with clicks beside its other counts."""
    if isinstance(mutation, m.ApplyPush):
        return dataclasses.replace(mutation, clicks=np.array([0, 1, 0, 3], np.uint32))
    tables = {
        name: dataclasses.replace(rows, clicks=rows.count // 2) for name, rows in mutation.snapshot.tables.items()
    }
    return dataclasses.replace(mutation, snapshot=dataclasses.replace(mutation.snapshot, tables=tables))


@pytest.mark.parametrize("mutation", [MUTATIONS[0], m.ImportTablet(SNAPSHOT, TOKEN)], ids=lambda m: type(m).__name__)
def test_clicks_come_back_and_take_no_byte_where_there_are_none(mutation):
    clicked = with_clicks(mutation)
    kind, body = encoded(clicked)
    assert same(decode_mutation(kind, body), clicked)
    assert b"clicks" in body.tobytes()
    assert b"clicks" not in encoded(mutation)[1].tobytes()


@pytest.mark.parametrize(
    "mutation", [*MUTATIONS, BFLOAT16_PUSH, m.CompleteUnit(5, 1 << 40)], ids=lambda mutation: type(mutation).__name__
)
def test_mutation_comes_back_as_it_was(mutation):
    kind, body = encoded(mutation)
    assert kind == KINDS[type(mutation)]
    assert len(body) % 8 == 0
    assert same(decode_mutation(kind, body), mutation)


def test_every_kind_of_mutation_has_a_number_and_a_test():
    assert set(KINDS) == set(m.Mutation.__args__) == {type(mutation) for mutation in MUTATIONS}
    assert sorted(KINDS.values()) == list(range(1, len(KINDS) + 1))


def test_every_field_of_a_snapshot_is_in_its_record():
    names = {field.name for field in dataclasses.fields(TabletSnapshot)}
    # Where it stands in the log it was taken beside says nothing in the log it is imported by.
    assert names == {*SNAPSHOT_NUMBERS, "tables", "applied", "log_position"}


def test_bytes_are_those_of_format_1():
    digest = hashlib.sha256()
    for mutation in MUTATIONS:
        if not isinstance(mutation, m.EnsureTables):  # its bytes follow the fields a table's configuration has
            digest.update(encoded(mutation)[1].tobytes())
    assert digest.hexdigest() == "8759404e1fa45888d4dba93b07b90cced0b65c41d7ecc9f71beb6c6e8793e57d"


@settings(max_examples=50, deadline=None)
@given(lr_scale=st.floats(allow_nan=False, allow_infinity=False), count=st.integers(0, 40), bits=st.integers(0, 10))
def test_numbers_come_back_to_the_bit(lr_scale, count, bits):
    keys = TableKeys.of("t", np.arange(count, dtype=np.uint64))
    mask = np.random.default_rng(bits).random(1 << bits) < 0.5
    step = dataclasses.replace(STEP, lr_scale=lr_scale)
    gradients = np.random.default_rng(1).integers(0, 1 << 32, count, np.uint32).view(np.float32)  # NaN patterns too
    push = m.ApplyPush(TOKEN, keys, gradients, np.ones(count, np.uint32), step, mask, mask, lr_scale)
    assert same(decode_mutation(*encoded(push)), push)


def test_number_without_an_exact_form_is_refused():
    push = dataclasses.replace(MUTATIONS[0], late_lr=float("inf"))
    with pytest.raises(ValueError, match="JSON"):
        encode_mutation(push)
    with pytest.raises(ValueError, match="got <f8"):
        encode_mutation(dataclasses.replace(MUTATIONS[0], gradients=np.zeros(13)))


def test_unknown_kind_and_foreign_bytes_are_refused():
    with pytest.raises(MalformedMutationError, match="kind of mutation from 1 to 13, got 14"):
        decode_mutation(14, np.zeros(8, np.uint8))
    kind, body = encoded(MUTATIONS[0])
    for stop in range(0, len(body), 8):
        with pytest.raises(MalformedMutationError):
            decode_mutation(kind, body[:stop])
