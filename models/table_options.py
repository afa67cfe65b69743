"""TableOptions: what all tables of an embedding collection share beside their column blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..embedding.table_config import Admission, AlwaysAdmit, ColumnBlock, Eviction, TableConfig


class TableOptions(BaseModel):
    """Settings of `TableConfig` that a collection gives to each of its tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    admission: Admission = AlwaysAdmit()
    eviction: tuple[Eviction, ...] = ()
    unseen: Literal["zeros", "unknown_row"] = "zeros"
    memory_limit_bytes: int | None = Field(default=None, ge=1)

    def table(self, name: str, key_space: str, blocks: Sequence[ColumnBlock]) -> TableConfig:
        """Configuration of one table."""
        return TableConfig(name=name, key_space=key_space, blocks=tuple(blocks), **dict(self))
