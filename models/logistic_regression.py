"""Logistic regression over sparse features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..feature_map.feature_map import FeatureMap
from .added_columns import AddedColumns
from .embedding_output import EmbeddingOutput
from .input_columns import AddedInputs, dense_names
from .row_functions import sum_fields


class LogisticRegression(nn.Module):
    """Logit = Σ linear weights + dense · w + bias; the tables have a block `linear` of dim 1.

    Numbers alone are enough: there are no tables then.
    added: inputs that came after training had begun; a field or dense column of zeros is neutral.
    """

    def __init__(self, dense_width: int = 0, *, added: Sequence[AddedInputs] = ()) -> None:
        super().__init__()
        self.added = AddedColumns(dense_width, 1, [block.dense for block in added])
        self.dense = nn.Linear(len(self.added.first), 1, bias=False) if self.added.first else None
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits; dense is (B, dense_width)."""
        if not inputs.keys() and not inputs.sequence_keys():
            logit = self.bias.expand(len(inputs))
        else:
            logit = sum_fields(inputs.block("linear").squeeze(2)) + self.bias
        return logit + self.added(self.dense, dense).squeeze(1) if dense.shape[1] else logit

    def input_columns(self, features: FeatureMap) -> dict[str, list[str]]:
        """Parameter → the feature of each of its columns; see `model_growth.GrowingModel`."""
        return self.added.named(dense_names(features), None if self.dense is None else "dense")
