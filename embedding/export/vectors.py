"""Rows as an export holds them: filtered, in the chosen blocks and number type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..checkpoint.tablet_file import row_clicks
from ..table_config import TableConfig
from ..table_group import TableRows
from .manifest import ExportOptions, VectorType
from .raw_ids import RawIds

VECTOR_DTYPES: dict[VectorType, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "int8": np.int8}


@dataclass(frozen=True)
class ExportRows:
    """A run of exported rows, ascending by key.

    keys (n,) uint64 · ids (n,) of the table's id type, or None · counts (n,) uint32 · clicks (n,) uint32, or None where
    the table keeps none · vectors (n, D) · scales (n,) float32 for int8, else None.
    left (m,) uint64: changed rows that the filter leaves out (erased, to a delta).
    """

    keys: npt.NDArray[np.uint64]
    ids: pa.Array | None
    counts: npt.NDArray[np.uint32]
    clicks: npt.NDArray[np.uint32] | None
    vectors: npt.NDArray[np.float32 | np.float16 | np.int8]
    scales: npt.NDArray[np.float32] | None
    left: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TableExport:
    """How one table is exported: its configuration, its raw ids, the columns chosen."""

    config: TableConfig
    options: ExportOptions
    ids: RawIds | None

    def __post_init__(self) -> None:
        names = [block.name for block in self.config.blocks]
        unknown = [name for name in self.options.blocks or () if name not in names]
        if unknown:
            raise ValueError(f"expected blocks out of {names}, got {unknown} (table {self.config.name!r})")

    @property
    def blocks(self) -> list[tuple[str, int, int]]:
        """(name, first column, dim) of the chosen blocks."""
        chosen, start = [], 0
        for block in self.config.blocks:
            if self.options.blocks is None or block.name in self.options.blocks:
                chosen.append((block.name, start, block.dim))
            start += block.dim
        return chosen

    @property
    def dim(self) -> int:
        """Values a vector."""
        return sum(dim for _, _, dim in self.blocks)

    def rows(self, rows: TableRows) -> ExportRows:
        """The rows that pass the filters, as they are written."""
        wanted = (rows.count >= self.options.min_count) & (rows.touched_at >= self.options.touched_since)
        everything = bool(wanted.all())
        keys = rows.keys if everything else rows.keys[wanted]
        vectors = self.vectors(rows.weights if everything else rows.weights[wanted])
        stored, scales = quantise(vectors, self.options.vectors)
        return ExportRows(
            keys=keys,
            ids=None if self.ids is None else self.ids.of_keys(keys),
            counts=rows.count if everything else rows.count[wanted],
            clicks=row_clicks(rows)[wanted] if self.config.keeps_clicks else None,
            vectors=stored,
            scales=scales,
            left=rows.keys[:0] if everything else rows.keys[~wanted],
        )

    def vectors(self, weights: npt.NDArray[np.float32 | np.float16 | np.uint16]) -> npt.NDArray[np.float32]:
        """(n, dim) float32 of stored weights, the chosen columns."""
        wide = widen(weights, self.config.dtype)
        if self.dim == self.config.dim:
            return wide
        return np.concatenate([wide[:, start : start + dim] for _, start, dim in self.blocks], axis=1)


def widen(weights: npt.NDArray[np.float32 | np.float16 | np.uint16], dtype: str) -> npt.NDArray[np.float32]:
    """float32 values of stored weights, exact; bfloat16 comes as its uint16 bit pattern."""
    if dtype == "bfloat16":
        return (weights.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return weights.astype(np.float32, copy=False)


def quantise(
    vectors: npt.NDArray[np.float32], to: VectorType
) -> tuple[npt.NDArray[np.float32 | np.float16 | np.int8], npt.NDArray[np.float32] | None]:
    """Vectors in the number type `to`, and the scales (n,) for int8: value = int8 · scale, largest value ±127.

    Raises: OverflowError for float16 where a finite value would become infinite, and for int8 of NaN or infinity.
    """
    if to == "float32":
        return vectors, None
    if to == "float16":
        with np.errstate(over="ignore"):
            half = vectors.astype(np.float16)
        if bool((np.isinf(half) & np.isfinite(vectors)).any()):
            largest = float(np.abs(vectors[np.isfinite(vectors)]).max())
            raise OverflowError(f"expected values within float16 (65504), got {largest}; export float32")
        return half, None
    if not np.isfinite(vectors).all():
        raise OverflowError("expected finite values for int8, got NaN or infinity; export float32")
    scales = (np.abs(vectors).max(axis=1, initial=0) / np.float32(127)).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(vectors / divisors), -127, 127).astype(np.int8), scales


def restore_float32(
    vectors: npt.NDArray[np.float32 | np.float16 | np.int8], scales: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.float32]:
    """(n, D) float32 of exported vectors."""
    wide = vectors.astype(np.float32, copy=False)
    return wide if scales is None else wide * scales[:, None]
