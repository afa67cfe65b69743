"""The `store:` section: where the rows live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from ..embedding.store import EmbeddingStore


class _Store(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LocalStoreConfig(_Store):
    """Rows in the training process.

    tablet_bits: the key space is cut into 2^tablet_bits ranges.   threads: of the native tables.
    """

    kind: Literal["local"] = "local"
    tablet_bits: int = Field(default=8, ge=0, le=16)
    threads: int = Field(default=1, ge=1, le=256)


StoreConfig = Annotated[LocalStoreConfig, Field(discriminator="kind")]


def open_store(config: LocalStoreConfig) -> EmbeddingStore:
    """A store as configured, empty."""
    from ..ps_server import LocalStore

    return LocalStore(config.tablet_bits, config.threads)
