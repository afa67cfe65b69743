"""Factorization machine over sparse features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..feature_map.feature_map import FeatureMap
from .added_columns import AddedColumns
from .embedding_output import EmbeddingOutput
from .input_columns import AddedInputs, dense_names


class FactorizationMachine(nn.Module):
    """Logit = bias + Σ linear weights + Σ_{i<j} ⟨e_i, e_j⟩ + dense · w (Rendle 2010, eq. 1).

    The tables have blocks `linear` (dim 1) and `factors`.
    added: inputs that came after training had begun; a field or dense column of zeros is neutral.
    """

    def __init__(self, dense_width: int = 0, *, added: Sequence[AddedInputs] = ()) -> None:
        super().__init__()
        self.added = AddedColumns(dense_width, 1, [block.dense for block in added])
        self.dense = nn.Linear(len(self.added.first), 1, bias=False) if self.added.first else None
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits; dense is (B, dense_width)."""
        terms = inputs.interaction(dense)
        logit = terms.first_order + terms.second_order + self.bias
        return logit + self.added(self.dense, dense).squeeze(1) if dense.shape[1] else logit

    def input_columns(self, features: FeatureMap) -> dict[str, list[str]]:
        """Parameter → the feature of each of its columns; see `model_growth.GrowingModel`."""
        return self.added.named(dense_names(features), None if self.dense is None else "dense")
