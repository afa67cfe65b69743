"""Messages too large for one gRPC message, cut into chunks and put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from . import parameter_server_pb2 as pb
from .errors import RequestTooLargeError, WireFormatError
from .message_fields import read_chunk, write_chunk

CHUNK_BYTES = 4 << 20
LARGE_BYTES = 32 << 20
"""Messages above go in chunks."""


def cut(data: bytes, method: str = "") -> Iterator[bytes]:
    """Chunks of one message; the first names the method (requests) and the size."""
    view = memoryview(data)
    yield write_chunk(pb.Chunk(method=method, total_bytes=len(data)), view[:CHUNK_BYTES])
    for start in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
        yield write_chunk(pb.Chunk(), view[start : start + CHUNK_BYTES])


def collect(
    chunks: Iterable[bytes], max_bytes: int, others: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, bytes]:
    """Method and message of a whole row of chunks. others: methods with a limit of their own.

    Raises: RequestTooLargeError as soon as the size is known; WireFormatError where it ends early or goes on."""
    method, total, pieces, received = "", -1, [], 0
    for chunk in chunks:
        small, piece = read_chunk(chunk)
        if total < 0:
            method, total = small.method, small.total_bytes
            most = others.get(method, max_bytes)
            if total > most:
                raise RequestTooLargeError(f"expected at most {most} bytes in one call, got {total}; split the batch")
        received += len(piece)
        if received > total:
            raise WireFormatError(f"expected {total} bytes in chunks, got {received} or more")
        pieces.append(piece)
    if received != total:
        raise WireFormatError(f"expected {total} bytes in chunks, got {received}: the sender stopped early")
    return method, b"".join(pieces)
