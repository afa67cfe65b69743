"""Between a batch's keys and its rows: de-duplicate and count keys, pool rows to examples, sum gradients of equal keys.

The kernels are native; `batch_rows_reference.py` defines them in NumPy, bit for bit. All sums run in one order, by
example, then by field, then by value, whatever the number of threads. Thread safety: every function is pure but for the
buffers it is given; one call at a time has the threads of `set_batch_threads`, others meanwhile work alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from . import _native
from .table_group import TableKeys

FloatArray = npt.NDArray[np.float32]


def set_batch_threads(threads: int) -> None:
    """Let pooling and the sums of gradients of large batches use this many threads of the process.

    Until it is called: as many as there are CPUs for the process, at most 8. No bit of a result depends on it.
    Raises: ValueError if less than 1.   Thread safety: any thread; calls at work keep the threads they have."""
    _native.set_batch_threads(threads)


def use_openmp(gomp_parallel: int) -> None:
    """Run large batches on the threads of an OpenMP runtime that is loaded, by its `GOMP_parallel` at this address.

    The number of threads stays that of `set_batch_threads`. Thread safety: any thread."""
    _native.use_openmp(gomp_parallel)


def batch_threads() -> int:
    """Threads of `set_batch_threads`. Thread safety: any thread."""
    return _native.batch_threads()


class Pooling(IntEnum):
    """How the rows of a bag become one vector; the divisor of mean is Σw, of sqrtn √Σw² (no weights: w = 1).

    An empty bag, or one whose divisor is 0, gives zeros and no gradient. The gradient of max goes, per component, to
    the first value that holds the maximum of w·row.
    """

    SUM = 0
    MEAN = 1
    SQRTN = 2
    MAX = 3


@dataclass(frozen=True, slots=True)
class UniqueKeys:
    """Keys of a batch, each once a table.

        tables ("user", "item")   features (user, item, last_item)   keys [7 8 7 | 1 2 1 | 3 1 3]
        keys = [7 8 | 1 2 3], splits [0 2 5]   inverse = [0 1 0 | 2 3 2 | 4 2 4]   occurrences = [2 1 | 3 1 2]

    keys: unique keys, table after table, in order of first occurrence by feature, example, value.
    inverse: (N,) int32 place in `keys.keys` of each key of the batch.   occurrences: (n,) uint32.
    """

    keys: TableKeys
    inverse: npt.NDArray[np.int32]
    occurrences: npt.NDArray[np.uint32]


def deduplicate(
    keys: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    table_of: npt.NDArray[np.int32],
    tables: tuple[str, ...],
) -> UniqueKeys:
    """Each key of a batch once a table, with the way back to the batch.

    keys: (N,), the keys of feature f at starts[f] : starts[f + 1].   starts: (F + 1,) ascending, 0 … N.
    table_of: (F,) number of each feature's table in `tables`.   Raises: ValueError on arrays that do not fit.
    Cost: one probe a key; the result is the only allocation."""
    unique = np.empty(len(keys), np.uint64)
    inverse = np.empty(len(keys), np.int32)
    occurrences = np.empty(len(keys), np.uint32)
    splits = np.empty(len(tables) + 1, np.int64)
    count = _native.deduplicate(keys, starts, table_of, unique, inverse, occurrences, splits)
    return UniqueKeys(TableKeys(tables, unique[:count], splits), inverse, occurrences[:count])


def count_clicks(
    unique: UniqueKeys,
    offsets: npt.NDArray[np.int64],
    features: npt.NDArray[np.int64],
    clicked: npt.NDArray[np.bool_],
) -> npt.NDArray[np.uint32]:
    """(n,) uint32: how many of each unique key's occurrences in `features` were in clicked examples.

    offsets: (F·B + 1,), as `Bags.offsets`.   features: (K,) int64 numbers.   clicked: (B,).
    Raises: ValueError on arrays or numbers out of range.   Cost: the keys of the clicked examples, once checked."""
    clicks = np.zeros(len(unique.occurrences), np.uint32)
    _native.count_clicks(unique.inverse, offsets, features, clicked, clicks)
    return clicks


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Columns [first, first + dim) of the rows of one layout; row number r of a batch is r - row_start there."""

    first: int
    dim: int
    row_start: int = 0


