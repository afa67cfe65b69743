"""Pooling of rows with gradients: native kernels on CPU, torch operations on other devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..embedding.batch_rows import (
    Bags,
    Interaction,
    InteractionGradient,
    Pooling,
    RowColumns,
    pool_interaction,
    pool_rows,
    sum_interaction_gradients,
    sum_row_gradients,
)

_NATIVE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
"""What native functions read and write, whatever torch's defaults are."""


@dataclass(frozen=True, slots=True)
class InteractionTerms:
    """What FM and DeepFM read of a batch; see `batch_rows.Interaction`.

    mlp_input: (B, F·D + W): pooled factors field after field, then the dense floats it was asked with.
    first_order, second_order: (B,).
    """

    mlp_input: torch.Tensor
    first_order: torch.Tensor
    second_order: torch.Tensor


@dataclass(frozen=True, slots=True)
class InteractionColumns:
    """Where in the rows an interaction's factors lie, and its linear weight (None: it has none)."""

    factors: RowColumns
    linear: int | None


def pooled(
    rows: torch.Tensor, block: RowColumns, bags: Bags, examples: int, inverse: torch.Tensor | None = None
) -> torch.Tensor:
    """(B, K·dim) pooled rows of the K fields of `bags`, side by side.

    rows: (n, D) float32.   inverse: `bags.inverse` on the rows' device, for rows that are not on CPU."""
    if rows.device.type == "cpu":
        result: torch.Tensor = _PoolRows.apply(rows, block, bags, examples)  # type: ignore[no-untyped-call]
        return result
    return pooled_by_torch(rows, block, bags, examples, inverse)


def interaction(rows: torch.Tensor, columns: InteractionColumns, bags: Bags, dense: torch.Tensor) -> InteractionTerms:
    """Terms of a factorization machine over CPU rows, in one pass over them; `dense` (B, W) ends the MLP input."""
    terms = _Interaction.apply(rows, columns, bags, dense)  # type: ignore[no-untyped-call]
    return InteractionTerms(*terms)


def interaction_of(
    pooled_factors: torch.Tensor, dim: int, first_order: torch.Tensor, dense: torch.Tensor
) -> InteractionTerms:
    """The same terms by torch operations: any device, rows of any groups. pooled_factors: (B, F·D)."""
    fields = pooled_factors.view(len(pooled_factors), -1, dim)
    sums = fields.sum(1)
    second_order = 0.5 * (sums * sums - (fields * fields).sum(1)).sum(1)
    mlp_input = torch.cat([pooled_factors, dense], 1) if dense.shape[1] else pooled_factors
    return InteractionTerms(mlp_input, first_order, second_order)


def sum_fields(fields: torch.Tensor) -> torch.Tensor:
    """(B,) sums of (B, F) numbers, field after field: a field of zeros changes no bit, wherever it stands."""
    total: torch.Tensor = _SumFields.apply(fields)  # type: ignore[no-untyped-call]
    return total


class _SumFields(Function):
    @staticmethod
    def forward(ctx: Any, fields: torch.Tensor) -> torch.Tensor:
        ctx.shape = fields.shape
        total = fields.new_zeros(len(fields))
        for field in fields.t().contiguous():
            total += field
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient[:, None].expand(ctx.shape)


class _PoolRows(Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, block: RowColumns, bags: Bags, examples: int) -> torch.Tensor:
        out = torch.empty((examples, len(bags.fields) * block.dim), **_NATIVE)
        pool_rows(rows.detach().numpy(), block, bags, out.numpy())
        ctx.save_for_backward(rows)
        ctx.block, ctx.bags = block, bags
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        total = torch.zeros(rows.shape, **_NATIVE)
        sum_row_gradients(rows.detach().numpy(), ctx.block, ctx.bags, _with_dense_rows(gradient).numpy(), total.numpy())
        return total, None, None, None


