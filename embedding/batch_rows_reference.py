"""The batch kernels in NumPy: the definition that the native ones equal, bit for bit. Slow; for tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .batch_rows import (
    Bags,
    FloatArray,
    Interaction,
    InteractionGradient,
    Pooling,
    RowColumns,
    UniqueKeys,
)
from .table_group import TableKeys


def deduplicate(
    keys: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    table_of: npt.NDArray[np.int32],
    tables: tuple[str, ...],
) -> UniqueKeys:
    """As `batch_rows.deduplicate`."""
    unique, occurrences = [], []
    inverse = np.empty(len(keys), np.int32)
    splits = np.zeros(len(tables) + 1, np.int64)
    for table in range(len(tables)):
        ranges = [np.arange(starts[f], starts[f + 1]) for f in np.flatnonzero(table_of == table)]
        places = np.concatenate([np.empty(0, np.int64), *ranges])
        values, first, back, counts = np.unique(
            keys[places], return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)  # by first occurrence
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        inverse[places] = splits[table] + rank[back]
        unique.append(values[order])
        occurrences.append(counts[order].astype(np.uint32))
        splits[table + 1] = splits[table] + len(values)
    all_keys = np.concatenate([np.empty(0, np.uint64), *unique])
    return UniqueKeys(
        TableKeys(tables, all_keys, splits), inverse, np.concatenate([np.empty(0, np.uint32), *occurrences])
    )


def count_clicks(
    unique: UniqueKeys,
    offsets: npt.NDArray[np.int64],
    features: npt.NDArray[np.int64],
    clicked: npt.NDArray[np.bool_],
) -> npt.NDArray[np.uint32]:
    """As `batch_rows.count_clicks`."""
    bags = (features[:, None] * len(clicked) + np.flatnonzero(clicked)).ravel()
    places = [unique.inverse[offsets[bag] : offsets[bag + 1]] for bag in bags]
    counted = np.concatenate([np.empty(0, np.int32), *places])
    return np.bincount(counted, minlength=len(unique.occurrences)).astype(np.uint32)


def pool_rows(rows: FloatArray, block: RowColumns, bags: Bags, out: FloatArray) -> FloatArray:
    """As `batch_rows.pool_rows`."""
    for example, column, bag in _bags(bags, len(out)):
        out[example, column : column + block.dim] = bag.pool(_columns(rows, block), block.row_start)
    return out


def sum_row_gradients(
    rows: FloatArray, block: RowColumns, bags: Bags, gradient: FloatArray, out: FloatArray
) -> FloatArray:
    """As `batch_rows.sum_row_gradients`."""
    for example, column, bag in _bags(bags, len(gradient)):
        own = gradient[example, column : column + block.dim]
        bag.spread(_columns(rows, block), block.row_start, own, _columns(out, block))
    return out


def pool_interaction(
    rows: FloatArray, factors: RowColumns, linear_column: int | None, bags: Bags, out: FloatArray
) -> Interaction:
    """As `batch_rows.pool_interaction`."""
    examples = len(out)
    pool_rows(rows, factors, bags, out)
    sums = np.zeros((examples, factors.dim), np.float32)
    squares = np.zeros((examples, factors.dim), np.float32)
    first_order = np.zeros(examples, np.float32)
    for _, column, _, _ in bags.fields:
        field = out[:, column : column + factors.dim]
        sums += field
        squares += field * field
    if linear_column is not None:
        linear = RowColumns(linear_column, 1, factors.row_start)
        for example, _, bag in _bags(bags, examples):
            first_order[example] += bag.pool(_columns(rows, linear), linear.row_start)[0]
    second_order = np.zeros(examples, np.float32)
    for d in range(factors.dim):
        second_order += sums[:, d] * sums[:, d] - squares[:, d]
    return Interaction(out, first_order, np.float32(0.5) * second_order, sums)


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
    """As `batch_rows.sum_interaction_gradients`."""
    for example, column, bag in _bags(bags, len(forward.pooled)):
        second = np.float32(0) if gradient.second_order is None else gradient.second_order[example]
        own = second * (forward.factor_sums[example] - forward.pooled[example, column : column + factors.dim])
        if gradient.pooled is not None:
            own = gradient.pooled[example, column : column + factors.dim] + own
        bag.spread(_columns(rows, factors), factors.row_start, own, _columns(out, factors))
        if linear_column is not None and gradient.first_order is not None:
            linear = RowColumns(linear_column, 1, factors.row_start)
            own = gradient.first_order[example : example + 1]
            bag.spread(_columns(rows, linear), linear.row_start, own, _columns(out, linear))
    return out


def _columns(rows: FloatArray, block: RowColumns) -> FloatArray:
    return rows[:, block.first : block.first + block.dim]


def _in_order(terms: FloatArray) -> np.float32:
    """Sum from the left, each partial sum rounded; `np.sum` pairs terms."""
    total: np.float32 = np.float32(0)
    for term in terms:
        total = np.float32(total + term)
    return total


class _Bag:
    """Values of one bag: row numbers and float32 weights."""

    def __init__(self, rows: npt.NDArray[np.int32], weights: FloatArray, pooling: Pooling) -> None:
        self.rows = rows
        self.weights = weights
        self.pooling = pooling

    def divisor(self) -> np.float32:
        divisor: np.float32 = np.float32(len(self.rows) > 0)
        if len(self.rows) > 0 and self.pooling is Pooling.MEAN:
            divisor = _in_order(self.weights)
        elif len(self.rows) > 0 and self.pooling is Pooling.SQRTN:
            divisor = np.sqrt(_in_order(self.weights * self.weights))
        return divisor

    def pool(self, rows: FloatArray, row_start: int) -> FloatArray:
        divisor = self.divisor()
        if divisor == 0:
            return np.zeros(rows.shape[1], np.float32)
        terms = [weight * rows[row - row_start] for row, weight in zip(self.rows, self.weights, strict=True)]
        pooled: FloatArray = terms[0]
        for term in terms[1:]:
            pooled = np.where(pooled < term, term, pooled) if self.pooling is Pooling.MAX else pooled + term
        return np.divide(pooled, divisor, dtype=np.float32)

    def spread(self, rows: FloatArray, row_start: int, gradient: FloatArray, out: FloatArray) -> None:
        divisor = self.divisor()
        if divisor == 0:
            return
        places = self.rows.astype(np.int64) - row_start
        if self.pooling is Pooling.MAX:
            terms = self.weights[:, None] * rows[places]
            winners = np.argmax(terms, axis=0)  # the first one where several are equal
            for d, winner in enumerate(winners):
                out[places[winner], d] += self.weights[winner] * gradient[d]
            return
        for place, weight in zip(places, self.weights, strict=True):
            out[place] += weight * gradient / divisor


def _bags(bags: Bags, examples: int) -> Iterator[tuple[int, int, _Bag]]:
    """(example, first output column, bag) in the order that sums run in."""
    weights = np.ones(len(bags.inverse), np.float32) if bags.weights is None else bags.weights
    for example in range(examples):
        for feature, column, pooling, scalar in bags.fields:
            own = bags.offsets[feature * examples :]
            start, stop = (own[0] + example, own[0] + example + 1) if scalar else (own[example], own[example + 1])
            yield example, int(column), _Bag(bags.inverse[start:stop], weights[start:stop], Pooling(pooling))
