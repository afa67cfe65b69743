"""JSON lines: one object a line, declared types applied at parse time."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Sequence

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.types as pat

from .errors import DataFileError, MissingColumnError
from .file_paths import DataFile
from .schema import ColumnSpec
from .text_file import Block, TextFile
from .text_source import TextSource

_CHANGED = re.compile(r"Column\(/([^)]*?)\) changed from (\w+) to (\w+)(?: in row (\d+))?")
_IN_ROW = re.compile(r"\s*in row (\d+)")
_UNPARSED = re.compile(r"couldn't parse:(.*)", re.DOTALL)


class JsonReader:
    """`FileReader` of one file of JSON objects; a field that an object lacks is null.

    A column without a declared type takes the type Arrow finds in each block, so ids should have one. A number written
    as a string reads as the number it spells where a number type is declared; a number where text is declared, and
    true or false where a number is, keep their own type, for the consumer to cast exactly or refuse. A required column
    that no object at the head of the file has is an error, since its name is most often misspelt.
    """

    def __init__(self, file: DataFile, *, encoding: str = "utf-8", piece_rows: int = 65_536) -> None:
        self._text = TextFile(TextSource(file, encoding), piece_rows=piece_rows)
        self._as_text: frozenset[str] = frozenset()
        self._undeclared: frozenset[str] = frozenset()
        self._found: set[str] = set()

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._text.path

    def column_names(self) -> None:
        """None: each object names its own fields."""
        return

    def pieces(self) -> tuple[int, ...] | None:
        """See `FileReader`."""
        return self._text.pieces()

    def layout(self) -> Hashable:
        """The file itself: types of undeclared columns are known only by parsing."""
        return self.path

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        self._check_present(columns)
        for block in self._text.blocks(start, stop):
            chunk = self._parse(block, columns)
            first = max(start - block.first_row, 0)
            last = chunk.num_rows if stop is None else min(stop - block.first_row, chunk.num_rows)
            yield chunk.slice(first, last - first)

    def _check_present(self, columns: Sequence[ColumnSpec]) -> None:
        """Raises: MissingColumnError for a required column whose name the file's first block does not hold."""
        wanted = [spec.name for spec in columns if spec.required and spec.name not in self._found]
        if not wanted:
            return
        head = next((block.text for block in self._text.blocks(0, 1)), b"")
        for name in wanted:
            spellings = (json.dumps(name), json.dumps(name, ensure_ascii=False))
            if head and not any(spelling.encode() in head for spelling in spellings):
                raise MissingColumnError(
                    f"expected column {name!r}, got fields {_fields(head)} (file {self.path!r}); required: false reads "
                    "it as null"
                )
        self._found.update(wanted)

    def _parse(self, block: Block, columns: Sequence[ColumnSpec]) -> pa.RecordBatch:
        while True:
            as_text, undeclared = self._as_text, self._undeclared
            declared = {
                spec.name: spec.type for spec in columns if spec.type is not None and spec.name not in undeclared
            }
            schema = pa.schema(
                [pa.field(name, pa.string() if name in as_text else type_) for name, type_ in declared.items()]
            )
            try:
                table = pa_json.read_json(
                    pa.py_buffer(block.text),
                    pa_json.ReadOptions(use_threads=False, block_size=len(block.text) + 1),
                    pa_json.ParseOptions(
                        explicit_schema=schema,
                        unexpected_field_behavior="ignore" if len(declared) == len(columns) else "infer",
                    ),
                )
            except pa.ArrowInvalid as error:
                changed = _CHANGED.search(str(error))
                type_ = declared.get(changed.group(1)) if changed is not None else None
                if changed is not None and type_ is not None and changed.group(1) not in as_text:
                    if changed.group(3) == "string" and (pat.is_integer(type_) or pat.is_floating(type_)):
                        self._as_text = as_text | {changed.group(1)}
                        continue
                    if (changed.group(3) == "number" and pat.is_string(type_)) or (
                        changed.group(3) == "boolean" and (pat.is_integer(type_) or pat.is_floating(type_))
                    ):
                        self._undeclared = undeclared | {changed.group(1)}
                        continue
                types = {spec.name: spec.type for spec in columns if spec.type is not None}
                raise self._error(error, block, types) from error
            break
        if table.num_rows != block.rows:
            raise DataFileError(
                f"expected {block.rows} objects, one a line, from row {block.first_row + 1} on, got {table.num_rows}",
                path=self.path,
            )
        arrays, fields = [], []
        for spec in columns:
            if spec.name in table.column_names:
                array = _single(table.column(spec.name))
                if spec.name in as_text and spec.type is not None:
                    array = self._cast(array, spec.name, spec.type, block)
                arrays.append(array)
                fields.append(pa.field(spec.name, array.type))
        if not fields:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * block.rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _cast(self, array: pa.Array, name: str, type_: pa.DataType, block: Block) -> pa.Array:
        try:
            return array.cast(type_)
        except pa.ArrowInvalid as error:
            for row, cell in enumerate(array):
                try:
                    cell.cast(type_)
                except pa.ArrowInvalid:
                    raise DataFileError(
                        f"expected {type_}, got {cell.as_py()!r}",
                        path=self.path,
                        row=block.first_row + row + 1,
                        column=name,
                    ) from error
            raise

    def _error(self, error: pa.ArrowInvalid, block: Block, declared: dict[str, pa.DataType]) -> DataFileError:
        text = str(error)
        if changed := _CHANGED.search(text):
            column, _, got, row = changed.groups()
            number = block.first_row + int(row) + 1 if row else None
            wanted = declared.get(column.split("/")[0], "one type")
            article = "an" if got[0] in "aeio" else "a"
            return DataFileError(f"expected {wanted}, got {article} {got}", path=self.path, row=number, column=column)
        if unparsed := _UNPARSED.search(text):
            column_, row_ = self._find(unparsed.group(1), block, declared)
            return DataFileError(
                f"expected {declared.get(column_ or '', 'a number')}, got {unparsed.group(1)}",
                path=self.path,
                row=row_,
                column=column_,
            )
        row_match = _IN_ROW.search(text)
        number = block.first_row + int(row_match.group(1)) + 1 if row_match else None
        what = _IN_ROW.sub("", text.removeprefix("JSON parse error: ")).strip()
        return DataFileError(f"expected one JSON object a line, got: {what}", path=self.path, row=number)

    def _find(self, value: str, block: Block, declared: dict[str, pa.DataType]) -> tuple[str | None, int | None]:
        """Column and row of a number that its column's type cannot hold; the parser's own message gives neither."""
        row = block.first_row
        for line in block.text.splitlines():
            if not line.strip():
                continue
            row += 1
            if value.encode() not in line:
                continue
            for name, type_ in declared.items():
                if not pat.is_integer(type_):
                    continue
                if re.search(rb'"' + re.escape(name.encode()) + rb'"\s*:[^,}]*' + re.escape(value.encode()), line):
                    return name, row
        return None, None


def _fields(text: bytes) -> list[str]:
    """Names of the fields of the first object of `text`; empty where it is none."""
    try:
        first = json.loads(text.lstrip().split(b"\n", 1)[0])
    except ValueError:
        return []
    return list(first) if isinstance(first, dict) else []


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
