"""The manifest: what a checkpoint holds, written last; a directory without a valid one is no checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
from importlib import metadata
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import CheckpointMismatchError, CorruptCheckpointError
from ..table_config import TableConfig

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1

FileKind = Literal["rows", "admission", "erased", "tablets", "applied", "dense"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Frozen):
    """One file of the checkpoint.

    path:  relative to the checkpoint's directory.   table: whose rows it holds, or None.
    first_tablet, last_tablet: inclusive range its rows come from.   rows: records in it (tensors for `dense`).
    """

    path: str
    kind: FileKind
    table: str | None = None
    first_tablet: int = Field(default=0, ge=0)
    last_tablet: int = Field(default=0, ge=0)
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sha256: str


class Manifest(_Frozen):
    """Everything about a checkpoint but the rows.

    sequence:    position in the root's series of saves, 1 for the first; newest = highest.
    step:        the trainer's step.   generation: raised by each rollback or replaced shard.
    base:        directory name of the checkpoint this one is a delta to, or None for a full one;
    base_sha256: that checkpoint's own `sha256`, so that a base replaced under the same name is noticed.
    tables:      configurations with initializers, optimizers and policies.   row_counts: rows in these files, by table.
    non_finite_rows: rows in these files with a NaN or infinite weight or state, by table; only tables that have some.
    feature_map: as the run used it, and the hash of its canonical JSON.   config: the run's configuration.
    cursor:      position in the click log, taken before the first tablet.   scalars: the trainer's own JSON state.
    log_positions: by shard, where replay of the push log starts.
    """

    format: Literal["embershard-checkpoint"] = "embershard-checkpoint"
    format_version: int = FORMAT_VERSION
    package_version: str
    sequence: int = Field(ge=1)
    step: int = Field(ge=0)
    generation: int = Field(default=0, ge=0)
    base: str | None = None
    base_sha256: str | None = None
    tablet_bits: int = Field(ge=0, le=32)
    tables: tuple[TableConfig, ...]
    row_counts: dict[str, int]
    non_finite_rows: dict[str, int] = {}
    feature_map: Any = None
    feature_map_hash: str | None = None
    config: Any = None
    cursor: Any = None
    scalars: Any = None
    log_positions: dict[str, int] = {}
    files: tuple[FileEntry, ...]

    def table(self, name: str) -> TableConfig | None:
        """Configuration of one table, or None where the checkpoint has no such table."""
        return next((table for table in self.tables if table.name == name), None)

    def of_kind(self, kind: FileKind, table: str | None = None) -> tuple[FileEntry, ...]:
        """Files of one kind (and table), in tablet order."""
        found = [entry for entry in self.files if entry.kind == kind and (table is None or entry.table == table)]
        return tuple(sorted(found, key=lambda entry: entry.first_tablet))


def package_version() -> str:
    """Version of the installed package."""
    return metadata.version("embershard")


def require_json(value: object, where: str) -> None:
    """Raises: TypeError, ValueError for what JSON would not give back as it was (NaN, number keys, objects)."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"expected text as key, got {key!r} ({where})")
            require_json(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            require_json(item, f"{where}[{index}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value} ({where})")
    elif value is not None and not isinstance(value, (str, int)):
        raise TypeError(f"expected JSON data, got {type(value).__name__} ({where})")


def canonical_json(value: object) -> str:
    """`value` as JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def json_hash(value: object) -> str:
    """sha256 of the canonical JSON of `value`, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def encode_manifest(manifest: Manifest) -> tuple[bytes, str]:
    """The bytes of `manifest.json`, and the sha256 they carry of everything else in them."""
    body = manifest.model_dump(mode="json")
    digest = json_hash(body)
    return json.dumps({**body, "sha256": digest}, indent=1, ensure_ascii=True, allow_nan=False).encode() + b"\n", digest


def decode_manifest(data: bytes, where: str) -> tuple[Manifest, str]:
    """The manifest and its sha256.

    Raises: CorruptCheckpointError naming `where`; CheckpointMismatchError for a format newer than this package reads.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where}: expected JSON, got {error}") from None
    if not isinstance(body, dict) or body.get("format") != "embershard-checkpoint":
        raise CorruptCheckpointError(f"{where}: expected format 'embershard-checkpoint', got something else")
    version = body.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointMismatchError(
            f"{where}: expected format version <= {FORMAT_VERSION}, got {version}"
            f" (written by embershard {body.get('package_version')}; this is {package_version()})"
        )
    expected = body.pop("sha256", None)
    actual = json_hash(body)
    if actual != expected:
        raise CorruptCheckpointError(f"{where}: expected sha256 {expected}, got {actual}")
    try:
        return Manifest.model_validate(body), actual
    except ValidationError as error:
        raise CorruptCheckpointError(f"{where}: {error}") from None
