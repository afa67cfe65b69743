"""Writes checkpoints: tablet by tablet, in bounded memory, manifest last."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import fs as pafs
from safetensors.numpy import save as save_tensors

from ..errors import CheckpointMismatchError, CheckpointWriteError
from ..store import TakenSnapshots
from ..table_config import TableConfig
from .catalog import next_sequence, step_names
from .checksum_file import BackgroundWork
from .manifest import MANIFEST_NAME, FileEntry, Manifest, encode_manifest, json_hash, package_version, require_json
from .reader import Checkpoint, open_checkpoint
from .snapshot_stream import SnapshotSource, StoreFailure, snapshots
from .storage import Directory, committed_directory
from .tablet_file import APPLIED_SCHEMA, TABLETS_SCHEMA, Column, record_batch, sorted_memory
from .tablet_file_writer import FileSeries, TableFiles


@dataclass(frozen=True)
class TrainingState:
    """What a checkpoint holds beside the rows.

    step, generation: see `Manifest`.   feature_map, config, cursor, scalars: JSON data.
    dense:         arrays by name (parameters, optimizer state of the dense part, random generators).
    log_positions: by shard, where replay of the push log starts.
    """

    step: int
    generation: int = 0
    feature_map: Any = None
    config: Any = None
    cursor: Any = None
    scalars: Any = None
    dense: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    log_positions: Mapping[str, int] = field(default_factory=dict)


def write_checkpoint(
    root: str | Path,
    store: SnapshotSource,
    state: TrainingState,
    *,
    base: str | Path | None = None,
    filesystem: pafs.FileSystem | None = None,
) -> str:
    """Path of a new checkpoint of `store` and `state` under `root`, complete and durable.

    root:  a local path, a URI, or a path of `filesystem`; made if it does not exist.
    base:  a checkpoint of the same rows under the same root: only what changed since is written (a delta). Deltas are
           sound only while the store goes on from that checkpoint; one taken back to an older state needs a full one.
    Raises: CheckpointWriteError (disk full, no permission): nothing is left of it, older checkpoints are untouched.
            What the store raises: before the checkpoint is complete nothing is left of it; where it is complete and the
            store could not take note of it, older checkpoints may still be needed and must not be pruned.
            CheckpointMismatchError where `base` does not fit the store. ValueError, TypeError for state not in JSON.
    Warns:  RuntimeWarning where rows are not finite; the manifest counts them by table.
    Threads: training may go on meanwhile; each tablet is consistent in itself.
    Cost: each tablet is copied once; memory of a few tablets and 1 MiB a table.
    """
    for name in ("feature_map", "config", "cursor", "scalars"):
        require_json(getattr(state, name), name)
    directory = Directory.of(root, filesystem)
    tables = tuple(store.tables())
    number = store.begin_checkpoint()
    base_checkpoint = _open_base(directory, base, store, tables)
    try:
        with committed_directory(directory, step_names(state.step)) as (target, name):
            written = _write_tablets(target, store, tables, base_checkpoint)
            if state.dense:
                written.files.append(_write_dense(target, state.dense))
            manifest = _manifest(state, (store.tablet_bits, tables), written, next_sequence(directory), base_checkpoint)
            target.write(MANIFEST_NAME, encode_manifest(manifest)[0])
    except StoreFailure as failure:
        raise failure.error from None
    except OSError as error:
        raise CheckpointWriteError(
            error.errno or 0,
            f"could not save a checkpoint of step {state.step} in {directory.path}: {error}; nothing of it is left and"
            " older checkpoints are untouched",
        ) from error
    finally:
        if base_checkpoint is not None:
            base_checkpoint.close()
    path = f"{str(root).rstrip('/')}/{name}" if "://" in str(root) else directory.child(name).path
    store.commit_checkpoint(path, TakenSnapshots(number, written.log_positions))
    if manifest.non_finite_rows:
        bad = ", ".join(f"{count} of table {table!r}" for table, count in manifest.non_finite_rows.items())
        warnings.warn(f"checkpoint {path} holds rows with NaN or infinite values: {bad}", RuntimeWarning, stacklevel=2)
    return path


def _manifest(
    state: TrainingState,
    layout: tuple[int, tuple[TableConfig, ...]],
    written: _Written,
    sequence: int,
    base: Checkpoint | None,
) -> Manifest:
    tablet_bits, tables = layout
    counts = dict.fromkeys((table.name for table in tables), 0)
    for entry in written.files:
        if entry.kind == "rows" and entry.table is not None:
            counts[entry.table] += entry.rows
    return Manifest(
        package_version=package_version(),
        sequence=sequence,
        step=state.step,
        generation=state.generation,
        base=base.name if base is not None else None,
        base_sha256=base.sha256 if base is not None else None,
        tablet_bits=tablet_bits,
        tables=tables,
        row_counts=counts,
        non_finite_rows=written.non_finite_rows,
        feature_map=state.feature_map,
        feature_map_hash=None if state.feature_map is None else json_hash(state.feature_map),
        config=state.config,
        cursor=state.cursor,
        scalars=state.scalars,
        log_positions=dict(state.log_positions),
        files=tuple(written.files),
    )


def _open_base(
    root: Directory, base: str | Path | None, store: SnapshotSource, tables: tuple[TableConfig, ...]
) -> Checkpoint | None:
    if base is None:
        return None
    checkpoint = open_checkpoint(base, filesystem=None if root.is_local else root.filesystem, verify="sizes")
    try:
        if checkpoint.directory.parent().path != root.path:
            raise CheckpointMismatchError(f"expected a base in {root.path}, got {checkpoint.directory.path}")
        if checkpoint.tablet_bits != store.tablet_bits:
            raise CheckpointMismatchError(
                f"expected a base of {store.tablet_bits} tablet bits, got {checkpoint.tablet_bits} ({checkpoint.name})"
            )
        new = {table.name for table in tables} - {table.name for table in checkpoint.tables()}
        gone = {table.name for table in checkpoint.tables()} - {table.name for table in tables}
        if new or gone:
            raise CheckpointMismatchError(
                f"expected the tables of base {checkpoint.name}, got new {sorted(new)}, gone {sorted(gone)}:"
                " tables change only between full checkpoints"
            )
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


@dataclass(frozen=True)
class _Written:
    files: list[FileEntry]
    non_finite_rows: dict[str, int]
    log_positions: npt.NDArray[np.int64]


def _write_tablets(
    target: Directory, store: SnapshotSource, tables: tuple[TableConfig, ...], base: Checkpoint | None
) -> _Written:
    """Files of all tablets; one tablet is read ahead while the one before it is written."""
    with ExitStack() as stack:
        work = BackgroundWork()
        stack.callback(work.shut_down)
        writers = [stack.enter_context(TableFiles(target, work, index, table)) for index, table in enumerate(tables)]
        applied = stack.enter_context(FileSeries(target, work, "applied", APPLIED_SCHEMA))
        lines: list[tuple[int, ...]] = []
        positions = np.full(1 << store.tablet_bits, -1, np.int64)
        for snapshot, changes_since in snapshots(
            store, None if base is None else base.changes_since, base.name if base is not None else ""
        ):
            for writer in writers:
                rows = snapshot.tables.get(writer.table.name)
                if rows is not None:
                    writer.add(snapshot.tablet, rows)
            memory = sorted_memory(snapshot.applied)
            if len(memory.unit):
                tablet = np.full(len(memory.unit), snapshot.tablet, np.uint32)
                columns: list[Column] = [tablet, memory.unit, memory.lease, memory.batch]
                applied.add(snapshot.tablet, record_batch(APPLIED_SCHEMA, columns))
            positions[snapshot.tablet] = snapshot.log_position
            is_whole = int(snapshot.since_version is None)
            lines.append(
                (
                    snapshot.tablet,
                    snapshot.version,
                    changes_since,
                    snapshot.erased_since,
                    snapshot.push_count,
                    is_whole,
                )
            )
        tablets = stack.enter_context(FileSeries(target, work, "tablets", TABLETS_SCHEMA))
        columns = [
            np.array([line[index] for line in lines], field.type.to_pandas_dtype())
            for index, field in enumerate(TABLETS_SCHEMA)
        ]
        tablets.add(0, record_batch(TABLETS_SCHEMA, columns), last_tablet=len(lines) - 1)
        entries = [entry for writer in writers for entry in writer.finish()] + applied.finish() + tablets.finish()
        work.finish()
        return _Written(entries, {w.table.name: w.non_finite_rows for w in writers if w.non_finite_rows}, positions)


def _write_dense(target: Directory, dense: Mapping[str, npt.NDArray[Any]]) -> FileEntry:
    data = save_tensors({name: np.asarray(array, order="C") for name, array in dense.items()})
    with target.create("dense.safetensors") as file:
        file.write(data)
        return FileEntry(path="dense.safetensors", kind="dense", rows=len(dense), bytes=len(data), sha256=file.sha256())
