"""DeepFM: a factorization machine and an MLP over the same embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .embedding_output import EmbeddingOutput
from .mlp import mlp


class DeepFM(nn.Module):
    """Logit = Σ linear weights + Σ_{i<j} ⟨e_i, e_j⟩ + MLP(e_1 … e_F, dense) (Guo 2017, arXiv 1703.04247, eq. 1–4).

    The tables have blocks `linear` (dim 1) and `factors` (`dim`); the MLP's last bias is the model's bias.
    """

    def __init__(
        self,
        fields: int,
        dim: int,
        dense_width: int = 0,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.mlp = mlp(fields * dim + dense_width, hidden, dropout=dropout)

    def forward(self, inputs: EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits; dense is (B, dense_width)."""
        terms = inputs.interaction(dense)
        deep: torch.Tensor = self.mlp(terms.mlp_input).squeeze(1)
        return deep + terms.first_order + terms.second_order
