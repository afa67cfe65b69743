"""What turns record batches into a consumer's own batches; the feature map is one."""

from __future__ import annotations

from typing import Protocol, TypeVar

import pyarrow as pa

from .schema import ColumnSpec
from .work_unit import BatchId

BatchT_co = TypeVar("BatchT_co", covariant=True)


class RecordEncoder(Protocol[BatchT_co]):
    """The columns it needs, and the batch it makes of them.

    Thread safety: `encode` is called from the reading threads, several at once if the caller asked for several.
    """

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """Click-log columns to read. Columns declared as text may arrive dictionary-encoded."""

    def encode(self, records: pa.RecordBatch, id: BatchId | None = None) -> BatchT_co:
        """The batch of `records`, which hold `columns`; pure, so that a batch read twice is the same batch."""
