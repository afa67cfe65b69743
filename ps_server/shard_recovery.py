"""Starts a shard from its disk: checkpoint, then replay of the push log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from ..embedding.checkpoint import open_checkpoint
from ..embedding.table_group import TabletSnapshot
from .checkpoint_base import CheckpointBase, read_base
from .durable_shard import DurableLog, DurableShard
from .errors import CorruptPushLogError, PushLogFullError, PushLogMismatchError
from .mutation import AdoptMap, CompleteUnit, EnsureTables, ImportTablet, Mutation, RaiseLowestLease, restrict
from .push_log_files import LogFolder
from .push_log_format import LogIdentity
from .push_log_reader import PushLogReader
from .push_log_writer import LogLimits, PushLogWriter
from .shard import REFUSALS, Shard


class TabletSource(Protocol):
    """A checkpoint, as far as a shard needs it."""

    def snapshot(self, tablet: int) -> TabletSnapshot:
        """One tablet, whole."""


OpenCheckpoint = Callable[[str], AbstractContextManager[TabletSource]]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found on the disk.

    checkpoint: what it started from, or None for an empty shard.   replayed: records applied on top of it.
    end:        log position it goes on at.
    repairs:    what was cut off the end of the log: appends that were never acknowledged.
    """

    checkpoint: str | None
    replayed: int
    end: int
    repairs: tuple[str, ...]


def recover(
    shard: Shard,
    folder: LogFolder,
    *,
    shard_number: int,
    cluster: int = 0,
    durability: Literal["log", "fsync"] = "log",
    limits: LogLimits | None = None,
    open_base: OpenCheckpoint = open_checkpoint,
) -> tuple[DurableShard, Recovery]:
    """The shard, empty when it is given, as its push log in `folder` left it, and what was found.

    A log begins with the map the shard is given. Later, a newer map in the log counts; the same map has to give the
    shard the same tablets, or rows would be missing without a word. The caller holds `folder.lock()` meanwhile.
    Raises: CorruptPushLogError naming file and offset; PushLogMismatchError for the log of another shard, cluster,
    generation or share of tablets; errors of the checkpoint it starts from. The folder is as it was.
    """
    identity = LogIdentity(shard_number, cluster, shard.tablet_bits)
    given = AdoptMap(shard.owned, shard.epoch, shard.generation)
    base = read_base(folder)
    reader = PushLogReader(folder, identity)
    if base is None:
        replayed = _replay(shard, reader, _Tablets(shard))
    else:
        with open_base(base.checkpoint) as source:
            replayed = _replay(shard, reader, _TabletsOf(shard, base, source))
    _check_map(shard, given, folder)
    repairs = [] if reader.torn is None else [f"cut off {reader.torn}"]
    reader.cut_torn_tail()
    if replayed.refused is not None:
        repairs.append(f"cut off record {reader.end - 1}, which the shard had refused: {replayed.refused}")
        reader.cut_last_record()
    writer = PushLogWriter(
        folder, identity, generation=shard.generation, end=reader.end, durability=durability, limits=limits
    )
    if base is not None:
        with suppress(PushLogFullError):  # the log stays longer than it needs to be
            writer.trim(base.since)
    checkpoint = None if base is None else base.checkpoint
    durable = DurableShard(shard, DurableLog(folder, writer), checkpoint)
    if base is None and reader.end == 0:
        durable.apply(given)
    found = Recovery(checkpoint, replayed.records, reader.end, tuple(repairs))
    return durable, found


def _check_map(shard: Shard, given: AdoptMap, folder: LogFolder) -> None:
    """Raises: PushLogMismatchError where the shard came out of its log as another one than it is to be."""
    if shard.generation < given.generation:
        raise PushLogMismatchError(
            f"expected a push log of generation {given.generation}, got one of {shard.generation} ({folder.path('')}):"
            " it is from before a rollback, start from the checkpoint without it"
        )
    if shard.epoch == given.epoch and not np.array_equal(shard.owned, given.owned):
        raise PushLogMismatchError(
            f"expected a push log of {int(given.owned.sum())} tablets at map epoch {given.epoch}, got one of "
            f"{int(shard.owned.sum())} others ({folder.path('')}): the cluster had another number of shards; restore a "
            "checkpoint into shards with new folders"
        )


@dataclass(slots=True)
class _Replayed:
    records: int = 0
    refused: Exception | None = None


class _Tablets:
    """Tablets of a shard that starts empty."""

    since = 0

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def load_before(self, position: int | None) -> None:
        """Put in the snapshots that were taken before the record at `position` (None: all)."""

    def part_of(self, mutation: Mutation) -> Mutation | None:
        """What of the mutation concerns the tablets that are there."""
        return mutation


class _TabletsOf(_Tablets):
    """Tablets of a checkpoint, each put in where its snapshot was taken; before that it stays empty."""

    def __init__(self, shard: Shard, base: CheckpointBase, source: TabletSource) -> None:
        super().__init__(shard)
        self.since = base.since
        self._base, self._source = base, source
        self._is_loaded = ~base.state.owned
        owned = np.flatnonzero(base.state.owned)
        self._pending = deque(owned[np.argsort(base.positions[owned], kind="stable")].tolist())
        state = base.state
        shard.apply(EnsureTables(state.tables))
        for unit, lease in state.completed_units:
            shard.apply(CompleteUnit(unit, lease))
        shard.apply(RaiseLowestLease(state.lowest_lease))
        shard.apply(AdoptMap(state.owned, state.epoch, state.generation))

    def load_before(self, position: int | None) -> None:
        while self._pending and (position is None or self._base.positions[self._pending[0]] <= position):
            tablet = self._pending.popleft()
            self._shard.apply(ImportTablet(self._snapshot(tablet)))
            self._is_loaded[tablet] = True

    def _snapshot(self, tablet: int) -> TabletSnapshot:
        snapshot = self._source.snapshot(tablet)
        known = {table.name for table in self._shard.tables()}
        # A table that was dropped while the checkpoint was taken may be listed in it, without rows.
        tables = {name: rows for name, rows in snapshot.tables.items() if name in known or len(rows.keys)}
        return replace(snapshot, tables=tables)

    def part_of(self, mutation: Mutation) -> Mutation | None:
        return restrict(mutation, self._is_loaded) if self._pending else mutation


def _replay(shard: Shard, reader: PushLogReader, tablets: _Tablets) -> _Replayed:
    done = _Replayed()
    for position, mutation in reader.records(tablets.since):
        if done.refused is not None:
            # Only the last record can be one that was refused and not taken back before the process ended.
            raise CorruptPushLogError(*reader.place, f"record {position - 1} cannot be applied: {done.refused}")
        tablets.load_before(position)
        part = tablets.part_of(mutation)
        if part is None:
            continue
        try:
            shard.apply(part)
        except REFUSALS as error:
            done.refused = error
        else:
            done.records += 1
    tablets.load_before(None)
    return done
