"""Reads checkpoints: checked before anything is used, tablet by tablet, into any store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs
from safetensors.numpy import load as load_tensors

from ..errors import CheckpointMismatchError, CorruptCheckpointError
from ..table_config import TableConfig
from ..table_group import AppliedMemory, TableRows, TabletSnapshot
from .catalog import SkippedCheckpoint, check_sizes, list_checkpoints, read_manifest
from .manifest import FileKind, Manifest
from .merge import changed_since, merge_snapshots
from .row_file_reader import TableReader
from .storage import Directory
from .table_match import changed_settings, check_layout
from .tablet_file import ADMISSION_SCHEMA, APPLIED_SCHEMA, ERASED_SCHEMA, TABLETS_SCHEMA, empty_rows, numbers

Verify = Literal["contents", "sizes"]


class RestoreTarget(Protocol):
    """What a checkpoint is restored into."""

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits ranges."""

    def ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        """Make the tables exist."""

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables there are."""

    def restore(self, snapshot: TabletSnapshot) -> None:
        """Replace one tablet."""


@dataclass(frozen=True)
class RestoreReport:
    """What a restore did.

    rows:     rows restored, by table (with their optimizer state, counts and times).
    left_out: tables of the checkpoint that were not asked for.   emptied: tables of the store that got no rows.
    changed:  settings that differ and count from now on, as `user: blocks[0].optimizer.lr 0.1 -> 0.05`.
    """

    step: int
    rows: dict[str, int]
    left_out: tuple[str, ...]
    emptied: tuple[str, ...]
    changed: tuple[str, ...]


class Checkpoint:
    """One checkpoint, full or a delta with the chain it stands on; a source of snapshots like a store.

    Thread safety: one thread at a time. Snapshots given out stay valid after `close`.
    """

    def __init__(self, directory: Directory, manifest: Manifest, sha256: str, base: Checkpoint | None) -> None:
        self.directory, self.manifest, self.sha256 = directory, manifest, sha256
        self._base = base
        self._tables = {
            table.name: TableReader(directory, table, manifest.of_kind("rows", table.name), manifest.tablet_bits)
            for table in manifest.tables
        }
        self._side_files: dict[tuple[FileKind, str | None], pa.Table] = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Directory name, as `step-000012000`."""
        return self.directory.name

    @property
    def path(self) -> str:
        """Where it lies, in its filesystem."""
        return self.directory.path

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits ranges."""
        return self.manifest.tablet_bits

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables it holds."""
        return self.manifest.tables

    def dense(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays saved beside the rows, by name."""
        entries = self.manifest.of_kind("dense")
        return dict(load_tensors(self.directory.read(entries[0].path))) if entries else {}

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """One tablet, whole, or what changed in it since a version (whole again where erased keys were forgotten)."""
        own = self._own_snapshot(tablet)
        whole = own
        if self._base is not None and own.since_version is not None:
            whole = merge_snapshots(self._base.snapshot(tablet), own)
        if since_version is None or since_version < whole.erased_since:
            return whole
        return changed_since(whole, since_version)

    def cut(self, tablet: int) -> int:
        """The version that changes after this checkpoint carry; nothing changes."""
        return self.changes_since(tablet) + 1

    def changes_since(self, tablet: int) -> int:
        """The `since_version` that gives all that changed after this checkpoint."""
        return int(self._tablet_line(tablet)["changes_since"])

    def restore(self, store: RestoreTarget, *, only: Collection[str] | None = None) -> RestoreReport:
        """What was restored. Every tablet of the store is replaced: rows, optimizer state, counters, applied memory.

        only: tables wanted; None for all. Tables the store lacks are made with the checkpoint's configuration; the
              store's other tables are emptied.
        Raises: CheckpointMismatchError naming table and field; nothing was changed.
        """
        if store.tablet_bits != self.tablet_bits:
            raise CheckpointMismatchError(
                f"{self.path}: expected a store of {self.tablet_bits} tablet bits, got {store.tablet_bits}"
            )
        wanted = [table for table in self.tables() if only is None or table.name in only]
        present = {table.name: table for table in store.tables()}
        for table in wanted:
            if table.name in present:
                check_layout(table, present[table.name], self.path)
        store.ensure_tables([table for table in wanted if table.name not in present])
        names = {table.name for table in wanted}
        emptied = {name: empty_rows(table) for name, table in present.items() if name not in names}
        rows = dict.fromkeys(sorted(names), 0)
        with ThreadPoolExecutor(1, "checkpoint-read") as pool:
            ahead = pool.submit(self.snapshot, 0)
            for tablet in range(1 << self.tablet_bits):
                snapshot = ahead.result()
                if tablet + 1 < 1 << self.tablet_bits:
                    ahead = pool.submit(self.snapshot, tablet + 1)
                kept = {name: part for name, part in snapshot.tables.items() if name in names}
                for name, part in kept.items():
                    rows[name] += len(part.keys)
                store.restore(replace(snapshot, tables={**kept, **emptied}))
        return RestoreReport(
            step=self.manifest.step,
            rows=rows,
            left_out=tuple(table.name for table in self.tables() if table.name not in names),
            emptied=tuple(emptied),
            changed=tuple(
                line
                for table in wanted
                if table.name in present
                for line in changed_settings(table, present[table.name])
            ),
        )

    def close(self) -> None:
        """Close the files, and those of the chain; idempotent."""
        for reader in self._tables.values():
            reader.close()
        if self._base is not None:
            self._base.close()

    def _own_snapshot(self, tablet: int) -> TabletSnapshot:
        line = self._tablet_line(tablet)
        return TabletSnapshot(
            tablet=tablet,
            tablet_bits=self.tablet_bits,
            version=int(line["version"]),
            since_version=None if line["is_whole"] or self._base is None else self._base.changes_since(tablet),
            erased_since=int(line["erased_since"]),
            push_count=int(line["push_count"]),
            tables={name: self._own_rows(name, tablet) for name in self._tables},
            applied=self._own_memory(tablet),
        )

    def _own_rows(self, name: str, tablet: int) -> TableRows:
        rows = self._tables[name].rows(tablet)
        admission = self._of_tablet("admission", name, tablet)
        erased = self._of_tablet("erased", name, tablet)
        return TableRows(
            keys=rows.keys,
            weights=rows.weights,
            state=rows.state,
            count=rows.count,
            touched_at=rows.touched_at,
            version=rows.version,
            admission_keys=numbers(admission, "key"),
            admission_counts=numbers(admission, "count"),
            erased_keys=numbers(erased, "key"),
            erased_versions=numbers(erased, "version"),
        )

    def _own_memory(self, tablet: int) -> AppliedMemory:
        table = self._side_file("applied", None)
        tablets = numbers(table, "tablet")
        start, stop = np.searchsorted(tablets, [tablet, tablet + 1])
        part = table.slice(int(start), int(stop - start))
        return AppliedMemory(numbers(part, "unit"), numbers(part, "lease"), numbers(part, "batch"))

    def _of_tablet(self, kind: FileKind, name: str, tablet: int) -> pa.Table:
        table = self._side_file(kind, name)
        keys = numbers(table, "key")
        shift = 64 - self.tablet_bits
        start = int(np.searchsorted(keys, np.uint64(tablet << shift)))
        last = tablet + 1 == 1 << self.tablet_bits
        stop = len(keys) if last else int(np.searchsorted(keys, np.uint64((tablet + 1) << shift)))
        return table.slice(start, stop - start)

    def _tablet_line(self, tablet: int) -> dict[str, int]:
        table = self._side_file("tablets", None)
        if not 0 <= tablet < len(table):
            raise CorruptCheckpointError(f"{self.path}: expected tablet {tablet} on record, got {len(table)} tablets")
        return {name: int(table.column(name)[tablet].as_py()) for name in table.schema.names}

    def _side_file(self, kind: FileKind, name: str | None) -> pa.Table:
        """The small files of one kind as one table; read once."""
        found = self._side_files.get((kind, name))
        if found is None:
            schema = {
                "admission": ADMISSION_SCHEMA,
                "erased": ERASED_SCHEMA,
                "applied": APPLIED_SCHEMA,
                "tablets": TABLETS_SCHEMA,
            }[kind]
            parts = [self._read_table(entry.path) for entry in self.manifest.of_kind(kind, name)]
            found = pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()
            self._side_files[kind, name] = found
        return found

    def _read_table(self, path: str) -> pa.Table:
        try:
            return pa.ipc.open_file(self.directory.open(path)).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptCheckpointError(f"{self.path}/{path}: expected an Arrow IPC file, got {error}") from error


def open_checkpoint(
    path: str | Path, *, filesystem: pafs.FileSystem | None = None, verify: Verify = "contents"
) -> Checkpoint:
    """The checkpoint in directory `path`, checked with the chain it stands on.

    verify: `contents` reads every file once and compares its sha256; `sizes` only looks that all are there.
    Raises: CorruptCheckpointError naming the file; CheckpointMismatchError for a newer format.
    """
    return _open(Directory.of(path, filesystem), verify)


def latest_checkpoint(
    root: str | Path, *, filesystem: pafs.FileSystem | None = None, verify: Verify = "contents"
) -> tuple[Checkpoint | None, tuple[SkippedCheckpoint, ...]]:
    """The newest complete checkpoint under `root`, or None, and what was passed over to get there, with the reason."""
    complete, skipped = list_checkpoints(root, filesystem)
    for entry in reversed(complete):
        try:
            return _open(entry.directory, verify), tuple(skipped)
        except (CorruptCheckpointError, CheckpointMismatchError) as error:
            skipped.append(SkippedCheckpoint(entry.directory.path, str(error)))
    return None, tuple(skipped)


def _open(directory: Directory, verify: Verify) -> Checkpoint:
    manifest, digest = read_manifest(directory)
    check_sizes(directory, manifest)
    base = None
    if manifest.base is not None:
        base = _open(directory.parent().child(manifest.base), verify)
        if base.sha256 != manifest.base_sha256:
            base.close()
            raise CorruptCheckpointError(
                f"{directory.path}: expected base {manifest.base} with sha256 {manifest.base_sha256}, got {base.sha256}"
            )
    try:
        if verify == "contents":
            _verify_contents(directory, manifest)
        return Checkpoint(directory, manifest, digest, base)
    except BaseException:
        if base is not None:
            base.close()
        raise


def _verify_contents(directory: Directory, manifest: Manifest) -> None:
    with ThreadPoolExecutor(2, "checkpoint-verify") as pool:
        digests = pool.map(lambda entry: directory.sha256(entry.path), manifest.files)
        for entry, digest in zip(manifest.files, digests, strict=True):
            if digest != entry.sha256:
                raise CorruptCheckpointError(
                    f"{directory.path}/{entry.path}: expected sha256 {entry.sha256}, got {digest}: the file is damaged"
                )
