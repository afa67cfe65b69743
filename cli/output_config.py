"""The `output:` section: what a run leaves behind, and where."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class OutputConfig(BaseModel):
    """Where the run's folder is made and what is kept in it; the layout is `RunFolder`'s.

    folder: holds the runs of one configuration; default runs/NAME, NAME being the configuration file's.
    name:   of this run's own folder; default the next of run-0001, run-0002 ….
    checkpoint_every: steps between checkpoints; None: after each epoch and at the end.
    keep:   newest checkpoints that stay, beside the best one, and the best one since features last changed.
    log_every: steps between two lines of metrics.jsonl.
    tensorboard: also write TensorBoard event files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str | None = Field(default=None, min_length=1, pattern=r"^[^\x00]*$")
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}$")
    checkpoint_every: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)
    log_every: int = Field(default=100, ge=1)
    tensorboard: bool = False
