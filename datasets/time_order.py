"""Event times as integers, for reading a click log in the order things happened."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from .errors import DataFileError

EARLIEST = np.iinfo(np.int64).min


def time_values(times: pa.Array, *, path: str, column: str) -> npt.NDArray[np.int64]:
    """(n,) int64 that order as the times do; a null comes before every time.

    Raises: DataFileError for a type that is neither a whole number, a date nor a timestamp."""
    type_ = times.type
    if pat.is_date(type_):
        times = times.cast(pa.timestamp("ms"))
    elif not (pat.is_integer(type_) or pat.is_timestamp(type_) or pat.is_null(type_)):
        raise DataFileError(f"expected whole numbers, dates or timestamps, got {type_}", path=path, column=column)
    values: npt.NDArray[np.int64] = times.cast(pa.int64()).fill_null(EARLIEST).to_numpy(zero_copy_only=False)
    return values
