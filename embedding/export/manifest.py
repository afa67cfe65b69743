"""Format of an export: a manifest, and one file (or set of arrays) a table, ascending by key.

The bytes are described in docs/export_format.md.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..checkpoint.manifest import json_hash, package_version
from ..errors import CheckpointMismatchError, CorruptCheckpointError

MANIFEST_NAME = "manifest.json"
FORMAT_NAME = "embershard-export"
FORMAT_VERSION = 1

ExportFormat = Literal["parquet", "arrow", "safetensors", "npy"]
VectorType = Literal["float32", "float16", "int8"]
IdType = Literal["int64", "uint64", "text"]

SUFFIXES: dict[ExportFormat, str] = {
    "parquet": ".parquet",
    "arrow": ".arrow",
    "safetensors": ".safetensors",
    "npy": "",
}
"""What a table's file is called after its name; `npy` is a directory of arrays."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExportOptions(_Frozen):
    """What goes into an export, and how.

    format:  file format of every table.
    vectors: float32, float16, or int8 with one float32 `scale` a row (value = int8 · scale, scale = max|w| / 127).
    blocks:  column blocks to write, in the table's order; None for all.
    min_count, touched_since: rows with a lower count, or last touched before that second, are left out.
    """

    format: ExportFormat = "parquet"
    vectors: VectorType = "float32"
    blocks: tuple[str, ...] | None = None
    min_count: int = Field(default=0, ge=0)
    touched_since: int = Field(default=0, ge=0)


class ExportedFile(_Frozen):
    """A file, relative to the manifest's directory."""

    path: str
    bytes: int = Field(ge=0)
    sha256: str


class ExportedBlock(_Frozen):
    """A named run of vector columns."""

    name: str
    dim: int = Field(ge=1)


class UnseenRow(_Frozen):
    """What keys of one tablet read that have no row (`unseen: unknown_row`), and the count it was trained by."""

    tablet: int = Field(ge=0)
    count: int = Field(ge=0)
    vector: tuple[float, ...]


class ExportedTable(_Frozen):
    """One table of an export.

    id:          type of the raw ids recovered, or None where there are none (crosses, text without a dictionary).
    missing_key: key of the row that stands for missing values; its id is null.
    unseen:      (dim,) vector of a key that has no row; where there are `unseen_rows`, their mean by count.
    unseen_rows: what evaluation reads instead: the vector of the key's tablet, zeros where it has none.
    erased:      keys that left since the base (deltas only).
    """

    name: str
    key_space: str
    id: IdType | None
    missing_key: int | None
    blocks: tuple[ExportedBlock, ...]
    unseen: tuple[float, ...]
    unseen_rows: tuple[UnseenRow, ...] = ()
    rows: int = Field(ge=0)
    erased: int = Field(default=0, ge=0)
    files: tuple[ExportedFile, ...] = Field(min_length=1)

    @property
    def dim(self) -> int:
        """Values a vector."""
        return sum(block.dim for block in self.blocks)


class ExportManifest(_Frozen):
    """Everything about an export but the vectors.

    step, checkpoint: what it was made from; None for a live store.
    changes_since:    per tablet, the version after which a store's changes are missing here; a delta starts from it.
    since:            a delta's starting point: the `changes_since` of its base; None for a full export.
    """

    format: Literal["embershard-export"] = "embershard-export"
    format_version: int = FORMAT_VERSION
    package_version: str
    step: int | None
    checkpoint: str | None
    options: ExportOptions
    tables: tuple[ExportedTable, ...]
    feature_map: Any = None
    feature_map_hash: str | None = None
    changes_since: tuple[int, ...]
    since: tuple[int, ...] | None = None

    def table(self, name: str) -> ExportedTable:
        """One table. Raises: KeyError naming the tables there are."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(f"expected one of tables {[table.name for table in self.tables]}, got {name!r}")


def encode_export_manifest(manifest: ExportManifest) -> bytes:
    """The bytes of the manifest file, with the sha256 of everything else in it."""
    body = manifest.model_dump(mode="json")
    return json.dumps({**body, "sha256": json_hash(body)}, indent=1, allow_nan=False).encode() + b"\n"


def decode_export_manifest(data: bytes, where: str) -> ExportManifest:
    """The manifest in `data`.

    Raises: CorruptCheckpointError naming `where`; CheckpointMismatchError for a format newer than this package reads.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where}: expected JSON, got {error}") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise CorruptCheckpointError(f"{where}: expected format {FORMAT_NAME!r}, got something else")
    if isinstance(body.get("format_version"), int) and body["format_version"] > FORMAT_VERSION:
        raise CheckpointMismatchError(
            f"{where}: expected format version <= {FORMAT_VERSION}, got {body['format_version']}"
            f" (written by embershard {body.get('package_version')}; this is {package_version()})"
        )
    expected, actual = body.pop("sha256", None), json_hash(body)
    if actual != expected:
        raise CorruptCheckpointError(f"{where}: expected sha256 {expected}, got {actual}")
    try:
        return ExportManifest.model_validate(body)
    except ValidationError as error:
        raise CorruptCheckpointError(f"{where}: {error}") from None
