"""Logistic regression over sparse features."""

from __future__ import annotations

import torch
from torch import nn

from .embedding_output import EmbeddingOutput


class LogisticRegression(nn.Module):
    """Logit = Σ linear weights + dense · w + bias; the tables have a block `linear` of dim 1."""

    def __init__(self, dense_width: int = 0) -> None:
        super().__init__()
        self.dense = nn.Linear(dense_width, 1, bias=False) if dense_width else None
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits; dense is (B, dense_width)."""
        logit = inputs.block("linear").sum((1, 2)) + self.bias
        return logit if self.dense is None else logit + self.dense(dense).squeeze(1)
