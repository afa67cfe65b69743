"""The `data:` section: where the click log is, how it is read, which rows evaluate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from ..datasets.csv_options import CsvOptions
from ..datasets.open_reader import Format
from ..datasets.ready_made import READY_MADE
from ..feature_map.config_file import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..datasets.click_log import ClickLog
    from ..datasets.record_stage import RecordStage
    from ..datasets.schema import ColumnSpec


def _as_paths(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[str, ...], BeforeValidator(_as_paths), Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RandomShare(_Section):
    """A seeded random `share` of the rows evaluates; rows with equal values in column `by` stay together."""

    kind: Literal["random"] = "random"
    share: float = Field(default=0.2, gt=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    by: str | None = None


class FromTime(_Section):
    """Rows whose `column` is at or after `cut` evaluate, those before train."""

    kind: Literal["time"] = "time"
    column: str
    cut: int | float | str


class OtherFiles(_Section):
    """Other files of the same form evaluate."""

    kind: Literal["files"] = "files"
    path: Paths


def _evaluation_kind(value: object) -> str:
    if not isinstance(value, dict):
        return str(getattr(value, "kind", "random"))
    return str(value.get("kind", "files" if "path" in value else "time" if "column" in value else "random"))


Evaluation = Annotated[
    Annotated[RandomShare, Tag("random")] | Annotated[FromTime, Tag("time")] | Annotated[OtherFiles, Tag("files")],
    Discriminator(_evaluation_kind),
]
"""Which rows evaluate, by `kind`: random, time or files; told by its fields where it is left out."""


class DataConfig(_Section):
    """A click log in files.

    path:        files, globs, directories or URIs.
    kind:        a public click log by name (`datasets.READY_MADE`), which knows its publisher's files and columns.
    format, csv, time_column, unit_rows: as `ClickLog` takes them; a public log says the first three itself.
    evaluate:    which rows evaluate; None trains on all and measures nothing.
    """

    path: Paths
    kind: str | None = None
    format: Format | None = None
    csv: CsvOptions | None = None
    time_column: str | None = None
    unit_rows: int = Field(default=65_536, ge=1)
    evaluate: Evaluation | None = None

    @field_validator("kind")
    @classmethod
    def _check_kind(cls, kind: str | None) -> str | None:
        if kind is not None and kind not in READY_MADE:
            raise ValueError(f"unknown kind {kind!r}; {did_you_mean(kind, READY_MADE)}")
        return kind

    @model_validator(mode="after")
    def _check_form(self) -> DataConfig:
        if self.kind is None:
            return self
        given = [name for name in ("format", "csv", "time_column") if getattr(self, name) is not None]
        if given:
            raise ValueError(f"expected no {given[0]} beside kind {self.kind}, which says it itself")
        if len(self.path) != 1:
            raise ValueError(f"expected one path for kind {self.kind}, got {list(self.path)}")
        return self


def train_log(
    config: DataConfig, columns: Sequence[ColumnSpec], run: int, last_stages: Sequence[RecordStage] = ()
) -> ClickLog:
    """The rows that train, seen by `last_stages` last; unit ids are made from `run`."""
    return _log(config, config.path, (*_stages(config, columns, "train"), *last_stages), run)


def evaluation_log(config: DataConfig, columns: Sequence[ColumnSpec]) -> ClickLog | None:
    """The rows that evaluate, or None where the configuration names none."""
    if config.evaluate is None:
        return None
    path = config.evaluate.path if isinstance(config.evaluate, OtherFiles) else config.path
    return _log(config, path, _stages(config, columns, "evaluate"), run=0)


def other_log(config: DataConfig, path: Sequence[str]) -> ClickLog:
    """All rows of other files of the same form."""
    return _log(config, tuple(path), (), run=0)


def _log(config: DataConfig, path: tuple[str, ...], stages: Sequence[RecordStage], run: int) -> ClickLog:
    from ..datasets.click_log import ClickLog
    from ..datasets.ready_made import open_ready_made

    if config.kind is not None:
        log = open_ready_made(config.kind, path[0], unit_rows=config.unit_rows, run=run)
        return log.with_stages(*stages, run=run)
    return ClickLog(
        path,
        format=config.format,
        csv=config.csv,
        time_column=config.time_column,
        stages=stages,
        unit_rows=config.unit_rows,
        run=run,
    )


def _stages(
    config: DataConfig, columns: Sequence[ColumnSpec], part: Literal["train", "evaluate"]
) -> tuple[RecordStage, ...]:
    from ..datasets.schema import ColumnSpec
    from ..datasets.split import RandomPart, TimePart

    declared = {column.name: column for column in columns}
    match config.evaluate:
        case RandomShare() as chosen:
            by = None if chosen.by is None else declared.get(chosen.by, ColumnSpec(chosen.by))
            return (RandomPart(part, chosen.share, chosen.seed, by),)
        case FromTime() as chosen:
            return (TimePart(part, declared.get(chosen.column, ColumnSpec(chosen.column)), chosen.cut),)
    return ()
