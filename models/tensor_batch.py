"""TensorBatch: what a model sees of a batch beside its embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..datasets.work_unit import BatchId
from ..feature_map.batch import FeatureBatch
from .device_transfer import DeviceTransfer


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """Dense floats and labels of `B` examples as tensors on the model's device.

    dense: (B, W) float32.   label: (B,) or (B, L) float32, or None.   example_weight: (B,) float32 or None.
    features: the batch it was made of, with its keys and id.
    """

    dense: torch.Tensor
    label: torch.Tensor | None
    example_weight: torch.Tensor | None
    features: FeatureBatch

    @classmethod
    def of(cls, batch: FeatureBatch, transfer: DeviceTransfer) -> TensorBatch:
        """The batch's arrays moved by `transfer`; on CPU they are shared, not copied."""
        label, weight = batch.label, batch.example_weight
        return cls(
            transfer.tensor(batch.dense),
            None if label is None else transfer.tensor(label),
            None if weight is None else transfer.tensor(weight),
            batch,
        )

    def __len__(self) -> int:
        return self.features.size

    @property
    def id(self) -> BatchId | None:
        """Which batch of which work unit this is."""
        return self.features.id

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors there are."""
        return (tensor for tensor in (self.dense, self.label, self.example_weight) if tensor is not None)
