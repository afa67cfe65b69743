"""CSV and TSV files: declared types applied at parse time, nothing inferred."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.types as pat

from .csv_options import CsvOptions
from .errors import DataFileError, MissingColumnError
from .file_paths import DataFile
from .fresh_lock import FreshLock
from .record_ends import Quoting, record_ends, record_starts
from .schema import ColumnSpec
from .text_file import Block, TextFile
from .text_source import TextSource

_JOINED_DELIMITER = b"\x1f"  # stands in for a delimiter of several characters: ASCII's own unit separator
_CELL_ERROR = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (.*?): (.*)", re.DOTALL)
_ROW_ERROR = re.compile(r"(?:CSV parse error: )?(?:Row #(\d+): )?(Expected \d+ columns, got \d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A column to parse: its position in the file, its name, the type to give and whether to parse it as text first."""

    position: int
    name: str
    type: pa.DataType
    by_text: bool


class CsvReader:
    """`FileReader` of one delimited text file. A column without a declared type reads as text, never by guess."""

    def __init__(self, file: DataFile, options: CsvOptions | None = None, *, piece_rows: int = 65_536) -> None:
        self._options = options if options is not None else CsvOptions()
        delimiter = self._options.delimiter or ("\t" if ".tsv" in file.path.lower() else ",")
        self._delimiter = delimiter.encode()
        quote, escape = self._options.quote, self._options.escape
        self._quoting = Quoting(self._delimiter, quote.encode(), escape.encode() if escape else None) if quote else None
        self._text = TextFile(TextSource(file, self._options.encoding), quoting=self._quoting, piece_rows=piece_rows)
        self._names: tuple[str, ...] | None = None
        self._by_text: set[str] = set()
        self._lock = FreshLock()

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._text.path

    def column_names(self) -> tuple[str, ...]:
        """Names from the options, else from the header, else f0, f1, …"""
        with self._lock:
            if self._names is None:
                self._names = self._read_names()
            return self._names

    def pieces(self) -> tuple[int, ...] | None:
        """See `FileReader`."""
        self.column_names()
        return self._text.pieces()

    def layout(self) -> Hashable:
        """Names of the columns; types are the declared ones in every file."""
        return self.column_names()

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        names = self.column_names()
        specs = [spec for spec in columns if spec.name in names]
        for spec in specs:
            if names.count(spec.name) > 1:
                raise MissingColumnError(f"expected one column {spec.name!r}, got several (file {self.path!r})")
            if spec.type is not None and (pat.is_nested(spec.type) or pat.is_null(spec.type)):
                raise DataFileError(
                    f"expected a type a CSV cell can hold, got {spec.type}", path=self.path, column=spec.name
                )
        for block in self._text.blocks(start, stop):
            chunk = self._parse(block, names, specs)
            first = max(start - block.first_row, 0)
            last = chunk.num_rows if stop is None else min(stop - block.first_row, chunk.num_rows)
            yield chunk.slice(first, last - first)

    def _read_names(self) -> tuple[str, ...]:
        options, given = self._options, self._options.column_names
        if options.header is False or (options.header is None and given is not None):
            names = self._first_cells(self._begin(has_header=False))
            if options.header is None and given is not None and sorted(names) == sorted(given):
                self._begin(has_header=True)
                return names
            return given if given is not None else tuple(f"f{position}" for position in range(len(names)))
        names = self._first_cells(self._begin(has_header=True))
        return given if given is not None else names

    def _begin(self, *, has_header: bool) -> bytes:
        """The header's line, or without one the first block of data."""
        options = self._options
        header = self._text.begin(
            skip_lines=options.skip_lines, skip_to=options.skip_to, comment=options.comment, has_header=has_header
        )
        return header if has_header else next((block.text for block in self._text.blocks(0, 1)), b"")

    def _first_cells(self, text: bytes) -> tuple[str, ...]:
        """The cells of the first record of `text`, as text."""
        if not text.strip():
            return ()
        ends = record_ends(text, self._quoting, is_last=True)
        first = text[: int(ends[np.searchsorted(ends, record_starts(text, ends)[0])]) + 1]
        try:
            with pa_csv.open_csv(
                pa.py_buffer(self._separated(first)),
                pa_csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=len(first) + 1),
                self._parse_options(),
            ) as reader:
                count = len(reader.schema)
            names = [str(position) for position in range(count)]
            table = pa_csv.read_csv(
                pa.py_buffer(self._separated(first)),
                pa_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(first) + 1),
                self._parse_options(),
                pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
            )
        except pa.ArrowInvalid as error:
            raise DataFileError(f"expected readable CSV, got: {error}", path=self.path) from error
        cells = [str(column[0].as_py()) for column in table.columns]
        return tuple(cell.strip() for cell in cells) if self._options.trim else tuple(cells)

    def _parse(self, block: Block, names: tuple[str, ...], specs: Sequence[ColumnSpec]) -> pa.RecordBatch:
        """The records of a block. A number column with quoted empty cells is parsed as text and cast, from then on."""
        while True:
            wanted = [
                _Wanted(names.index(spec.name), spec.name, spec.type or pa.string(), spec.name in self._by_text)
                for spec in specs
            ]
            try:
                table = self._parse_columns(block.text, len(names), wanted)
            except pa.ArrowInvalid as error:
                cell = _CELL_ERROR.search(str(error))
                name = names[int(cell.group(1))] if cell is not None else None
                if cell is not None and name is not None and name not in self._by_text and "''" in cell.group(4):
                    self._by_text.add(name)
                    continue
                raise self._error(error, block, names) from error
            break
        if table.num_rows != block.rows:
            raise DataFileError(
                f"expected {block.rows} records from row {block.first_row + 1} on, got {table.num_rows}", path=self.path
            )
        arrays = [self._finished(table.column(column), wanted[column], block) for column in range(len(wanted))]
        fields = [pa.field(column.name, column.type) for column in wanted]
        if not fields:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * block.rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _parse_columns(self, text: bytes, count: int, wanted: Sequence[_Wanted]) -> pa.Table:
        nulls = list(self._options.null_values)
        if self._options.trim:
            nulls += [f" {text}" for text in nulls]
        # Without a column the parser would still need one to count the records by.
        keys = [str(column.position) for column in wanted] or ["0"]
        types = {str(column.position): pa.string() if column.by_text else column.type for column in wanted}
        return pa_csv.read_csv(
            pa.py_buffer(self._separated(text)),
            pa_csv.ReadOptions(
                use_threads=False, column_names=[str(position) for position in range(count)], block_size=len(text) + 1
            ),
            self._parse_options(),
            pa_csv.ConvertOptions(
                column_types=types or {"0": pa.string()},
                include_columns=keys,
                null_values=nulls,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _finished(self, column: pa.ChunkedArray, wanted: _Wanted, block: Block) -> pa.Array:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if wanted.by_text:
            array = pc.utf8_trim_whitespace(array)
            array = pc.if_else(pc.equal(array, ""), None, array)
            return self._cast(array, wanted, block)
        if self._options.trim and (pat.is_string(wanted.type) or pat.is_large_string(wanted.type)):
            array = pc.utf8_trim_whitespace(array)
            extra = [text for text in self._options.null_values if text]
            if extra:
                array = pc.if_else(pc.is_in(array, pa.array(extra, array.type)), None, array)
        return array

    def _cast(self, array: pa.Array, wanted: _Wanted, block: Block) -> pa.Array:
        try:
            return array.cast(wanted.type)
        except pa.ArrowInvalid as error:
            for row, cell in enumerate(array):
                try:
                    cell.cast(wanted.type)
                except pa.ArrowInvalid:
                    raise DataFileError(
                        f"expected {wanted.type}, got {cell.as_py()!r}",
                        path=self.path,
                        row=block.first_row + row + 1,
                        column=wanted.name,
                    ) from error
            raise

    def _separated(self, text: bytes) -> bytes:
        return text if len(self._delimiter) == 1 else text.replace(self._delimiter, _JOINED_DELIMITER)

    def _parse_options(self) -> pa_csv.ParseOptions:
        delimiter = self._delimiter if len(self._delimiter) == 1 else _JOINED_DELIMITER
        return pa_csv.ParseOptions(
            delimiter=delimiter.decode(),
            quote_char=self._options.quote or False,
            escape_char=self._options.escape or False,
            newlines_in_values=True,
        )

    def _error(self, error: pa.ArrowInvalid, block: Block, names: tuple[str, ...]) -> DataFileError:
        text = str(error)
        if cell := _CELL_ERROR.search(text):
            column, row, type_, what = cell.groups()
            number = block.first_row + int(row) if row else None
            got = what.removeprefix("invalid value ")
            hint = " (is the encoding latin-1?)" if "UTF8" in what else ""
            return DataFileError(
                f"expected {type_}, got {got}{hint}", path=self.path, row=number, column=names[int(column)]
            )
        if line := _ROW_ERROR.search(text):
            number = block.first_row + int(line.group(1)) if line.group(1) else None
            return DataFileError(line.group(2).lower(), path=self.path, row=number)
        return DataFileError(f"expected readable CSV from row {block.first_row + 1} on, got: {text}", path=self.path)
