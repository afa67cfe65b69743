"""How a delimited text file is written."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class CsvOptions(BaseModel):
    """Form of a CSV-like file; the defaults read RFC 4180 files with a header.

    delimiter:    one or more characters; None: a tab for names with `.tsv`, else a comma.
    quote:        character that encloses fields, doubled inside them; None: quotes are ordinary characters.
    header:       whether the first line names the columns; None: it does where `column_names` are not given, and where
                  it consists of just these names, in any order.
    column_names: names of the columns in file order; with `header: true` they replace the header's.
    comment:      lines before the data that begin with it are passed over.
    skip_lines:   lines before the header; skip_to: the header (or data) follows the first line equal to this one.
    null_values:  unquoted cells that are null. A quoted cell is never null in a text column, an empty one is in others.
    trim:         blanks around cells are no part of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    delimiter: str | None = Field(default=None, min_length=1)
    quote: str | None = Field(default='"', min_length=1, max_length=1)
    escape: str | None = Field(default=None, min_length=1, max_length=1)
    header: bool | None = None
    column_names: tuple[str, ...] | None = Field(default=None, min_length=1)
    skip_lines: int = Field(default=0, ge=0)
    skip_to: str | None = None
    comment: str | None = Field(default=None, min_length=1)
    null_values: tuple[str, ...] = ("",)
    encoding: str = "utf-8"
    trim: bool = False

    @model_validator(mode="after")
    def _check(self) -> CsvOptions:
        for name, text in (("delimiter", self.delimiter), ("quote", self.quote), ("escape", self.escape)):
            if text is not None and not text.isascii():
                raise ValueError(f"expected ASCII characters in {name}, got {text!r}")
        if self.quote is not None and self.delimiter is not None and self.quote in self.delimiter:
            raise ValueError(f"expected quote and delimiter to differ, got {self.quote!r} and {self.delimiter!r}")
        if self.column_names is not None and len(set(self.column_names)) != len(self.column_names):
            raise ValueError(f"expected distinct column_names, got {list(self.column_names)}")
        return self
