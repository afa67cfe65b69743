"""CSV and TSV files: declared types applied at parse time, nothing inferred."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pc
from pyarrow import fs

from .errors import DataFileError
from .schema import ColumnSpec


class CsvReader:
    """`FileReader` of one CSV file with a header line."""

    def __init__(self, path: str, filesystem: fs.FileSystem) -> None:
        self._path, self._filesystem = path, filesystem
        self._delimiter = "\t" if ".tsv" in path else ","

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._path

    def pieces(self) -> None:
        """See `FileReader`."""
        return

    def layout(self) -> Hashable:
        """See `FileReader`."""
        return self.column_names()

    def column_names(self) -> tuple[str, ...]:
        """See `FileReader`."""
        with self._open([]) as reader:
            return tuple(reader.schema.names)

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        present = set(self.column_names())
        row = 0
        try:
            with self._open([spec for spec in columns if spec.name in present]) as reader:
                for chunk in reader:
                    first, last = max(start - row, 0), chunk.num_rows if stop is None else stop - row
                    row += chunk.num_rows
                    if first < last:
                        yield chunk.slice(first, last - first)
        except (pa.ArrowException, OSError) as error:
            raise DataFileError(f"expected readable CSV, got: {error}", path=self._path) from error

    def _open(self, columns: Sequence[ColumnSpec]) -> pc.CSVStreamingReader:
        convert = pc.ConvertOptions(
            column_types={spec.name: spec.type or pa.string() for spec in columns},
            include_columns=[spec.name for spec in columns] or None,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        source = self._filesystem.open_input_stream(self._path, compression="detect")
        parse = pc.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        return pc.open_csv(source, pc.ReadOptions(use_threads=False), parse, convert)
