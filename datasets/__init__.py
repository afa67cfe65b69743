"""The click log: files in, Arrow record batches out, cut into work units."""

from .batch_stream import BatchStream, ReadPosition
from .click_log import ClickLog
from .csv_options import CsvOptions
from .derived_columns import Derive, Join
from .errors import ClickLogError, DataFileError, EmptyClickLogError, MissingColumnError
from .negative_sampling import NegativeSampling
from .ready_made import READY_MADE, open_ready_made
from .record_encoder import RecordEncoder
from .record_stage import Origin, RecordStage
from .schema import ColumnSpec
from .split import RandomPart, TimePart
from .synthetic import SyntheticClicks, best_auc, write_synthetic_clicks
from .work_unit import BatchId, FileSlice, WorkUnit

__all__ = [
    "READY_MADE",
    "BatchId",
    "BatchStream",
    "ClickLog",
    "ClickLogError",
    "ColumnSpec",
    "CsvOptions",
    "DataFileError",
    "Derive",
    "EmptyClickLogError",
    "FileSlice",
    "Join",
    "MissingColumnError",
    "NegativeSampling",
    "Origin",
    "RandomPart",
    "ReadPosition",
    "RecordEncoder",
    "RecordStage",
    "SyntheticClicks",
    "TimePart",
    "WorkUnit",
    "best_auc",
    "open_ready_made",
    "write_synthetic_clicks",
]
