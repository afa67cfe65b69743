"""Rows of one batch between pull and push."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..embedding.batch_rows import UniqueKeys
from ..embedding.store import Push, PushToken, Rows
from ..feature_map.batch import FeatureBatch
from .device_transfer import DeviceTransfer
from .row_layout import RowLayout


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """A batch and its unique keys: all that a pull needs. prepared: `Push.prepared` of its push."""

    batch: FeatureBatch
    unique: UniqueKeys
    prepared: object | None = None


class PulledRows:
    """The rows of a batch as leaf tensors, one (n, width) matrix a row group; backward leaves gradients in them.

    recomputed: pulled again, since the store refused the batch's first push as stale.

    Thread safety: made by the thread that pulls, then used by the thread that trains.
    """

    def __init__(
        self, keyed: KeyedBatch, rows: Rows, layout: RowLayout, transfer: DeviceTransfer, *, recomputed: bool = False
    ) -> None:
        self.recomputed = recomputed
        self.batch = keyed.batch
        self.unique = keyed.unique
        self._prepared = keyed.prepared
        self.layout = layout
        self.seen_pushes = rows.pushes
        self.row_starts = [int(self.unique.keys.splits[group.first_table]) for group in layout.groups]
        flat = transfer.tensor(rows.values)
        self.leaves: list[torch.Tensor] = []
        start = 0
        for group, row_start in zip(layout.groups, self.row_starts, strict=True):
            count = int(self.unique.keys.splits[group.first_table + group.table_count]) - row_start
            self.leaves.append(flat[start : start + count * group.width].view(count, group.width))
            start += count * group.width
        self._transfer = transfer
        self._inverse: torch.Tensor | None = None

    def require_gradients(self) -> None:
        """Make backward leave gradients in the rows."""
        for leaf in self.leaves:
            leaf.requires_grad_()

    @property
    def has_gradients(self) -> bool:
        """Whether backward reached any of the rows."""
        return any(leaf.grad is not None for leaf in self.leaves)

    @property
    def has_finite_gradients(self) -> bool:
        """Whether backward reached any of the rows, and all that it left is finite."""
        return self.has_gradients and all(
            bool(leaf.grad.isfinite().all()) for leaf in self.leaves if leaf.grad is not None
        )

    def device_inverse(self) -> torch.Tensor:
        """(N,) int32 row number of each key of the batch, on the device."""
        if self._inverse is None:
            self._inverse = torch.from_numpy(self.unique.inverse).to(self._transfer.device)
        return self._inverse

    def take_gradients(self) -> npt.NDArray[np.float32]:
        """(Σ n·width,) float32 gradients, group after group; rows that backward did not reach give zeros.

        The leaves give their gradients away: `grad` is None afterwards."""
        parts = []
        for leaf in self.leaves:
            gradient, leaf.grad = leaf.grad, None
            array = (
                np.zeros(leaf.numel(), np.float32) if gradient is None else self._transfer.host(gradient).reshape(-1)
            )
            parts.append(array)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def add_gradients(self, other: PulledRows) -> None:
        """Take over the gradients of another pull of the same batch."""
        for leaf, more in zip(self.leaves, other.leaves, strict=True):
            if more.grad is not None:
                leaf.grad = more.grad if leaf.grad is None else leaf.grad + more.grad
        other.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget what backward left in the leaves."""
        for leaf in self.leaves:
            leaf.grad = None

    def push(
        self, gradients: npt.NDArray[np.float32], token: PushToken | None, *, step: int, now: int, lr_scale: float
    ) -> Push:
        """The push of these rows' gradients."""
        prepared, self._prepared = self._prepared, None
        return Push(
            token,
            self.unique.keys,
            gradients,
            self.unique.occurrences,
            max(self.batch.size, 1),  # an empty batch is pushed too, so that its turn counts as taken
            step,
            now,
            lr_scale,
            self.seen_pushes,
            self.recomputed,
            self.layout.clicks(self.batch, self.unique),
            prepared,
        )


def parameters_of(pulled: Sequence[PulledRows]) -> list[torch.Tensor]:
    """The leaf tensors of several pulls."""
    return [leaf for rows in pulled for leaf in rows.leaves]
