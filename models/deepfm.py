"""DeepFM: a factorization machine and an MLP over the same embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..feature_map.feature_map import FeatureMap
from .added_columns import AddedColumns
from .embedding_output import EmbeddingOutput
from .input_columns import AddedInputs, dense_names, pooled_names
from .mlp import mlp


class DeepFM(nn.Module):
    """Logit = Σ linear weights + Σ_{i<j} ⟨e_i, e_j⟩ + MLP(e_1 … e_F, dense) (Guo 2017, arXiv 1703.04247, eq. 1–4).

    The tables have blocks `linear` (dim 1) and `factors` (`dim`); the MLP's last bias is the model's bias.
    added: inputs that came after training had begun; a field or dense column of zeros is neutral.
    """

    def __init__(
        self,
        fields: int,
        dim: int,
        dense_width: int = 0,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        added: Sequence[AddedInputs] = (),
    ) -> None:
        super().__init__()
        columns = fields * dim + dense_width
        blocks = [
            [
                *(field * dim + place for field in block.fields for place in range(dim)),
                *(fields * dim + column for column in block.dense),
            ]
            for block in added
        ]
        self.dim = dim
        self.added = AddedColumns(columns, hidden[0] if hidden else 1, blocks)
        self.mlp = mlp(len(self.added.first), hidden, dropout=dropout)

    def forward(self, inputs: EmbeddingOutput, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits; dense is (B, dense_width)."""
        terms = inputs.interaction(dense)
        first, *others = self.mlp
        deep: torch.Tensor = self.added(first, terms.mlp_input)
        for layer in others:
            deep = layer(deep)
        return deep.squeeze(1) + terms.first_order + terms.second_order

    def input_columns(self, features: FeatureMap) -> dict[str, list[str]]:
        """Parameter → the feature of each of its columns; see `model_growth.GrowingModel`."""
        names = [name for name in pooled_names(features) for _ in range(self.dim)] + [*dense_names(features)]
        return self.added.named(names, "mlp.0")
