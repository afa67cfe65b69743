"""Protobuf messages whose large `bytes` fields are never copied by the protobuf library.

A message is its small part, serialized by the library, followed by its array fields (numbers 16 and up), written and
found here. The result is plain protobuf: any other client can use the generated code for the whole message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from ..embedding import _native
from . import parameter_server_pb2 as pb
from .errors import WireFormatError

FIRST_ARRAY_FIELD = 16
PADDING_FIELD = 15
ALIGNMENT = 8
_CHUNK_DATA = 3

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=np.generic)
Fields = Mapping[int, memoryview]


class Unwritten(Protocol):
    """The content of an array field that is made where it has to lie."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    def write(self, out: npt.NDArray[np.uint8]) -> None:
        """Write it to (nbytes,) bytes, at a multiple of 8."""


Packed = npt.NDArray[Any] | bytes | Unwritten


def size_of(array: Packed) -> int:
    """Bytes of the array."""
    return len(array) if isinstance(array, bytes) else array.nbytes


def write_array(array: Packed, out: npt.NDArray[np.uint8]) -> None:
    """Copy the array to (size_of(array),) bytes, or make it there."""
    if isinstance(array, np.ndarray):
        out[:] = array.reshape(-1).view(np.uint8)
    elif isinstance(array, bytes):
        out[:] = np.frombuffer(array, np.uint8)
    else:
        array.write(out)


def join_message(small: Message, arrays: Iterable[tuple[int, Packed]]) -> bytes:
    """Bytes of `small` with the array fields behind it, each aligned to 8 bytes; empty arrays are left out.

    Cost: one copy of the arrays."""
    given = [(number, array) for number, array in arrays if size_of(array)]
    data, rooms = lay_out_message(small, [(number, size_of(array)) for number, array in given])
    for (_, array), room in zip(given, rooms, strict=True):
        write_array(array, room)
    return data


def lay_out_message(small: Message, sizes: Iterable[tuple[int, int]]) -> tuple[bytes, list[npt.NDArray[np.uint8]]]:
    """A message of `small` and array fields of (number, bytes) each, and the room of each field in it.

    The rooms have to be written, all of them, before the message goes anywhere. No size may be 0."""
    heads = [small.SerializeToString()]
    position, starts = len(heads[0]), []
    for number, size in sizes:
        head = _varint(number << 3 | 2) + _varint(size)
        gap = -(position + len(head)) % ALIGNMENT
        if gap:
            gap += ALIGNMENT if gap < 2 else 0
            head = bytes((PADDING_FIELD << 3 | 2, gap - 2)) + bytes(gap - 2) + head
        heads.append(head)
        starts.append((position + len(head), size))
        position += len(head) + size
    data, room = _native.unset_bytes(position)
    for head, (start, _) in zip(heads, [(len(heads[0]), 0), *starts], strict=True):
        room[start - len(head) : start] = np.frombuffer(head, np.uint8)
    return data, [room[start : start + size] for start, size in starts]


def split_message(
    data: bytes | memoryview, small: M, first_array: int = FIRST_ARRAY_FIELD
) -> tuple[M, dict[int, memoryview]]:
    """`small` filled from the library's fields, and views of the array fields by number.

    Raises: WireFormatError. Cost: no copy of the arrays."""
    small, arrays = split_repeated(data, small, first_array)
    return small, dict(arrays)


def split_repeated(data: bytes | memoryview, small: M, first_array: int) -> tuple[M, list[tuple[int, memoryview]]]:
    """As `split_message`, with each array field as often as it is there, in order."""
    view = memoryview(data)
    position, end = 0, len(data)
    pieces: list[memoryview] = []
    arrays: list[tuple[int, memoryview]] = []
    while position < end:
        start = position
        tag, position = _read_varint(view, position)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _, position = _read_varint(view, position)
        elif kind == 1:
            position += 8
        elif kind == 5:
            position += 4
        elif kind == 2:
            size, position = _read_varint(view, position)
            content = position
            position += size
            if number >= first_array and position <= end:
                arrays.append((number, view[content:position]))
                continue
        else:
            raise WireFormatError(
                f"expected wire type 0, 1, 2 or 5, got {kind} at byte {start} of {small.DESCRIPTOR.name}"
            )
        if position > end:
            raise WireFormatError(
                f"expected field {number} of {small.DESCRIPTOR.name} to end by byte {end}, got {position}"
            )
        if number != PADDING_FIELD:
            pieces.append(view[start:position])
    try:
        small.ParseFromString(b"".join(pieces))
    except DecodeError as error:
        raise WireFormatError(f"expected a {small.DESCRIPTOR.name}, got {end} bytes that are none: {error}") from None
    return small, arrays


def write_chunk(chunk: pb.Chunk, data: memoryview) -> bytes:
    """`chunk` with `data` as its content. Cost: one copy."""
    head = _varint(_CHUNK_DATA << 3 | 2) + _varint(len(data))
    return b"".join((chunk.SerializeToString(), head, data))


def read_chunk(data: bytes) -> tuple[pb.Chunk, memoryview]:
    """The chunk's small part and a view of its content. Raises: WireFormatError."""
    chunk, arrays = split_message(data, pb.Chunk(), _CHUNK_DATA)
    return chunk, arrays.get(_CHUNK_DATA, memoryview(b""))


def read_array(arrays: Fields, number: int, dtype: np.dtype[S], what: str) -> npt.NDArray[S]:
    """(n,) array over the field's bytes, read-only; empty if the field is absent. Raises: WireFormatError."""
    view = arrays.get(number, memoryview(b""))
    if len(view) % dtype.itemsize:
        raise WireFormatError(f"expected {what} as {dtype.itemsize}-byte values, got {len(view)} bytes")
    array: npt.NDArray[S] = np.frombuffer(view, dtype)
    return array if array.flags.aligned else array.copy()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if position >= len(view):
            break
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
        shift += 7
    raise WireFormatError(f"expected a varint, got none at byte {position} of {len(view)}")
