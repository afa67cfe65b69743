"""Tablet map: which shard owns which tablet, and where the shards are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import parameter_server_pb2 as pb
from .errors import WireFormatError
from .tablets import TabletMask, check_tablet_bits, tablet_range

MAX_SHARDS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class TabletMap:
    """Tablet → shard, with an epoch that only grows. owners: (2^t,) uint16 shard of each tablet."""

    epoch: int
    tablet_bits: int
    addresses: tuple[str, ...]
    owners: npt.NDArray[np.uint16]

    @classmethod
    def even(cls, addresses: Sequence[str], tablet_bits: int = 8, epoch: int = 1) -> TabletMap:
        """Equal runs of neighbouring tablets, in the order of the addresses."""
        count, shards = 1 << check_tablet_bits(tablet_bits), len(addresses)
        if not 1 <= shards <= min(count, MAX_SHARDS):
            raise ValueError(f"expected 1 to {min(count, MAX_SHARDS)} shards for {count} tablets, got {shards}")
        owners = (np.arange(count) * shards // count).astype(np.uint16)
        return cls(epoch, tablet_bits, tuple(addresses), owners)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.addresses)

    def tablets_of(self, shard: int) -> TabletMask:
        """(2^t,) flags of the tablets the shard owns."""
        mask: TabletMask = self.owners == shard
        return mask

    def shard_of_keys(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
        """(n,) uint16 shard of each key."""
        if self.tablet_bits == 0:
            return np.zeros(len(keys), np.uint16)
        shards: npt.NDArray[np.uint16] = self.owners[keys >> np.uint64(64 - self.tablet_bits)]
        return shards

    def describe(self, shard: int) -> str:
        """The shard's tablets as text, for error messages."""
        tablets = np.flatnonzero(self.owners == shard)
        if not len(tablets):
            return "no tablets"
        first, last = int(tablets[0]), int(tablets[-1])
        if last - first + 1 == len(tablets):
            return tablet_range(first, last, self.tablet_bits)
        return f"{len(tablets)} tablets from {first} to {last}"

    def to_message(self) -> pb.TabletMap:
        """The map as a message."""
        return pb.TabletMap(
            epoch=self.epoch,
            tablet_bits=self.tablet_bits,
            addresses=self.addresses,
            owners=self.owners.astype("<u2").tobytes(),
        )

    @classmethod
    def from_message(cls, message: pb.TabletMap) -> TabletMap:
        """The map of a message. Raises: WireFormatError."""
        owners = np.frombuffer(message.owners, "<u2").astype(np.uint16) if len(message.owners) % 2 == 0 else None
        if message.tablet_bits > 16 or owners is None or len(owners) != 1 << message.tablet_bits:
            raise WireFormatError(f"expected one owner for each of 2^{message.tablet_bits} tablets")
        if len(message.addresses) == 0 or int(owners.max()) >= len(message.addresses):
            raise WireFormatError(f"expected owners below {len(message.addresses)} shards, got {int(owners.max())}")
        return cls(message.epoch, message.tablet_bits, tuple(message.addresses), owners)