@dataclass(frozen=True, slots=True)
class Bags:
    """Bags of a batch, feature-major: bag (f, b) holds inverse[offsets[f·B + b] : offsets[f·B + b + 1]].

    inverse: (N,) int32 row numbers.   offsets: (F·B + 1,) int64.   weights: (N,) float32 or None (all 1).
    fields:  (K, 4) int64, one a pooled feature: feature number, first output column, `Pooling`, 1 where every bag holds
             exactly one value.
    """

    inverse: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    weights: FloatArray | None
    fields: npt.NDArray[np.int64]


def pooled_fields(
    features: Sequence[int], columns: Sequence[int], pooling: Sequence[Pooling], scalar: Sequence[bool]
) -> npt.NDArray[np.int64]:
    """(K, 4) int64 `Bags.fields` from its four columns."""
    return np.stack([np.asarray(part, np.int64) for part in (features, columns, pooling, scalar)], axis=1)


def pool_rows(rows: FloatArray, block: RowColumns, bags: Bags, out: FloatArray) -> FloatArray:
    """`out` (B, W), with each field's pooled rows in its `dim` columns; other columns are left as they are.

    rows: (n, D).   out: rows may be strided, columns not.   Raises: ValueError on arrays or numbers out of range."""
    _native.pool_rows(
        rows, block.row_start, block.first, block.dim, bags.inverse, bags.offsets, bags.weights, bags.fields, out
    )
    return out


def sum_row_gradients(
    rows: FloatArray, block: RowColumns, bags: Bags, gradient: FloatArray, out: FloatArray
) -> FloatArray:
    """`out` (n, D) plus, in the block's columns, the sum over the batch of each row's gradient.

    gradient: (B, W) of `pool_rows`' output.   rows: read for max pooling only."""
    _native.sum_row_gradients(
        rows,
        block.row_start,
        block.first,
        block.dim,
        bags.inverse,
        bags.offsets,
        bags.weights,
        bags.fields,
        gradient,
        out,
    )
    return out


@dataclass(frozen=True, slots=True)
class Interaction:
    """What a factorization machine reads of a batch (Rendle 2010, lemma 3.1).

    pooled:       (B, W) pooled factors of each field in its columns.
    first_order:  (B,) Σ_f pooled linear weight; 0 without a linear block.
    second_order: (B,) ½ Σ_d ((Σ_f e_fd)² − Σ_f e_fd²).   factor_sums: (B, D) Σ_f e_f.
    """

    pooled: FloatArray
    first_order: FloatArray
    second_order: FloatArray
    factor_sums: FloatArray


def pool_interaction(
    rows: FloatArray, factors: RowColumns, linear_column: int | None, bags: Bags, out: FloatArray
) -> Interaction:
    """The terms of a factorization machine, with the pooled factors in `out` as `pool_rows` leaves them."""
    examples = len(out)
    first_order, second_order = np.empty(examples, np.float32), np.empty(examples, np.float32)
    factor_sums = np.empty((examples, factors.dim), np.float32)
    _native.pool_interaction(
        rows,
        factors.row_start,
        factors.first,
        factors.dim,
        -1 if linear_column is None else linear_column,
        bags.inverse,
        bags.offsets,
        bags.weights,
        bags.fields,
        out,
        first_order,
        second_order,
        factor_sums,
    )
    return Interaction(out, first_order, second_order, factor_sums)


@dataclass(frozen=True, slots=True)
class InteractionGradient:
    """Gradients of `Interaction`'s outputs: pooled (B, ≥ W), first_order (B,), second_order (B,); None is zero."""

    pooled: FloatArray | None
    first_order: FloatArray | None
    second_order: FloatArray | None


def sum_interaction_gradients(
    rows: FloatArray,
    factors: RowColumns,
    linear_column: int | None,
    bags: Bags,
    *,
    forward: Interaction,
    gradient: InteractionGradient,
    out: FloatArray,
) -> FloatArray:
    """`out` (n, D) plus the sum over the batch of each row's gradient, through all outputs of `pool_interaction`."""
    _native.sum_interaction_gradients(
        rows,
        factors.row_start,
        factors.first,
        factors.dim,
        -1 if linear_column is None else linear_column,
        bags.inverse,
        bags.offsets,
        bags.weights,
        bags.fields,
        forward.pooled,
        forward.factor_sums,
        gradient.pooled,
        gradient.first_order,
        gradient.second_order,
        out,
    )
    return out
