"""Reads checkpoints: checked before anything is used, tablet by tablet, into any store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pyarrow import fs as pafs
from safetensors.numpy import load as load_tensors

from ..errors import CheckpointMismatchError, CorruptCheckpointError, UnknownTableError
from ..store import TakenSnapshots
from ..table_config import TableConfig, unknown_table
from ..table_group import AppliedMemory, TableRows, TabletSnapshot
from .catalog import SkippedCheckpoint, check_sizes, list_checkpoints, read_manifest
from .manifest import Manifest
from .merge import changed_since, merge_snapshots
from .row_file_reader import TableReader
from .side_files import SideFiles
from .storage import Directory, Verify, check_verify
from .table_match import changed_settings, check_layout
from .tablet_file import TABLETS_SCHEMA, empty_rows


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
        self._side_files = SideFiles(directory, manifest)

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

    def begin_checkpoint(self) -> int:
        """0: it holds still."""
        return 0

    def commit_checkpoint(self, checkpoint: str, taken: TakenSnapshots | None = None) -> None:
        """Nothing: it has no log."""

    def changes_since(self, tablet: int) -> int:
        """The `since_version` that gives all that changed after this checkpoint."""
        return self._tablet_line(tablet)["changes_since"]

    def restore(self, store: RestoreTarget, *, only: Collection[str] | None = None) -> RestoreReport:
        """What was restored. Every tablet of the store is replaced: rows, optimizer state, counters, applied memory.

        only: tables wanted (their unknown rows come along); None for all. Tables the store lacks are made with the
              checkpoint's configuration; the store's other tables are emptied.
        Raises: CheckpointMismatchError naming table and field, UnknownTableError; nothing was changed. What the store
                raises (a lost connection): some tablets are restored and others not, so restore again.
        """
        if store.tablet_bits != self.tablet_bits:
            raise CheckpointMismatchError(
                f"{self.path}: expected a store of {self.tablet_bits} tablet bits, got {store.tablet_bits}"
            )
        known = {table.name for table in self.tables()}
        if unknown := sorted(set(only or ()) - known):
            raise UnknownTableError(f"{self.path}: expected tables out of {sorted(known)}, got {unknown}")
        asked = known if only is None else set(only)
        companions = {unknown_table(t).name for t in self.tables() if t.name in asked and t.unseen == "unknown_row"}
        wanted = [table for table in self.tables() if table.name in asked | companions]
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
            version=line["version"],
            since_version=None if line["is_whole"] or self._base is None else self._base.changes_since(tablet),
            erased_since=line["erased_since"],
            push_count=line["push_count"],
            tables={name: self._own_rows(name, tablet) for name in self._tables},
            applied=AppliedMemory(*self._side_files.of_tablet("applied", None, tablet)[1:]),
        )

    def _own_rows(self, name: str, tablet: int) -> TableRows:
        admission = self._side_files.of_tablet("admission", name, tablet)
        erased = self._side_files.of_tablet("erased", name, tablet)
        rows = self._tables[name].rows(tablet)
        if not len(admission[0]) and not len(erased[0]):
            return rows
        return replace(
            rows,
            admission_keys=admission[0],
            admission_counts=admission[1],
            erased_keys=erased[0],
            erased_versions=erased[1],
        )

    def _tablet_line(self, tablet: int) -> dict[str, int]:
        columns = self._side_files.columns("tablets", None)
        if not 0 <= tablet < len(columns[0]):
            raise CorruptCheckpointError(f"{self.path}: expected tablet {tablet} on record, got {len(columns[0])}")
        return {name: int(column[tablet]) for name, column in zip(TABLETS_SCHEMA.names, columns, strict=True)}


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
    check_verify(verify)
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
