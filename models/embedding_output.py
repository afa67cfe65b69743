"""What an embedding collection gives for a batch: pooled vectors by feature or block, sequences as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..embedding.batch_rows import Bags, Pooling, RowColumns, pooled_fields
from .pulled_rows import PulledRows
from .row_functions import InteractionColumns, InteractionTerms, interaction, interaction_of, pooled


class JaggedRows:
    """Vectors of a sequence feature, example after example (as a JaggedTensor).

    offsets [0 2 2 3]   values [v0 v1 | | v2]   → example 0 has v0 v1, example 1 nothing, example 2 v2
    """

    def __init__(self, values: torch.Tensor, offsets: torch.Tensor) -> None:
        """values: (N, D).   offsets: (B + 1,) int64."""
        self._values, self._offsets = values, offsets

    def values(self) -> torch.Tensor:
        """(N, D) vectors of all examples."""
        return self._values

    def offsets(self) -> torch.Tensor:
        """(B + 1,) int64: the vectors of example b are values()[offsets[b] : offsets[b + 1]]."""
        return self._offsets

    def lengths(self) -> torch.Tensor:
        """(B,) int64 vectors an example."""
        return self._offsets.diff()

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> torch.Tensor:
        """(B, L, D): each example's vectors, cut or padded to `desired_length` (default: the longest)."""
        lengths = self.lengths()
        longest = int(lengths.max()) if len(lengths) else 0
        length = longest if desired_length is None else desired_length
        place = torch.arange(length, device=lengths.device)
        inside = place[None, :] < lengths[:, None]
        padded = self._values.new_full((len(lengths), length, self._values.shape[1]), padding_value)
        padded[inside] = self._values[(self._offsets[:-1, None] + place[None, :])[inside]]
        return padded

    def to_dense(self) -> list[torch.Tensor]:
        """(L_b, D) vectors of each example."""
        return list(torch.split(self._values, self.lengths().tolist()))


