"""Negative down-sampling with the weight that corrects for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .errors import ClickLogError, DataFileError
from .record_stage import Origin, with_column
from .row_order import hashes, mix
from .schema import ColumnSpec

WEIGHT_COLUMN = "sampling_weight"


@dataclass(frozen=True, slots=True)
class NegativeSampling:
    """Keeps every row whose label is above 0 and a share `keep` of the others, other ones in each epoch.

    The column `weight` becomes 1 for the former and 1 / `keep` for the latter, times its value where the files have it
    and `multiply` is set: a mean loss weighted by it has the expectation of the loss over all rows, so the model stays
    calibrated. Which rows are kept is a function of (seed, epoch, file, row).
    """

    keep: float
    label: str = "label"
    weight: str = WEIGHT_COLUMN
    seed: int = 0
    multiply: bool = False
    kept_share: Literal[None] = None

    def __post_init__(self) -> None:
        if not 0.0 < self.keep <= 1.0:
            raise ClickLogError(f"expected keep in (0, 1], got {self.keep}")

    @property
    def inputs(self) -> tuple[ColumnSpec, ...]:
        """See `RecordStage`."""
        label = ColumnSpec(self.label, pa.float64())
        return (label, ColumnSpec(self.weight, pa.float32())) if self.multiply else (label,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `RecordStage`."""
        return (self.weight,)

    def apply(self, records: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """See `RecordStage`."""
        label = records.column(self.label)
        try:
            is_positive = pc.fill_null(pc.greater(label.cast(pa.float64()), 0.0), False).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise DataFileError(
                f"expected a number, got {label.type}: {error}", path=origin.path, column=self.label
            ) from error
        state = mix(self.seed, origin.epoch, origin.file, 0x6E65676174697665)
        draws = hashes(state, origin.first_row, records.num_rows)
        # 53 bits of the hash as a float in [0, 1): exact, so keep = 1 keeps every row.
        is_kept = is_positive | ((draws >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self.keep)
        weights = np.where(is_positive, np.float32(1.0), np.float32(1.0 / self.keep))
        if self.multiply:
            weights = weights * records.column(self.weight).to_numpy(zero_copy_only=False).astype(np.float32)
        return with_column(records, self.weight, pa.array(weights, pa.float32())).filter(pa.array(is_kept))
