"""Columns of a model's first layer that came later, each block of them a linear map of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Runs = tuple[slice, ...]


class AddedColumns(nn.ModuleList):
    """Linear maps beside a first layer: y = first(x[:, began with]) + Σ_b x[:, b] W_bᵀ.

    The first layer keeps its shape, so its product keeps its bits, and columns of zeros add exactly 0 to it: a model
    with more inputs answers as before until they carry something. A block starts from random weights, as in one layer
    over all columns: uniform ±1/√columns (torch.nn.Linear).

    Without blocks it holds nothing and y is the first layer's alone.
    """

    def __init__(self, columns: int, outputs: int, blocks: Sequence[Sequence[int]]) -> None:
        """columns: of the whole input.   blocks: column numbers that came later, disjoint; empty ones are left out."""
        super().__init__()
        self._outputs = outputs
        self.blocks = tuple(tuple(sorted(block)) for block in blocks if block)
        later = {column for block in self.blocks for column in block}
        self.first = tuple(column for column in range(columns) if column not in later)
        self._runs = tuple(_runs(block) for block in (self.first, *self.blocks))
        bound = 1.0 / math.sqrt(max(columns, 1))
        for block in self.blocks:
            layer = nn.Linear(len(block), outputs, bias=False)
            nn.init.uniform_(layer.weight, -bound, bound)
            self.append(layer)

    def forward(self, first: nn.Module | None, inputs: torch.Tensor) -> torch.Tensor:
        """y (B, outputs) of inputs (B, columns); `first` takes the columns it began with, None: there are none."""
        if not self.blocks and first is not None:
            y: torch.Tensor = first(inputs)
            return y
        own, *later = _SplitColumns.apply(inputs, self._runs)  # type: ignore[no-untyped-call]
        y = inputs.new_zeros((len(inputs), self._outputs)) if first is None else first(own)
        for number, part in enumerate(later):
            weight = self.get_parameter(f"{number}.weight").t()
            is_alike = y.dtype == part.dtype == weight.dtype  # else autocast brings them together
            y = y.addmm_(part, weight) if is_alike else torch.addmm(y, part, weight)
        return y

    def named(self, names: Sequence[str], first: str | None) -> dict[str, list[str]]:
        """Weight → the name of each of its columns, for a model that holds this as `added` beside layer `first`.

        names: of all columns."""
        found = {} if first is None else {f"{first}.weight": [names[column] for column in self.first]}
        return found | {
            f"added.{number}.weight": [names[column] for column in block] for number, block in enumerate(self.blocks)
        }


def _runs(columns: Sequence[int]) -> Runs:
    """Ascending columns as slices of neighbours."""
    runs: list[slice] = []
    for column in columns:
        if runs and runs[-1].stop == column:
            runs[-1] = slice(runs[-1].start, column + 1)
        else:
            runs.append(slice(column, column + 1))
    return tuple(runs)


class _SplitColumns(Function):
    """Columns of a matrix as several matrices, each in memory of its own: products of equal parts give equal bits."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, parts: tuple[Runs, ...]) -> tuple[torch.Tensor, ...]:
        ctx.parts, ctx.shape = parts, inputs.shape
        return tuple(
            torch.cat([inputs[:, run] for run in runs], 1) if runs else inputs.new_empty((len(inputs), 0))
            for runs in parts
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].new_empty(ctx.shape)
        for runs, gradient in zip(ctx.parts, gradients, strict=True):
            start = 0
            for run in runs:
                width = run.stop - run.start
                total[:, run] = gradient[:, start : start + width]
                start += width
        return total, None