class _Interaction(Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, columns: InteractionColumns, bags: Bags, dense: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width = len(bags.fields) * columns.factors.dim
        mlp_input = torch.empty((len(dense), width + dense.shape[1]), **_NATIVE)
        mlp_input[:, width:] = dense
        terms = pool_interaction(rows.detach().numpy(), columns.factors, columns.linear, bags, mlp_input.numpy())
        ctx.save_for_backward(rows, mlp_input)
        ctx.set_materialize_grads(False)
        ctx.columns, ctx.bags, ctx.factor_sums = columns, bags, terms.factor_sums
        return mlp_input, torch.from_numpy(terms.first_order), torch.from_numpy(terms.second_order)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        gradient: torch.Tensor | None,
        first_order: torch.Tensor | None,
        second_order: torch.Tensor | None,
    ) -> Any:
        rows, mlp_input = ctx.saved_tensors
        factors: RowColumns = ctx.columns.factors
        total, dense = None, None
        if ctx.needs_input_grad[0]:
            total = torch.zeros(rows.shape, **_NATIVE)
            none = np.empty(0, np.float32)
            sum_interaction_gradients(
                rows.detach().numpy(),
                factors,
                ctx.columns.linear,
                ctx.bags,
                forward=Interaction(mlp_input.detach().numpy(), none, none, ctx.factor_sums),
                gradient=InteractionGradient(
                    None if gradient is None else _with_dense_rows(gradient).numpy(),
                    None if first_order is None else first_order.contiguous().numpy(),
                    None if second_order is None else second_order.contiguous().numpy(),
                ),
                out=total.numpy(),
            )
        if ctx.needs_input_grad[3] and gradient is not None:
            dense = gradient[:, len(ctx.bags.fields) * factors.dim :]
        return total, None, None, dense


def _with_dense_rows(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with columns next to each other; rows may be strided or, where autograd expanded one, repeated."""
    return gradient if gradient.stride(-1) == 1 or gradient.shape[-1] == 1 else gradient.contiguous()


def pooled_by_torch(
    rows: torch.Tensor, block: RowColumns, bags: Bags, examples: int, inverse: torch.Tensor | None = None
) -> torch.Tensor:
    """As `pooled`, by torch operations on any device."""
    if inverse is None:
        inverse = torch.from_numpy(bags.inverse).to(rows.device)
    columns = rows[:, block.first : block.first + block.dim]
    weights = None if bags.weights is None else torch.from_numpy(bags.weights).to(rows.device)
    offsets = torch.from_numpy(bags.offsets)
    parts = []
    for feature, _, pooling, _ in bags.fields.tolist():
        bounds = offsets[feature * examples : (feature + 1) * examples + 1]
        values = slice(int(bounds[0]), int(bounds[-1]))
        numbers = inverse[values].long() - block.row_start
        own_weights = None if weights is None else weights[values]
        parts.append(_pool_bags(columns, numbers, own_weights, (bounds - bounds[0]).to(rows.device), Pooling(pooling)))
    return torch.cat(parts, 1)


def _pool_bags(
    columns: torch.Tensor,
    numbers: torch.Tensor,
    weights: torch.Tensor | None,
    bounds: torch.Tensor,
    pooling: Pooling,
) -> torch.Tensor:
    lengths = bounds.diff()
    values = columns[numbers]
    if weights is not None:
        values = values * weights[:, None]
    bag = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    if pooling is Pooling.MAX:
        return _first_maxima(values, bag, lengths)
    total = values.new_zeros((len(lengths), values.shape[1])).index_add(0, bag, values)
    if pooling is Pooling.SUM:
        return total
    ones = values.new_ones(len(numbers)) if weights is None else weights
    terms = ones if pooling is Pooling.MEAN else ones * ones
    divisor = values.new_zeros(len(lengths)).index_add(0, bag, terms)
    divisor = divisor if pooling is Pooling.MEAN else divisor.sqrt()
    return torch.where(divisor[:, None] != 0, total / torch.where(divisor == 0, 1, divisor)[:, None], 0.0)


def _first_maxima(values: torch.Tensor, bag: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, D) largest value of each bag and column, 0 for empty bags; the first place that holds it gets the gradient.

    segment_reduce's own backward gives negative gradients of equal values to each of them (torch 2.13)."""
    if not len(values):
        return values.new_zeros((len(lengths), values.shape[1]))
    with torch.no_grad():
        most = torch.segment_reduce(values, "max", lengths=lengths, axis=0, initial=float("-inf"))
        holds = (values == most[bag]) | values.isnan()
        places = torch.arange(len(values), device=values.device)[:, None].where(holds, len(values))
        first = places.new_full((len(lengths), values.shape[1]), len(values) - 1)
        first = first.scatter_reduce(0, bag[:, None].expand_as(places), places, "amin")
    return torch.where(lengths[:, None] > 0, values.gather(0, first), 0.0)
