"""TorchRec's KeyedJaggedTensor, taken by its shape: raw ids by feature to a FeatureBatch. TorchRec is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from ..feature_map.batch import FeatureBatch
from .errors import FeatureMismatchError


@runtime_checkable
class KeyedJagged(Protocol):
    """The part of KeyedJaggedTensor that is read: feature-major values with a length for each (feature, example)."""

    def keys(self) -> list[str]:
        """Feature names."""

    def values(self) -> torch.Tensor:
        """(N,) ids, feature after feature."""

    def lengths(self) -> torch.Tensor:
        """(F·B,) ids of each bag."""

    def weights_or_none(self) -> torch.Tensor | None:
        """(N,) value weights, or None."""


class ValueEncoder(Protocol):
    """Raw values of a feature to keys; the feature map is one."""

    def encode_values(self, feature: str, values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """(n,) uint64 keys of (n,) raw ids."""


def feature_batch_of(jagged: KeyedJagged, features: Sequence[str], encoder: ValueEncoder | None) -> FeatureBatch:
    """The batch of `features` in a KeyedJaggedTensor, in their order; others in it are left out.

    encoder: maps raw ids to keys; None takes the values' bits as keys.
    Raises: FeatureMismatchError naming features that are missing; TypeError on values that are not integers."""
    if not all(hasattr(jagged, verb) for verb in ("keys", "values", "lengths", "weights_or_none")):
        raise TypeError(f"expected a FeatureBatch, a TensorBatch or a KeyedJaggedTensor, got {type(jagged).__name__}")
    names = list(jagged.keys())
    missing = [feature for feature in features if feature not in names]
    if missing:
        raise FeatureMismatchError(f"expected features {list(features)} in the KeyedJaggedTensor, missing {missing}")
    values, lengths = jagged.values().detach().cpu(), jagged.lengths().detach().cpu().long()
    if values.is_floating_point() or values.dtype == torch.bool:
        raise TypeError(f"expected integer ids in the KeyedJaggedTensor, got {values.dtype}")
    size = len(lengths) // len(names) if names else 0
    weights = jagged.weights_or_none()
    bounds = np.concatenate([[0], np.cumsum(lengths.numpy())])
    raw = values.to(torch.int64).numpy()
    keys, counts, own_weights, scalar = [], [], [], []
    for feature in features:
        first = names.index(feature) * size
        part = slice(int(bounds[first]), int(bounds[first + size]))
        own = np.ascontiguousarray(raw[part])
        keys.append(own.view(np.uint64) if encoder is None else encoder.encode_values(feature, own))
        own_lengths = lengths[first : first + size].numpy()
        counts.append(own_lengths)
        scalar.append(bool((own_lengths == 1).all()))
        if weights is not None:
            own_weights.append(weights.detach().cpu().float().numpy()[part])
    return FeatureBatch(
        size=size,
        features=tuple(features),
        keys=np.concatenate([np.empty(0, np.uint64), *keys]),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.empty(0, np.int64), *counts]))]),
        scalar=tuple(scalar),
        dense=np.empty((size, 0), np.float32),
        weights=np.concatenate(own_weights) if own_weights else None,
    )
