"""Errors of the click log: one class per decision a caller can take."""

from __future__ import annotations


class ClickLogError(ValueError):
    """What is wrong lies in the click log or in how it was asked for, not in the reader."""


class EmptyClickLogError(ClickLogError):
    """No file matched, or the files that did hold no rows."""


class MissingColumnError(ClickLogError):
    """A required column is not in a file; the message names the column, the file and the columns it has."""


class DataFileError(ClickLogError):
    """A file, or one cell of it, cannot be read.

    path:   the file.
    row:    data row in the file, counted from 1 without the header, where it is known.
    column: the column, where it is known.
    """

    def __init__(self, message: str, *, path: str, row: int | None = None, column: str | None = None) -> None:
        self.path, self.row, self.column = path, row, column
        where = "".join(
            part
            for part in (
                f"file {path!r}",
                f", row {row}" if row is not None else "",
                f", column {column!r}" if column is not None else "",
            )
        )
        super().__init__(f"{message} ({where})")

    def __reduce__(self) -> tuple[object, ...]:
        # A loader worker sends its error to the parent by pickle, which knows nothing of keyword arguments.
        return (_rebuild_data_file_error, (str(self), self.path, self.row, self.column))


def _rebuild_data_file_error(text: str, path: str, row: int | None, column: str | None) -> DataFileError:
    error = DataFileError("", path=path, row=row, column=column)
    error.args = (text,)
    return error
