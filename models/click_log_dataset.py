"""A click log as a torch `IterableDataset`: each row once over ranks and loader workers, with a state to go on from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from ..datasets.batch_stream import BatchStream, ReadPosition
from ..datasets.click_log import ClickLog
from ..datasets.errors import ClickLogError
from ..datasets.record_encoder import RecordEncoder
from ..datasets.sharding import UnitShare, shares
from ..datasets.work_unit import BatchId

_MAX_WORKERS = 1_024


class _NamedBatch(Protocol):
    @property
    def id(self) -> BatchId | None:
        """Which batch of which work unit it is."""


BatchT = TypeVar("BatchT", bound=_NamedBatch)


class ClickLogDataset(IterableDataset[BatchT], Generic[BatchT]):
    """Encoded batches of a click log for `DataLoader(dataset, batch_size=None, num_workers=…)`.

    Each pass reads the next epoch, with workers that stay or not. Each row comes once over `world_size` ranks and their
    workers; work is shared out here, so a loader prepared by Accelerate must not shard it again.

    rank, world_size: by default those of torch.distributed when the dataset is made, else 0 of 1.

    State: `state_dict` says where each reader of this rank goes on. With workers of a plain DataLoader, or where
    `es.prefetch` takes batches ahead, call `delivered` for each batch that is trained; torchdata's StatefulDataLoader
    asks the workers itself. A state fits the same files, seed, batch size and number of readers.
    Thread safety: one consumer.
    """

    def __init__(
        self,
        click_log: ClickLog,
        features: RecordEncoder[BatchT],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_remainder: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int = 2,
    ) -> None:
        super().__init__()
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        default_rank, default_world = (
            (torch.distributed.get_rank(), torch.distributed.get_world_size()) if is_distributed else (0, 1)
        )
        self._rank = default_rank if rank is None else rank
        self._world = default_world if world_size is None else world_size
        if not 0 <= self._rank < self._world:
            raise ClickLogError(f"expected a rank in [0, {self._world}), got {self._rank}")
        self._log, self._features, self._batch_size = click_log, features, batch_size
        self._shuffle, self._seed, self._drop_remainder = shuffle, seed, drop_remainder
        self._prefetch = prefetch
        # Number of workers, then passes begun by each: shared with workers, whose copies of this object may live for
        # one pass only.
        self._shared = torch.zeros(1 + _MAX_WORKERS, dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]
        self._stream: tuple[int, BatchStream[BatchT]] | None = None
        self._delivered: dict[int, ReadPosition] = {}
        self._places: _Places | None = None
        self._begin(0, {}, None)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read `epoch` from its beginning."""
        self._begin(epoch, {}, None)

    def __iter__(self) -> Iterator[BatchT]:
        """This worker's batches of the next epoch. Raises: ClickLogError for a state of another number of readers."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        shard, readers = self._rank * workers + number, self._world * workers
        done = int(self._shared[1 + number])
        if done == 0 and self._readers not in (None, readers):
            raise ClickLogError(f"expected {self._readers} readers as in the state, got {readers}")
        self._shared[0] = workers
        self._shared[1 + number] += 1
        stream = self._log.batches(
            self._features,
            self._batch_size,
            epoch=self._first_epoch + done,
            seed=self._seed,
            shuffle=self._shuffle,
            drop_remainder=self._drop_remainder,
            start=self._starts.get(shard) if done == 0 else None,
            shard=(shard, readers),
            prefetch=self._prefetch if worker is None else 0,
        )
        self._stream = (shard, stream)
        yield from stream

    def delivered(self, batch: BatchT) -> None:
        """Note that a batch of the current pass arrived, and was trained: `state_dict` goes on after it."""
        epoch = self._first_epoch + max(0, int(self._shared[1:].max()) - 1)
        if self._places is None or self._places.epoch != epoch:
            self._places = _Places(epoch, self._shards_of_this_rank(epoch))
        if batch.id is None:
            raise ClickLogError("expected a batch of this dataset, got one without an id")
        shard, position = self._places.after(batch.id)
        self._delivered[shard] = position

    def state_dict(self) -> dict[str, Any]:
        """Epoch, number of readers, and where each reader of this rank that has begun goes on; plain JSON values."""
        workers = max(1, int(self._shared[0]))
        positions = dict(self._starts if int(self._shared[1:].max()) <= 1 else {})
        if self._stream is not None:
            positions[self._stream[0]] = self._stream[1].position
        positions.update(self._delivered)
        epoch = max((position.epoch for position in positions.values()), default=self._first_epoch)
        return {
            "epoch": epoch,
            "readers": self._readers if self._readers is not None else self._world * workers,
            "positions": {
                str(shard): [position.unit, position.batch]
                for shard, position in sorted(positions.items())
                if position.epoch == epoch
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass go on where `state` was taken."""
        epoch = int(state["epoch"])
        starts = {int(shard): ReadPosition(epoch, *place) for shard, place in state["positions"].items()}
        self._begin(epoch, starts, int(state["readers"]) if starts else None)

    def _begin(self, epoch: int, starts: dict[int, ReadPosition], readers: int | None) -> None:
        self._first_epoch, self._starts, self._readers = epoch, starts, readers
        self._delivered, self._places, self._stream = {}, None, None
        self._shared.zero_()

    def _shards_of_this_rank(self, epoch: int) -> dict[int, list[UnitShare]]:
        workers = max(1, int(self._shared[0]))
        units = self._log.units(epoch, seed=self._seed, shuffle=self._shuffle)
        first = self._rank * workers
        return {shard: shares(units, shard, self._world * workers) for shard in range(first, first + workers)}


class _Places:
    """Where in which reader's share a batch of one epoch stands."""

    def __init__(self, epoch: int, shards: dict[int, list[UnitShare]]) -> None:
        self.epoch = epoch
        self._by_unit = {
            share.id: (shard, number) for shard, units in shards.items() for number, share in enumerate(units)
        }

    def after(self, name: BatchId) -> tuple[int, ReadPosition]:
        """The reader that gave the batch, and the position after it."""
        if name.unit not in self._by_unit:
            raise ClickLogError(f"expected a batch of epoch {self.epoch} of this dataset, got {name}")
        shard, number = self._by_unit[name.unit]
        return shard, ReadPosition(self.epoch, number, name.index + 1)
