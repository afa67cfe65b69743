"""Tables in memory and streams of record batches, read as if they were files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import pyarrow as pa

from .errors import ClickLogError
from .fresh_lock import FreshLock
from .schema import ColumnSpec


def as_table(source: object) -> pa.Table:
    """The Arrow table of a pyarrow table or record batch, a pandas or polars frame, or a dict of columns.

    Integers with nulls stay integers where the frame has them so; a pandas column of floats is left as it is.
    Raises: ClickLogError for anything else, columns of unequal lengths and columns of several types."""
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    try:
        if isinstance(source, dict):
            return pa.table(source)
        if type(source).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(source, preserve_index=False)
        if hasattr(source, "__arrow_c_stream__"):
            return pa.table(source)
    except pa.ArrowException as error:
        raise ClickLogError(f"expected columns of one length and one type each, got: {error}") from error
    raise ClickLogError(f"expected a pyarrow, pandas or polars table or a dict of columns, got {type(source).__name__}")


class TableReader:
    """`FileReader` of one table in memory; batches are slices of it."""

    def __init__(self, table: pa.Table, *, path: str = "<table>", piece_rows: int = 65_536) -> None:
        self._table, self._path, self._piece_rows = table, path, piece_rows

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return self._path

    def pieces(self) -> tuple[int, ...]:
        """Reading can begin anywhere, so pieces are as long as asked for."""
        whole, rest = divmod(self._table.num_rows, self._piece_rows)
        return (self._piece_rows,) * whole + ((rest,) if rest else ())

    def layout(self) -> Hashable:
        """Names and types."""
        return tuple((field.name, str(field.type)) for field in self._table.schema)

    def column_names(self) -> tuple[str, ...]:
        """See `FileReader`."""
        return tuple(self._table.column_names)

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`; chunks are never joined."""
        names = [spec.name for spec in columns if spec.name in self._table.column_names]
        length = None if stop is None else stop - start
        yield from (self._table.select(names) if names else self._table).slice(start, length).to_batches()


class StreamReader:
    """`FileReader` of record batches that come from elsewhere, such as a message queue.

    source: called once an epoch, gives the batches (or tables); an iterator can be read for one epoch only.
    Going on from a position reads and drops the rows before it, so a source that can seek should start there itself.
    """

    def __init__(
        self, source: Callable[[], Iterable[pa.RecordBatch | pa.Table]] | Iterator[pa.RecordBatch | pa.Table]
    ) -> None:
        self._source, self._is_used = source, False
        self._lock = FreshLock()

    @property
    def path(self) -> str:
        """See `FileReader`."""
        return "<stream>"

    def pieces(self) -> None:
        """None: a stream ends when it ends."""
        return

    def layout(self) -> Hashable:
        """See `FileReader`."""
        return StreamReader

    def column_names(self) -> None:
        """None: known only by reading."""
        return

    def read(self, start: int, stop: int | None, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
        """See `FileReader`."""
        row = 0
        for item in self._items():
            if not isinstance(item, pa.Table | pa.RecordBatch):
                raise ClickLogError(f"expected record batches or tables from the source, got {type(item).__name__}")
            for batch in item.to_batches() if isinstance(item, pa.Table) else (item,):
                first, last = max(start - row, 0), batch.num_rows if stop is None else min(stop - row, batch.num_rows)
                row += batch.num_rows
                if first < last:
                    yield batch.slice(first, last - first)
                if stop is not None and row >= stop:
                    return

    def _items(self) -> Iterable[pa.RecordBatch | pa.Table]:
        if callable(self._source):
            return self._source()
        with self._lock:
            if self._is_used:
                raise ClickLogError("expected a function that gives the batches anew, got an iterator read before")
            self._is_used = True
        return self._source
