"""Refusals: errors of a shard that reach the client as the class they were raised as."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from ..embedding.errors import DuplicateKeyError, TableConflictError, UnknownTableError
from . import parameter_server_pb2 as pb
from .errors import (
    AccessDeniedError,
    CheckpointNotBegunError,
    DurabilityError,
    GenerationError,
    LostRowsError,
    RequestTooLargeError,
    SharedMemoryGoneError,
    StoreUnavailableError,
    WireFormatError,
    WrongPeerError,
    WrongShardError,
)

REFUSAL_KEY = "embershard-refusal-bin"
_Code = grpc.StatusCode

# Most specific first: the first class that fits an error decides its code.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (WrongShardError, _Code.FAILED_PRECONDITION),
    (GenerationError, _Code.FAILED_PRECONDITION),
    (WrongPeerError, _Code.FAILED_PRECONDITION),
    (LostRowsError, _Code.DATA_LOSS),
    (CheckpointNotBegunError, _Code.FAILED_PRECONDITION),
    (DurabilityError, _Code.RESOURCE_EXHAUSTED),
    (SharedMemoryGoneError, _Code.NOT_FOUND),
    (UnknownTableError, _Code.NOT_FOUND),
    (TableConflictError, _Code.ALREADY_EXISTS),
    (DuplicateKeyError, _Code.INVALID_ARGUMENT),
    (RequestTooLargeError, _Code.RESOURCE_EXHAUSTED),
    (WireFormatError, _Code.INVALID_ARGUMENT),
    (AccessDeniedError, _Code.UNAUTHENTICATED),
    (ValueError, _Code.INVALID_ARGUMENT),
)
_CLASSES = {kind.__name__: kind for kind, _ in _CODES}


def refusal_of(error: Exception) -> tuple[grpc.StatusCode, pb.Refusal] | None:
    """Status and message that stand for the error; None if it is no refusal but a fault of the server."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
            refusal = pb.Refusal(kind=kind.__name__, message=text)
            if isinstance(error, WrongShardError):
                refusal.epoch = error.epoch
                refusal.tablets = np.array(error.tablets, "<u2").tobytes()
            if isinstance(error, GenerationError):
                refusal.generation = error.expected
                refusal.epoch = error.got
            return code, refusal
    return None


def error_of(metadata: Iterable[Any] | None, peer: str) -> Exception | None:
    """The error a shard refused with, naming the peer; None if the call failed for another reason."""
    for key, value in metadata or ():
        if key == REFUSAL_KEY and isinstance(value, bytes):
            return decode_refusal(value, peer)
    return None


def decode_refusal(data: bytes, peer: str) -> Exception | None:
    """The error that a serialized refusal stands for, naming the peer; None for bytes that are none."""
    try:
        refusal = pb.Refusal.FromString(data)
    except DecodeError:
        return None
    kind = _CLASSES.get(refusal.kind, StoreUnavailableError)
    if kind is WrongShardError:
        return WrongShardError(np.frombuffer(refusal.tablets, "<u2").tolist(), refusal.epoch)
    if kind is GenerationError:
        return GenerationError(refusal.generation, refusal.epoch)
    return kind(f"{peer}: {refusal.message}")
