"""FeatureBatch: the one ragged type between the click log and the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..datasets.work_unit import BatchId


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Keys of `F` categorical features and dense floats of `B` examples, feature-major (as a KeyedJaggedTensor).

    Drawn for B = 3, features ("user", "genres"):

        user      7        8        7           keys    = [7, 8, 7, 1, 2, 3]
        genres    [1, 2]   []       [3]         offsets = [0, 1, 2, 3, 5, 5, 6]

    features: names, in feature-map order.
    keys:     (N,) uint64.
    offsets:  (F*B + 1,) int64; the keys of feature f, example b are keys[offsets[f*B+b] : offsets[f*B+b+1]].
    scalar:   per feature, whether each of its bags holds exactly one key (lets consumers skip the offsets).
    weights:  (N,) float32 value weights, or None where every value weighs 1.
    dense:    (B, W) float32, columns in feature-map order; W may be 0.
    label:    (B,) float32 in [0, 1]; (B, L) with several labels; None where the records had none (predict).
    example_weight, group, event_time: (B,) float32 | (B,) uint64 | (B,) int64 seconds since the epoch, or None.
    id:       which batch of which work unit this is, or None for a batch made by hand.

    Arrays are never written after construction. Thread safety: immutable.
    """

    size: int
    features: tuple[str, ...]
    keys: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    scalar: tuple[bool, ...]
    dense: npt.NDArray[np.float32]
    label: npt.NDArray[np.float32] | None = None
    weights: npt.NDArray[np.float32] | None = None
    example_weight: npt.NDArray[np.float32] | None = None
    group: npt.NDArray[np.uint64] | None = None
    event_time: npt.NDArray[np.int64] | None = None
    id: BatchId | None = None

    def __len__(self) -> int:
        """Number of examples, `B`."""
        return self.size

    def feature_slice(self, index: int) -> slice:
        """Where the keys of feature number `index` lie in `keys`."""
        start, stop = index * self.size, (index + 1) * self.size
        return slice(int(self.offsets[start]), int(self.offsets[stop]))

    def keys_of(self, feature: str) -> npt.NDArray[np.uint64]:
        """(n,) uint64 keys of one feature, example after example. Raises: KeyError naming the features there are."""
        try:
            return self.keys[self.feature_slice(self.features.index(feature))]
        except ValueError:
            raise KeyError(f"expected one of features {list(self.features)}, got {feature!r}") from None

    def bag_lengths(self, feature: str) -> npt.NDArray[np.int64]:
        """(B,) int64 number of keys each example has for one feature."""
        index = self.features.index(feature)
        return np.diff(self.offsets[index * self.size : (index + 1) * self.size + 1])
