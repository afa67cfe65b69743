"""One exported table as arrays, as readers of every file format give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..checkpoint.storage import Directory
from ..errors import CorruptCheckpointError
from .manifest import ExportedTable


@dataclass(frozen=True)
class ExportChunk:
    """A run of exported rows: keys (n,) ascending, counts (n,), vectors (n, D), scales (n,) or None.

    ids: reads the (n,) raw ids, null for the missing key; None where there are none. Raises: CorruptCheckpointError.
    """

    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]
    vectors: npt.NDArray[Any]
    scales: npt.NDArray[np.float32] | None
    ids: Callable[[], pa.Array] | None


@dataclass(frozen=True)
class ExportColumns:
    """One exported table: chunks in ascending key order, and the erased keys (ascending) of a delta."""

    chunks: tuple[ExportChunk, ...]
    erased: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class ColumnSource:
    """What is read: the files of `table`, expected to have the columns of `schema`."""

    directory: Directory
    table: ExportedTable
    schema: pa.Schema
    where: str

    def checked(self, ids: pa.Array) -> pa.Array:
        """The ids, once all of them are found to be readable. Raises: CorruptCheckpointError."""
        try:
            ids.validate(full=True)
        except pa.ArrowException as error:
            raise CorruptCheckpointError(f"expected ids, got {error}: {self.where}") from error
        return ids
