"""Mutations as bytes: JSON for what is small, arrays as they lie in memory; see docs/push_log_format.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ..embedding.store import PushToken
from ..embedding.table_config import TableConfig
from ..embedding.table_group import AppliedMemory, TableKeys, TableRows, TabletSnapshot, UpdateStep
from .mutation import (
    ALL_LEASES,
    AdoptMap,
    ApplyPush,
    AssignRows,
    CompleteUnit,
    CutTablet,
    DropTable,
    DropTablet,
    EnsureTables,
    EraseRows,
    EvictRows,
    ImportTablet,
    Mutation,
    RaiseLowestLease,
    RefusePush,
)

Buffer = bytes | memoryview
Array = npt.NDArray[Any]

KINDS: dict[type[Mutation], int] = {
    ApplyPush: 1,
    AssignRows: 2,
    EraseRows: 3,
    EvictRows: 4,
    EnsureTables: 5,
    DropTable: 6,
    CutTablet: 7,
    ImportTablet: 8,
    DropTablet: 9,
    CompleteUnit: 10,
    RaiseLowestLease: 11,
    AdoptMap: 12,
    RefusePush: 13,
}
"""Numbers on the disk: never changed, never used again."""

_HEAD = struct.Struct("<II")
_ALIGNMENT = 8
_DTYPES = ("<f4", "<f2", "<u2", "<u4", "<u8", "<i8", "|u1")
_MASK, _KEYS, _CLICKS = "mask", "keys", "clicks"
SNAPSHOT_NUMBERS = ("tablet", "tablet_bits", "version", "since_version", "push_count", "erased_since")


class MalformedMutationError(ValueError):
    """The bytes are no mutation of this format; the message says what is wrong with them."""


def encode_mutation(mutation: Mutation) -> tuple[int, list[Buffer]]:
    """Kind number, and the buffers whose bytes one after another are the body; the arrays are not copied.

    Raises: ValueError where a value has no exact form (a number that is not finite, an array of another dtype)."""
    body = _Body()
    _WRITERS[type(mutation)](body, mutation)
    return KINDS[type(mutation)], body.buffers()


def decode_mutation(kind: int, data: npt.NDArray[np.uint8]) -> Mutation:
    """The mutation in `data`; its arrays are views. Raises: MalformedMutationError."""
    reader = _READERS.get(kind)
    if reader is None:
        raise MalformedMutationError(f"expected a kind of mutation from 1 to {max(_READERS)}, got {kind}")
    try:
        return reader(_Parts(data))
    except (KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        raise MalformedMutationError(f"expected the fields of a mutation of kind {kind}, got {error!r}") from error


class _Body:
    """Fields and arrays of one mutation, in the order they are put."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._layout: list[tuple[str, str, list[int]]] = []
        self._arrays: list[Array] = []

    def put_array(self, name: str, array: Array) -> None:
        dtype = array.dtype.newbyteorder("<").str
        if dtype not in _DTYPES:
            raise ValueError(f"expected {name} of one of {_DTYPES}, got {dtype}")
        self._layout.append((name, dtype, list(array.shape)))
        self._arrays.append(np.ascontiguousarray(array, dtype))

    def put_mask(self, name: str, mask: npt.NDArray[np.bool_]) -> None:
        self.fields[name] = len(mask)
        self.put_array(f"{name}.{_MASK}", np.packbits(mask, bitorder="little"))

    def put_token(self, token: PushToken | None) -> None:
        self.fields["token"] = None if token is None else [int(token.unit), int(token.lease), int(token.batch)]

    def put_keys(self, keys: TableKeys) -> None:
        self.fields["tables"] = list(keys.tables)
        self.fields["splits"] = keys.splits.tolist()
        self.put_array(_KEYS, keys.keys)

    def buffers(self) -> list[Buffer]:
        text = json.dumps({**self.fields, "arrays": self._layout}, separators=(",", ":"), allow_nan=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        buffers: list[Buffer] = [_HEAD.pack(len(text), 0) + text]
        for array in self._arrays:
            if array.nbytes:
                buffers.append(array.data.cast("B"))
            if array.nbytes % _ALIGNMENT:
                buffers.append(bytes(-array.nbytes % _ALIGNMENT))
        return buffers


class _Parts:
    """Fields and arrays of a body."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        length, zero = _HEAD.unpack(data[: _HEAD.size].tobytes())
        if zero:
            raise ValueError(f"zero expected in the body's second word, got {zero}")
        start = _HEAD.size + length
        self.fields: dict[str, Any] = json.loads(data[_HEAD.size : start].tobytes())
        self.arrays: dict[str, Array] = {}
        for name, dtype, shape in self.fields["arrays"]:
            if dtype not in _DTYPES:
                raise ValueError(f"dtype {dtype} of {name}")
            count = int(np.prod(shape, dtype=np.int64))
            flat = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
            self.arrays[name] = flat.reshape(shape)
            start += -(-self.arrays[name].nbytes // _ALIGNMENT) * _ALIGNMENT
        if start != len(data):
            raise ValueError(f"{start} bytes expected, got {len(data)}")

    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        bits = np.unpackbits(self.arrays[f"{name}.{_MASK}"], count=self.fields[name], bitorder="little")
        return bits.astype(np.bool_)

    def token(self) -> PushToken:
        return PushToken(*self.fields["token"])

    def optional_token(self) -> PushToken | None:
        return None if self.fields["token"] is None else self.token()

    def keys(self) -> TableKeys:
        return TableKeys(tuple(self.fields["tables"]), self.arrays[_KEYS], np.array(self.fields["splits"], np.int64))


# --- one writer and one reader for each kind --------------------------------------------------------------------------


def _write_push(body: _Body, push: ApplyPush) -> None:
    body.put_token(push.token)
    body.put_keys(push.keys)
    body.put_array("gradients", push.gradients)
    body.put_array("occurrences", push.occurrences)
    if push.clicks is not None:
        body.put_array("clicks", push.clicks)
    step = push.step
    body.fields["step"] = {
        "examples": int(step.examples),
        "step": int(step.step),
        "now": int(step.now),
        "lr_scale": float(step.lr_scale),
        "unit": int(step.unit),
        "batch": int(step.batch),
    }
    body.put_mask("tablets", push.tablets)
    body.put_mask("late", push.late)
    body.fields["late_lr"] = float(push.late_lr)


def _read_push(parts: _Parts) -> ApplyPush:
    return ApplyPush(
        parts.token(),
        parts.keys(),
        parts.arrays["gradients"],
        parts.arrays["occurrences"],
        UpdateStep(**parts.fields["step"]),
        parts.mask("tablets"),
        parts.mask("late"),
        parts.fields["late_lr"],
        parts.arrays.get("clicks"),
    )


def _write_assign(body: _Body, assign: AssignRows) -> None:
    body.put_token(assign.token)
    body.put_keys(assign.keys)
    body.put_array("weights", assign.weights)
    if assign.state is not None:
        body.put_array("state", assign.state)
    body.fields["if_absent"] = bool(assign.if_absent)
    body.fields["now"] = int(assign.now)
    body.put_mask("tablets", assign.tablets)


def _read_assign(parts: _Parts) -> AssignRows:
    return AssignRows(
        parts.token(),
        parts.keys(),
        parts.arrays["weights"],
        parts.arrays.get("state"),
        parts.fields["if_absent"],
        parts.fields["now"],
        parts.mask("tablets"),
    )


def _write_erase(body: _Body, erase: EraseRows) -> None:
    body.put_token(erase.token)
    body.put_keys(erase.keys)
    body.put_mask("tablets", erase.tablets)


def _read_erase(parts: _Parts) -> EraseRows:
    return EraseRows(parts.token(), parts.keys(), parts.mask("tablets"))


def _write_evict(body: _Body, evict: EvictRows) -> None:
    body.put_token(evict.token)
    body.put_keys(evict.keys)


def _read_evict(parts: _Parts) -> EvictRows:
    return EvictRows(parts.token(), parts.keys())


def _write_ensure(body: _Body, ensure: EnsureTables) -> None:
    body.fields["configs"] = [table.model_dump(mode="json") for table in ensure.tables]


def _read_ensure(parts: _Parts) -> EnsureTables:
    return EnsureTables(tuple(TableConfig.model_validate(table) for table in parts.fields["configs"]))


def _write_drop_table(body: _Body, drop: DropTable) -> None:
    body.put_token(drop.token)
    body.fields["name"] = drop.name


def _write_cut(body: _Body, cut: CutTablet) -> None:
    body.put_token(cut.token)
    body.fields["tablet"] = int(cut.tablet)


def _write_import(body: _Body, imported: ImportTablet) -> None:
    body.put_token(imported.token)
    snapshot = imported.snapshot
    for name in SNAPSHOT_NUMBERS:
        number = getattr(snapshot, name)
        body.fields[name] = None if number is None else int(number)
    body.fields["tables"] = list(snapshot.tables)
    for index, rows in enumerate(snapshot.tables.values()):
        for name, array in _arrays_of(rows):
            if name != _CLICKS or len(array):
                body.put_array(f"{index}.{name}", array)
    for name, array in _arrays_of(snapshot.applied):
        body.put_array(f"applied.{name}", array)


def _read_import(parts: _Parts) -> ImportTablet:
    tables = {table: _rows_of(parts, index) for index, table in enumerate(parts.fields["tables"])}
    applied = AppliedMemory(**{field.name: parts.arrays[f"applied.{field.name}"] for field in fields(AppliedMemory)})
    numbers = {name: parts.fields[name] for name in SNAPSHOT_NUMBERS}
    return ImportTablet(TabletSnapshot(**numbers, tables=tables, applied=applied), parts.optional_token())


def _rows_of(parts: _Parts, index: int) -> TableRows:
    places = {field.name: f"{index}.{field.name}" for field in fields(TableRows)}
    if places[_CLICKS] not in parts.arrays:
        del places[_CLICKS]  # rows without clicks, or written before there were any
    return TableRows(**{name: parts.arrays[place] for name, place in places.items()})


def _write_adopt(body: _Body, adopt: AdoptMap) -> None:
    body.put_mask("owned", adopt.owned)
    body.fields["epoch"], body.fields["generation"] = int(adopt.epoch), int(adopt.generation)


def _write_refuse(body: _Body, refuse: RefusePush) -> None:
    body.put_token(refuse.token)
    body.put_mask("tablets", refuse.tablets)


def _write_number(name: str) -> Callable[[_Body, Any], None]:
    def write(body: _Body, mutation: Any) -> None:
        body.fields[name] = int(getattr(mutation, name))

    return write


def _write_complete(body: _Body, mutation: CompleteUnit) -> None:
    body.fields["unit"] = mutation.unit
    if mutation.lease != ALL_LEASES:
        body.fields["lease"] = mutation.lease


def _arrays_of(holder: TableRows | AppliedMemory) -> Iterator[tuple[str, Array]]:
    for field in fields(holder):
        yield field.name, getattr(holder, field.name)


_WRITERS: dict[type[Mutation], Callable[[_Body, Any], None]] = {
    ApplyPush: _write_push,
    AssignRows: _write_assign,
    EraseRows: _write_erase,
    EvictRows: _write_evict,
    EnsureTables: _write_ensure,
    DropTable: _write_drop_table,
    CutTablet: _write_cut,
    ImportTablet: _write_import,
    DropTablet: _write_number("tablet"),
    CompleteUnit: _write_complete,
    RaiseLowestLease: _write_number("lease"),
    AdoptMap: _write_adopt,
    RefusePush: _write_refuse,
}

_READERS: dict[int, Callable[[_Parts], Mutation]] = {
    1: _read_push,
    2: _read_assign,
    3: _read_erase,
    4: _read_evict,
    5: _read_ensure,
    6: lambda parts: DropTable(parts.fields["name"], parts.optional_token()),
    7: lambda parts: CutTablet(parts.token(), parts.fields["tablet"]),
    8: _read_import,
    9: lambda parts: DropTablet(parts.fields["tablet"]),
    10: lambda parts: CompleteUnit(parts.fields["unit"], parts.fields.get("lease", ALL_LEASES)),
    11: lambda parts: RaiseLowestLease(parts.fields["lease"]),
    12: lambda parts: AdoptMap(parts.mask("owned"), parts.fields["epoch"], parts.fields["generation"]),
    13: lambda parts: RefusePush(parts.token(), parts.mask("tablets")),
}
