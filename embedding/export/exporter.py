"""Exports: tables of a checkpoint or a live store as files that other systems read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from ...feature_map import FeatureMap
from ...feature_map.value_files import read_values
from ..checkpoint.manifest import package_version
from ..checkpoint.reader import Checkpoint
from ..checkpoint.snapshot_stream import SnapshotSource, StoreFailure, snapshots
from ..checkpoint.storage import Directory
from ..checkpoint.tablet_file import safe_name
from ..errors import CheckpointMismatchError, CheckpointWriteError, UnknownTableError
from ..table_config import TableConfig, unknown_table
from ..table_group import TabletSnapshot
from .manifest import ExportedBlock, ExportedTable, ExportManifest, ExportOptions, UnseenRow
from .raw_ids import RawIds
from .storage import ExportTarget, read_export_manifest
from .table_writer import WRITERS, TableWriter
from .vectors import TableExport


@dataclass(frozen=True)
class ExportReport:
    """What an export holds: rows and erased keys by table."""

    path: str
    rows: dict[str, int]
    erased: dict[str, int]


def export_tables(
    source: SnapshotSource,
    to: str | Path,
    tables: Sequence[str] | None = None,
    options: ExportOptions | None = None,
    *,
    feature_map: FeatureMap | None = None,
    dictionaries: Mapping[str, pa.Table] | str | Path | None = None,
    base: str | Path | None = None,
    filesystem: pafs.FileSystem | None = None,
) -> ExportReport:
    """What was written to `to`: keys, raw ids, counts and vectors of `tables` (None: all), ascending by key.

    source:       a checkpoint, or a live store (training may go on; each tablet is consistent in itself).
    to:           a directory; or, for one table, a file name with the format's suffix: the manifest lies beside it.
                  An export that is there already is replaced when the new one is complete.
    feature_map:  tells what the keys were made from, for raw ids and `EmbeddingReader`; by default the checkpoint's.
    dictionaries: texts behind keys: a file of `feature_map.merge_values`, or an Arrow table (key, value) by table name.
    base:         an export of the same tables: only rows changed since and keys erased since are written (a delta).
    Raises: UnknownTableError; CheckpointMismatchError where `base` does not fit; CheckpointWriteError (disk full): what
            was at `to` is untouched; ValueError for options that contradict each other.
    Cost: memory of a few tablets.
    """
    options = options or ExportOptions()
    target = ExportTarget.of(to, options.format, filesystem)
    chosen = _chosen_tables(source, tables)
    target.check(chosen, is_delta=base is not None)
    if base is not None and Directory.of(base, filesystem).is_same_place(target.parent.child(target.name)):
        raise ValueError(f"expected a delta beside its base, got both at {target.path}")
    features = _feature_map_of(source, feature_map)
    _check_key_spaces(features, chosen)
    plans = [TableExport(c, options, RawIds.of(features, c.name, _texts(dictionaries, c.name))) for c in chosen]
    base_manifest = _base_manifest(base, filesystem, source, plans, options)
    try:
        with target.replaced() as directory:
            written = _write(directory, source, plans, base_manifest)
            manifest = _manifest(source, options, features, base_manifest, written)
            target.write_manifest(directory, manifest)
    except StoreFailure as failure:
        raise failure.error from None
    except OSError as error:
        raise CheckpointWriteError(
            error.errno or 0, f"could not export to {to}: {error}; nothing was changed"
        ) from error
    return ExportReport(
        path=target.path,
        rows={table.name: table.rows for table in manifest.tables},
        erased={table.name: table.erased for table in manifest.tables},
    )


@dataclass
class _Written:
    tables: list[ExportedTable]
    changes_since: list[int]


def _write(
    directory: Directory, source: SnapshotSource, plans: list[TableExport], base: ExportManifest | None
) -> _Written:
    since = None if base is None or base.changes_since is None else base.changes_since.__getitem__
    with ExitStack() as stack:
        streams = []
        for index, plan in enumerate(plans):
            writer = WRITERS[plan.options.format](directory, _file_name(plans, index), plan)
            stack.callback(writer.abandon)
            streams.append(_TableStream(plan, writer, base))
        changes_since = []
        for snapshot, version in snapshots(source, since, "the base export"):
            if base is not None and snapshot.since_version is None:
                raise CheckpointMismatchError(
                    f"expected the keys erased from tablet {snapshot.tablet} since the base export, got a store that"
                    " has forgotten them: a full export is needed"
                )
            changes_since.append(version)
            for stream in streams:
                stream.add(snapshot)
        return _Written([stream.finish() for stream in streams], changes_since)


class _TableStream:
    """One table on its way from snapshots to its writer."""

    def __init__(self, plan: TableExport, writer: TableWriter, base: ExportManifest | None) -> None:
        self.plan, self._writer, self._is_delta = plan, writer, base is not None
        self._rows = 0
        self._erased: list[npt.NDArray[np.uint64]] = []
        known = () if base is None else base.table(plan.config.name).unseen_rows
        self._unseen = {row.tablet: row for row in known}

    def add(self, snapshot: TabletSnapshot) -> None:
        if self.plan.config.unseen == "unknown_row":
            self._add_unseen(snapshot)
        rows = snapshot.tables.get(self.plan.config.name)
        if rows is None:
            return
        exported = self.plan.rows(rows)
        self._writer.add(exported)
        self._rows += len(exported.keys)
        if self._is_delta:
            self._erased += [rows.erased_keys, exported.left]

    def finish(self) -> ExportedTable:
        erased = np.unique(np.concatenate(self._erased)) if self._erased else np.empty(0, np.uint64)
        files = self._writer.finish(erased)
        config, ids = self.plan.config, self.plan.ids
        return ExportedTable(
            name=config.name,
            key_space=config.key_space,
            id=None if ids is None else ids.type,
            missing_key=None if ids is None else ids.missing_key,
            blocks=tuple(ExportedBlock(name=name, dim=dim) for name, _, dim in self.plan.blocks),
            unseen=self._mean_unseen(),
            unseen_rows=tuple(self._unseen[tablet] for tablet in sorted(self._unseen)),
            rows=self._rows,
            erased=len(erased),
            files=tuple(files),
        )

    def _add_unseen(self, snapshot: TabletSnapshot) -> None:
        rows = snapshot.tables[unknown_table(self.plan.config).name]
        for vector, count in zip(self.plan.vectors(rows.weights).tolist(), rows.count.tolist(), strict=True):
            self._unseen[snapshot.tablet] = UnseenRow(tablet=snapshot.tablet, count=count, vector=tuple(vector))

    def _mean_unseen(self) -> tuple[float, ...]:
        rows = [row for row in self._unseen.values() if row.count]
        if not rows:
            return (0.0,) * self.plan.dim
        mean = np.average([row.vector for row in rows], axis=0, weights=[row.count for row in rows])
        return tuple(mean.astype(np.float32).tolist())


def _manifest(
    source: SnapshotSource,
    options: ExportOptions,
    features: FeatureMap | None,
    base: ExportManifest | None,
    written: _Written,
) -> ExportManifest:
    checkpoint = source if isinstance(source, Checkpoint) else None
    return ExportManifest(
        package_version=package_version(),
        step=None if checkpoint is None else checkpoint.manifest.step,
        checkpoint=None if checkpoint is None else checkpoint.path,
        options=options,
        tables=tuple(written.tables),
        feature_map=None if features is None else features.to_dict(),
        feature_map_hash=None if features is None else features.hash,
        changes_since=tuple(written.changes_since),
        since=None if base is None else base.changes_since,
    )


def _chosen_tables(source: SnapshotSource, names: Sequence[str] | None) -> list[TableConfig]:
    present = {table.name: table for table in source.tables()}
    for name in names or ():
        if name not in present:
            raise UnknownTableError(f"expected one of tables {sorted(present)}, got {name!r}")
    if names is not None:
        return [present[name] for name in dict.fromkeys(names)]
    companions = {unknown_table(table).name for table in present.values() if table.unseen == "unknown_row"}
    return [table for name, table in present.items() if name not in companions]


def _check_key_spaces(features: FeatureMap | None, tables: Sequence[TableConfig]) -> None:
    spaces = {} if features is None else {table.name: table.key_space for table in features.tables}
    for table in tables:
        if spaces.get(table.name, table.key_space) != table.key_space:
            raise CheckpointMismatchError(
                f"expected a feature map with key space {table.key_space!r} for table {table.name!r}, got "
                f"{spaces[table.name]!r}: its ids would be others"
            )


def _texts(dictionaries: Mapping[str, pa.Table] | str | Path | None, table: str) -> pa.Table | None:
    if dictionaries is None or isinstance(dictionaries, Mapping):
        return None if dictionaries is None else dictionaries.get(table)
    texts = read_values(dictionaries, table)
    return texts if len(texts) else None


def _feature_map_of(source: SnapshotSource, given: FeatureMap | None) -> FeatureMap | None:
    if given is not None or not isinstance(source, Checkpoint) or source.manifest.feature_map is None:
        return given
    saved: Any = source.manifest.feature_map
    return FeatureMap.from_dict(saved, f"{source.path}: feature map")


def _base_manifest(
    base: str | Path | None,
    filesystem: pafs.FileSystem | None,
    source: SnapshotSource,
    plans: list[TableExport],
    options: ExportOptions,
) -> ExportManifest | None:
    if base is None:
        return None
    if options.touched_since:
        raise ValueError("expected no touched_since in a delta, got one: rows leave it without having changed")
    manifest = read_export_manifest(base, filesystem)[1]
    if len(manifest.changes_since) != 1 << source.tablet_bits:
        raise CheckpointMismatchError(
            f"expected a base of {1 << source.tablet_bits} tablets, got {len(manifest.changes_since)} ({base})"
        )
    kept = {"min_count": options.min_count, "blocks": options.blocks}
    for field, value in kept.items():
        if getattr(manifest.options, field) != value:
            raise CheckpointMismatchError(
                f"expected {field} {getattr(manifest.options, field)} as in base {base}, got {value}"
            )
    known = {table.name: table.dim for table in manifest.tables}
    for plan in plans:
        if known.get(plan.config.name) != plan.dim:
            raise CheckpointMismatchError(
                f"expected dim {plan.dim} in base {base}, got {known.get(plan.config.name)}"
                f" (table {plan.config.name!r})"
            )
    return manifest


def _file_name(plans: list[TableExport], index: int) -> str:
    name = safe_name(plans[index].config.name)
    twins = [plan for plan in plans[:index] if safe_name(plan.config.name).lower() == name.lower()]
    return f"{name}-{index}" if twins else name
