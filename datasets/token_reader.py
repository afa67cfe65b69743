"""Token lines: libsvm (`label index:value …`, also libfm) and `feasign:slot` logs, parsed a block at a time."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from .errors import DataFileError
from .file_paths import DataFile
from .record_ends import record_ends, record_starts
from .schema import ColumnSpec
from .text_file import Block, TextFile
from .text_source import TextSource

_COMMENT = re.compile(rb"#[^\n]*")
_TO_LINES = bytes.maketrans(b" \t\r", b"\n\n\n")
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[[ord(" "), ord("\t"), ord("\r"), ord("\n")]] = True
_CELL_ERROR = re.compile(r"CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (.*?): (.*)", re.DOTALL)
_ROW_ERROR = re.compile(r"Row #(\d+): Expected \d+ columns, got \d+: (.*)", re.DOTALL)
_MAX_LABEL_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Tokens:
    """`left:right` tokens of a block: row i has left[offsets[i] : offsets[i + 1]], right likewise."""

    left: pa.Array
    right: pa.Array
    offsets: npt.NDArray[np.int64]


class LibsvmReader:
    """`FileReader` of one libsvm or libfm file.

    Columns: `label` float64; `qid` int64, null where a line has none; `indices` list<int64> and `values` list<float32>.
    """

    _NAMES = ("label", "qid", "indices", "values")

    def __init__(self, file: DataFile, *, piece_rows: int = 65_536) -> None:
        self._text = TextFile(TextSource(file), piece_rows=piece_rows)

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._text.path

    def column_names(self) -> tuple[str, ...]:
        """See `FileReader`."""
        return self._NAMES

    def pieces(self) -> tuple[int, ...] | None:
        """See `FileReader`."""
        return self._text.pieces()

    def layout(self) -> Hashable:
        """The same for every libsvm file."""
        return self._NAMES

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        names = [spec.name for spec in columns if spec.name in self._NAMES]
        for block in self._text.blocks(start, stop):
            chunk = self._parse(block).select(names)
            yield _part(chunk, block, start, stop)

    def _parse(self, block: Block) -> pa.RecordBatch:
        text = _COMMENT.sub(b"", block.text) if b"#" in block.text else block.text
        data = np.frombuffer(text, np.uint8).copy()
        ends = record_ends(text, None, is_last=True)
        starts = record_starts(text, ends)
        if starts.size != block.rows:
            raise DataFileError(f"expected a label on each line from row {block.first_row + 1} on", path=self.path)
        labels = self._labels(data, starts, block)
        has_qid = b"qid:" in text
        kind = pa.string() if has_qid else pa.int64()
        tokens = _tokens(data.tobytes(), starts, (kind, pa.float32()), self.path, block.first_row)
        index, value, offsets = tokens.left, tokens.right, tokens.offsets
        qid = pa.nulls(block.rows, pa.int64())
        if has_qid:
            index, value, offsets, qid = _without_qid(tokens, self.path, block)
        lists = pa.array(offsets, pa.int32())
        return pa.RecordBatch.from_arrays(
            [
                pa.array(labels),
                qid,
                pa.ListArray.from_arrays(lists, index),
                pa.ListArray.from_arrays(lists, value),
            ],
            names=list(self._NAMES),
        )

    def _labels(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], block: Block
    ) -> npt.NDArray[np.float64]:
        """(rows,) first token of each line as a number; it is blanked out in `data`."""
        places = np.minimum(starts[:, None] + np.arange(_MAX_LABEL_BYTES), data.size - 1)
        letters = data[places]
        is_label = np.cumsum(_IS_BLANK[letters], axis=1) == 0
        letters[~is_label] = 0
        data[places[is_label]] = ord(" ")
        texts = letters.view(f"S{_MAX_LABEL_BYTES}").ravel()
        try:
            return texts.astype(np.float64)
        except ValueError as error:
            for row, text in enumerate(texts):
                try:
                    float(text)
                except ValueError:
                    raise DataFileError(
                        f"expected a number, got {text.decode(errors='replace')!r}",
                        path=self.path,
                        row=block.first_row + row + 1,
                        column="label",
                    ) from error
            raise


class SlotReader:
    """`FileReader` of one log of `feasign:slot` tokens, one example a line.

    Columns: each slot by its number as text ("3", "29", …), list<uint64> of its feasigns in line order, empty where a
    line has none; `label` float32: the first feasign of slot `label_slot`.
    """

    def __init__(self, file: DataFile, *, label_slot: str = "1", piece_rows: int = 65_536) -> None:
        self._text = TextFile(TextSource(file), piece_rows=piece_rows)
        self._label_slot = label_slot

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._text.path

    def column_names(self) -> None:
        """None: each line names its slots."""
        return

    def pieces(self) -> tuple[int, ...] | None:
        """See `FileReader`."""
        return self._text.pieces()

    def layout(self) -> Hashable:
        """The same for every such file."""
        return SlotReader

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        for block in self._text.blocks(start, stop):
            yield _part(self._parse(block, [spec.name for spec in columns]), block, start, stop)

    def _parse(self, block: Block, names: Sequence[str]) -> pa.RecordBatch:
        starts = record_starts(block.text, record_ends(block.text, None, is_last=True))
        tokens = _tokens(block.text, starts, (pa.uint64(), pa.string()), self.path, block.first_row)
        feasigns = tokens.left.to_numpy(zero_copy_only=False)
        codes, order, bounds = _grouped(tokens.right)
        rows = np.repeat(np.arange(block.rows), np.diff(tokens.offsets))
        arrays = []
        for name in names:
            slot = self._label_slot if name == "label" else name
            at = codes.get(slot)
            places = order[bounds[at] : bounds[at + 1]] if at is not None else order[:0]
            offsets = np.concatenate(([0], np.cumsum(np.bincount(rows[places], minlength=block.rows))))
            if name == "label":
                arrays.append(self._label(feasigns[places], offsets, block))
            else:
                values = pa.array(feasigns[places], pa.uint64())
                arrays.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values))
        return pa.RecordBatch.from_arrays(arrays, names=list(names))

    def _label(self, feasigns: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64], block: Block) -> pa.Array:
        without = np.flatnonzero(np.diff(offsets) == 0)
        if without.size:
            raise DataFileError(
                f"expected a token of slot {self._label_slot!r} on each line",
                path=self.path,
                row=block.first_row + int(without[0]) + 1,
                column="label",
            )
        return pa.array(feasigns[offsets[:-1]].astype(np.float32))


def _part(chunk: pa.RecordBatch, block: Block, start: int, stop: int | None) -> pa.RecordBatch:
    first = max(start - block.first_row, 0)
    last = chunk.num_rows if stop is None else min(stop - block.first_row, chunk.num_rows)
    return chunk.slice(first, last - first)


def _tokens(
    text: bytes, starts: npt.NDArray[np.int64], types: tuple[pa.DataType, pa.DataType], path: str, first_row: int
) -> _Tokens:
    """The tokens of each line, parsed by Arrow as a two-column file of one token a line."""
    is_blank = _IS_BLANK[np.frombuffer(text, np.uint8)]
    begins = np.flatnonzero(~is_blank & np.concatenate(([True], is_blank[:-1])))
    offsets = np.append(np.searchsorted(begins, starts), begins.size)
    if not begins.size:
        return _Tokens(pa.array([], types[0]), pa.array([], types[1]), offsets)

    def row_of(token: str | None) -> int | None:
        if token is None:
            return None
        return first_row + int(np.searchsorted(offsets, int(token) - 1, side="right"))

    try:
        table = pa_csv.read_csv(
            pa.py_buffer(text.translate(_TO_LINES)),
            pa_csv.ReadOptions(use_threads=False, column_names=["left", "right"], block_size=len(text) + 1),
            pa_csv.ParseOptions(delimiter=":", quote_char=False),
            pa_csv.ConvertOptions(column_types={"left": types[0], "right": types[1]}, null_values=[]),
        )
    except pa.ArrowInvalid as error:
        message = str(error)
        if cell := _CELL_ERROR.search(message):
            column, token, type_, what = cell.groups()
            side = "left" if column == "0" else "right"
            got = what.removeprefix("invalid value ")
            raise DataFileError(
                f"expected {type_} on the {side} of ':', got {got}", path=path, row=row_of(token)
            ) from error
        line = _ROW_ERROR.search(message)
        row = row_of(line.group(1)) if line is not None else None
        got = repr(line.group(2)) if line is not None else message
        raise DataFileError(f"expected tokens of the form a:b, got {got}", path=path, row=row) from error
    left, right = (table.column(name).combine_chunks() for name in ("left", "right"))
    return _Tokens(left, right, offsets)


def _without_qid(
    tokens: _Tokens, path: str, block: Block
) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64], pa.Array]:
    """Index, value and offsets without the `qid` tokens, and the qid of each row (null where it has none)."""
    names = tokens.left.to_numpy(zero_copy_only=False)
    is_qid = names == "qid"
    rows = np.repeat(np.arange(block.rows), np.diff(tokens.offsets))
    qid = np.zeros(block.rows, np.int64)
    has_qid = np.zeros(block.rows, np.bool_)
    qid[rows[is_qid]] = tokens.right.to_numpy()[is_qid].astype(np.int64)
    has_qid[rows[is_qid]] = True
    keep = pa.array(~is_qid)
    try:
        index = tokens.left.filter(keep).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataFileError(f"expected whole numbers before ':', got: {error}", path=path) from error
    offsets = np.concatenate(([0], np.cumsum(np.bincount(rows[~is_qid], minlength=block.rows))))
    return index, tokens.right.filter(keep), offsets, pa.array(qid, mask=~has_qid)


def _grouped(slots: pa.Array) -> tuple[dict[str, int], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Slot → number, tokens ordered by slot (line order within), and where each slot's tokens begin and end."""
    encoded = slots.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return {slot: number for number, slot in enumerate(encoded.dictionary.to_pylist())}, order, bounds
