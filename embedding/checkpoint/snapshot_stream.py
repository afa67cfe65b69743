"""Tablets of a store one after the other, each read while those before it are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ..errors import CheckpointMismatchError
from ..store import TakenSnapshots
from ..table_config import TableConfig
from ..table_group import TabletSnapshot

_AHEAD = 2


class SnapshotSource(Protocol):
    """What a checkpoint or an export is made from: a store, or a checkpoint."""

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits ranges."""

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables there are."""

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet."""

    def cut(self, tablet: int) -> int:
        """Bump the tablet's version; changes from now on carry the one returned."""

    def begin_checkpoint(self) -> int:
        """Number of a checkpoint that cuts and snapshots from here on may make up."""

    def commit_checkpoint(self, checkpoint: str, taken: TakenSnapshots) -> object:
        """The checkpoint is complete: what came before the snapshots in it need not be logged any more."""


class StoreFailure(Exception):  # noqa: N818 - no error of its own: it carries one past the handling of the disk's
    """An OSError of the store (a lost connection), so that it is not taken for one of the disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def snapshots(
    store: SnapshotSource, since: Callable[[int], int] | None = None, base: str = ""
) -> Iterator[tuple[TabletSnapshot, int]]:
    """Snapshot of each tablet in order, and the version after which changes are missing from it.

    since: per tablet, the version of `base` whose later changes are wanted; None for whole tablets.
    Raises: StoreFailure; CheckpointMismatchError where the store does not go on from `base`.
    """

    def take(tablet: int) -> tuple[TabletSnapshot, int]:
        try:
            # The cut comes first: what changes between the two is in this snapshot and in the next delta as well.
            changes_since = store.cut(tablet) - 1
            start = None if since is None else since(tablet)
            if start is not None and changes_since <= start:
                raise CheckpointMismatchError(
                    f"expected tablet {tablet} to be past version {start} of base {base}, got {changes_since}:"
                    " the store does not go on from there, a full save is needed"
                )
            return store.snapshot(tablet, start), changes_since
        except OSError as error:
            raise StoreFailure(error) from None

    count = 1 << store.tablet_bits
    with ThreadPoolExecutor(1, "snapshot") as pool:
        ahead = deque(pool.submit(take, tablet) for tablet in range(min(_AHEAD, count)))
        try:
            for tablet in range(count):
                current = ahead.popleft().result()
                if tablet + _AHEAD < count:
                    ahead.append(pool.submit(take, tablet + _AHEAD))
                yield current
        finally:
            for future in ahead:
                future.cancel()
