"""The click log: files in, Arrow record batches out, cut into work units."""

from .batch_stream import BatchStream, ReadPosition
from .click_log import ClickLog
from .errors import ClickLogError, DataFileError, EmptyClickLogError, MissingColumnError
from .record_encoder import RecordEncoder
from .schema import ColumnSpec
from .synthetic import SyntheticClicks, write_synthetic_clicks
from .work_unit import BatchId, FileSlice, WorkUnit

__all__ = [
    "BatchId",
    "BatchStream",
    "ClickLog",
    "ClickLogError",
    "ColumnSpec",
    "DataFileError",
    "EmptyClickLogError",
    "FileSlice",
    "MissingColumnError",
    "ReadPosition",
    "RecordEncoder",
    "SyntheticClicks",
    "WorkUnit",
    "write_synthetic_clicks",
]
