"""Factorization machine over sparse features."""

from __future__ import annotations

import torch
from torch import nn

from .embedding_output import EmbeddingOutput


class FactorizationMachine(nn.Module):
    """Logit = bias + Σ linear weights + Σ_{i<j} ⟨e_i, e_j⟩ + dense · w (Rendle 2010, eq. 1).

    The tables have blocks `linear` (dim 1) and `factors`.
    """

    def __init__(self, dense_width: int = 0) -> None:
        super().__init__()
        self.dense = nn.Linear(dense_width, 1, bias=False) if dense_width else None
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits; dense is (B, dense_width)."""
        terms = inputs.interaction(dense)
        logit = terms.first_order + terms.second_order + self.bias
        return logit if self.dense is None else logit + self.dense(dense).squeeze(1)
