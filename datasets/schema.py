"""What a reader must know of a click-log column before it parses it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A click-log column as its consumer declares it; applied at parse time, never inferred.

    type:     Arrow type that text formats (CSV, JSON lines) parse the column as; typed formats (Parquet, IPC)
              keep the file's own type and the feature map casts exactly or refuses. None: the file decides.
    required: False lets a file without the column read as all null, with one notice a file.
    dictionary: text may come dictionary-encoded where the file has it so and few values, which is faster to read.
    """

    name: str
    type: pa.DataType | None = None
    required: bool = True
    dictionary: bool = False
