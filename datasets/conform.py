"""Record batches brought to the columns that were asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pat

from .errors import DataFileError, MissingColumnError
from .file_reader import FileReader
from .fresh_lock import FreshLock
from .schema import ColumnSpec

_log = logging.getLogger("embershard.datasets")


class Conform:
    """Puts the asked-for columns in order, views in their plain form.

    A column that a file lacks comes from the `key=value` folders it lies in, or else reads as null where it is not
    required, with one notice logged for each such file and column.

    Thread safety: any thread.
    """

    def __init__(self) -> None:
        self._noticed: set[tuple[str, str]] = set()
        self._lock = FreshLock()

    def __call__(
        self,
        chunk: pa.RecordBatch,
        columns: Sequence[ColumnSpec],
        reader: FileReader,
        folders: Mapping[str, str | None],
    ) -> pa.RecordBatch:
        """The columns of `chunk` in the order of `columns`; `folders` are those of the file.

        Raises: MissingColumnError; DataFileError where a folder's value is not of the declared type."""
        chunk = _without_views(chunk)
        names = chunk.schema.names
        if names == [spec.name for spec in columns]:
            return chunk
        fields, arrays = [], []
        for spec in columns:
            if spec.name in names:
                index = chunk.schema.get_field_index(spec.name)
                if index < 0:
                    raise MissingColumnError(f"expected one column {spec.name!r}, got several (file {reader.path!r})")
                field, array = chunk.schema.field(index), chunk.column(index)
            else:
                array = self._absent(spec, chunk.num_rows, reader, folders, names)
                field = pa.field(spec.name, array.type)
            fields.append(field)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _absent(
        self, spec: ColumnSpec, rows: int, reader: FileReader, folders: Mapping[str, str | None], names: list[str]
    ) -> pa.Array:
        if spec.name in folders:
            type_ = spec.type if spec.type is not None else pa.string()
            try:
                return pa.repeat(pa.scalar(folders[spec.name], pa.string()).cast(type_), rows)
            except pa.ArrowInvalid as error:
                raise DataFileError(
                    f"expected {type_} in the folder's name, got {folders[spec.name]!r}",
                    path=reader.path,
                    column=spec.name,
                ) from error
        if spec.required:
            raise MissingColumnError(
                f"expected column {spec.name!r}, got columns {list(reader.column_names() or names)} "
                f"(file {reader.path!r})"
            )
        self._notice(reader.path, spec.name)
        return pa.nulls(rows, spec.type if spec.type is not None else pa.null())

    def _notice(self, path: str, name: str) -> None:
        with self._lock:
            if (path, name) in self._noticed:
                return
            self._noticed.add((path, name))
        _log.warning("column %r is not in file %r: its rows read as null", name, path)


def _without_views(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """View columns, which many of Arrow's functions do not take, as plain ones; the others as they are."""
    for index, field in enumerate(chunk.schema):
        plain = _plain(field.type)
        if plain != field.type:
            chunk = chunk.set_column(index, field.with_type(plain), chunk.column(index).cast(plain))
    return chunk


def _plain(kind: pa.DataType) -> pa.DataType:
    if pat.is_string_view(kind):
        return pa.large_string()
    if pat.is_binary_view(kind):
        return pa.large_binary()
    if pat.is_list(kind) or pat.is_large_list(kind):
        own = kind.value_type
        value = _plain(own)
        return kind if value == own else pa.large_list(value)
    return kind  # a cast of a list view gives damaged lists (pyarrow 26)
