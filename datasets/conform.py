"""Record batches brought to the columns that were asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pyarrow as pa

from .errors import MissingColumnError
from .file_reader import FileReader
from .schema import ColumnSpec

_log = logging.getLogger("embershard.datasets")


class Conform:
    """Puts the asked-for columns in order; one that a file lacks reads as null where it is not required.

    A notice is logged once for each such file and column. Thread safety: any thread.
    """

    def __init__(self) -> None:
        self._noticed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __call__(self, chunk: pa.RecordBatch, columns: Sequence[ColumnSpec], reader: FileReader) -> pa.RecordBatch:
        """The columns of `chunk` in the order of `columns`. Raises: MissingColumnError."""
        names = chunk.schema.names
        if names == [spec.name for spec in columns]:
            return chunk
        fields, arrays = [], []
        for spec in columns:
            if spec.name in names:
                index = chunk.schema.get_field_index(spec.name)
                if index < 0:
                    raise MissingColumnError(f"expected one column {spec.name!r}, got several (file {reader.path!r})")
                fields.append(chunk.schema.field(index))
                arrays.append(chunk.column(index))
                continue
            if spec.required:
                raise MissingColumnError(
                    f"expected column {spec.name!r}, got columns {list(reader.column_names() or names)} "
                    f"(file {reader.path!r})"
                )
            self._notice(reader.path, spec.name)
            type_ = spec.type if spec.type is not None else pa.null()
            fields.append(pa.field(spec.name, type_))
            arrays.append(pa.nulls(chunk.num_rows, type_))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _notice(self, path: str, name: str) -> None:
        with self._lock:
            if (path, name) in self._noticed:
                return
            self._noticed.add((path, name))
        _log.warning("column %r is not in file %r: its rows read as null", name, path)