class EmbeddingOutput:
    """Embeddings of a batch, pooled when asked for; the same question twice is answered from memory (as a KeyedTensor).

    Thread safety: one thread, that of the step.
    """

    def __init__(self, rows: PulledRows) -> None:
        self.rows = rows
        self._layout = rows.layout
        self._examples = rows.batch.size
        # By whether gradients are recorded: what was made without them would train nothing.
        self._pooled: dict[tuple[int, str | None, bool], torch.Tensor] = {}
        self._sequences: dict[tuple[str, bool], JaggedRows] = {}
        self._groups = {
            slot.name: place
            for place, group in enumerate(self._layout.groups)
            for slot in (*group.slots, *group.sequences)
        }

    def __len__(self) -> int:
        """Number of examples, `B`."""
        return self._examples

    def keys(self) -> list[str]:
        """Names of the pooled features, in feature-map order."""
        return [slot.name for slot in self._layout.slots.values() if slot.pooling is not None]

    def sequence_keys(self) -> list[str]:
        """Names of the features with pooling `none`."""
        return [slot.name for slot in self._layout.slots.values() if slot.pooling is None]

    def length_per_key(self) -> list[int]:
        """Columns of each pooled feature in `values()`."""
        return [self._layout.groups[self._groups[name]].width for name in self.keys()]

    def values(self) -> torch.Tensor:
        """(B, ΣD) vectors of the pooled features side by side, in the order of `keys()`."""
        if not any(group.slots for group in self._layout.groups):
            raise KeyError(f"expected at least one pooled feature, got {self._others()}")
        if len(self._layout.groups) == 1:
            return self._pool(0, None)
        return torch.cat([self._of(name) for name in self.keys()], 1)

    def to_dict(self) -> dict[str, torch.Tensor]:
        """Name → (B, D), of the pooled features."""
        return {name: self._of(name) for name in self.keys()}

    def __getitem__(self, feature: str) -> torch.Tensor:
        """(B, D) pooled vectors of a feature. Raises: KeyError naming the features there are."""
        if feature not in self.keys():
            hint = " (a sequence feature: use sequence())" if feature in self.sequence_keys() else ""
            raise KeyError(f"expected one of features {self.keys()}, got {feature!r}{hint}")
        return self._of(feature)

    def sequence(self, feature: str) -> JaggedRows:
        """Vectors of a feature with pooling `none`. Raises: KeyError naming those there are."""
        if feature not in self.sequence_keys():
            raise KeyError(f"expected one of sequence features {self.sequence_keys()}, got {feature!r}")
        asked = feature, torch.is_grad_enabled()
        if asked not in self._sequences:
            self._sequences[asked] = self._sequence(feature)
        return self._sequences[asked]

    def block(self, name: str) -> torch.Tensor:
        """(B, F, dim) of one column block, of all pooled features that have it.

        Raises: KeyError naming the blocks there are; ValueError on unequal dims."""
        groups = [place for place, group in enumerate(self._layout.groups) if name in group.blocks and group.slots]
        if not groups:
            known = sorted({block for group in self._layout.groups for block in group.blocks})
            if known and name not in known:
                raise KeyError(f"expected one of blocks {known}, got {name!r}")
            raise KeyError(f"expected at least one pooled feature for the model's block {name!r}, got {self._others()}")
        dims = {self._layout.groups[place].blocks[name].dim for place in groups}
        if len(dims) > 1:
            raise ValueError(f"expected block {name!r} of one dim in all tables, got dims {sorted(dims)}")
        dim = dims.pop()
        parts = [self._pool(place, name).view(self._examples, -1, dim) for place in groups]
        if len(parts) == 1:
            return parts[0]
        order = [slot.index for place in groups for slot in self._layout.groups[place].slots]
        return torch.cat(parts, 1)[:, torch.from_numpy(np.argsort(order)).to(parts[0].device)]

    def interaction(
        self, dense: torch.Tensor, linear: str | None = "linear", factors: str = "factors"
    ) -> InteractionTerms:
        """Terms of a factorization machine over all pooled features, with `dense` (B, W) at the end of the MLP input.

        On CPU one pass over the rows gives all of them. linear: block of dim 1, or None."""
        groups = [place for place, group in enumerate(self._layout.groups) if group.slots]
        group = self._layout.groups[groups[0]] if groups else None
        blocks = {} if group is None else group.blocks
        if len(groups) == 1 and factors in blocks and (linear is None or linear in blocks) and self._on_cpu(groups[0]):
            block = self._placed(groups[0], blocks[factors])
            columns = InteractionColumns(block, None if linear is None else blocks[linear].first)
            return interaction(self.rows.leaves[groups[0]], columns, self._bags(groups[0], block.dim), dense)
        fields = self.block(factors)
        first_order = fields.new_zeros(self._examples) if linear is None else self.block(linear).sum((1, 2))
        return interaction_of(fields.flatten(1), fields.shape[2], first_order, dense)

    def _others(self) -> str:
        """The features that there are where none is pooled."""
        return f"only {self.sequence_keys()} with pooling none" if self.sequence_keys() else "none with keys"

    def _of(self, feature: str) -> torch.Tensor:
        place = self._groups[feature]
        group = self._layout.groups[place]
        column = [slot.name for slot in group.slots].index(feature) * group.width
        return self._pool(place, None)[:, column : column + group.width]

    def _on_cpu(self, place: int) -> bool:
        return self.rows.leaves[place].device.type == "cpu"

    def _placed(self, place: int, block: RowColumns) -> RowColumns:
        return replace(block, row_start=self.rows.row_starts[place])

    def _bags(self, place: int, dim: int) -> Bags:
        batch = self.rows.batch
        fields = self._layout.groups[place].fields(dim, batch.scalar)
        return Bags(self.rows.unique.inverse, batch.offsets, batch.weights, fields)

    def _pool(self, place: int, name: str | None) -> torch.Tensor:
        """(B, K·dim) of a block, or of the whole rows."""
        asked = place, name, torch.is_grad_enabled()
        known = self._pooled.get(asked)
        if known is None:
            group = self._layout.groups[place]
            block = self._placed(place, group.whole if name is None else group.blocks[name])
            bags = self._bags(place, block.dim)
            inverse = None if self._on_cpu(place) else self.rows.device_inverse()
            known = pooled(self.rows.leaves[place], block, bags, self._examples, inverse)
            self._pooled[asked] = known
        return known

    def _sequence(self, feature: str) -> JaggedRows:
        place = self._groups[feature]
        slot, batch, leaf = self._layout.slots[feature], self.rows.batch, self.rows.leaves[place]
        values = batch.feature_slice(slot.index)
        offsets = batch.offsets[slot.index * batch.size : (slot.index + 1) * batch.size + 1]
        # Every value is a bag of its own: pooling a bag of one is a copy of its row.
        count = values.stop - values.start
        weights = None if batch.weights is None else batch.weights[values]
        bags = Bags(
            self.rows.unique.inverse[values],
            np.arange(count + 1, dtype=np.int64),
            weights,
            pooled_fields([0], [0], [Pooling.SUM], [True]),
        )
        inverse = None if self._on_cpu(place) else self.rows.device_inverse()[values]
        block = self._placed(place, self._layout.groups[place].whole)
        vectors = pooled(leaf, block, bags, count, inverse)
        bounds = torch.from_numpy(offsets - offsets[0]).to(leaf.device)
        return JaggedRows(vectors, bounds)
