"""What a shard's push log goes on from: a committed checkpoint, and what no tablet's snapshot carries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt

from ..embedding.table_config import TableConfig
from .errors import CorruptPushLogError
from .mutation import ALL_LEASES
from .push_log_files import LogFolder
from .shard import Shard
from .tablets import TabletMask

BASE_FILE = "base.json"
BASE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ShardState:
    """What a shard knows beside its tablets; see the properties of `Shard`."""

    tables: tuple[TableConfig, ...]
    owned: TabletMask
    epoch: int
    generation: int
    completed_units: tuple[tuple[int, int], ...]
    lowest_lease: int

    @classmethod
    def of(cls, shard: Shard) -> ShardState:
        """The state as it is now."""
        return cls(
            shard.tables(),
            shard.owned,
            shard.epoch,
            shard.generation,
            shard.completed_units,
            shard.lowest_lease,
        )


@dataclass(frozen=True, slots=True)
class CheckpointBase:
    """A checkpoint and where replay starts on top of it.

    since:     log position at which `state` was taken: the first record that is needed.
    positions: (2^t,) int64 position each tablet's snapshot was taken at, ≥ since; records before are in it.
    """

    checkpoint: str
    since: int
    positions: npt.NDArray[np.int64]
    state: ShardState


def write_base(folder: LogFolder, base: CheckpointBase) -> None:
    """Make `base` the one this log goes on from; all at once, and on the disk when it returns. Raises: OSError."""
    state = base.state
    content = {
        "format": BASE_FORMAT,
        "checkpoint": base.checkpoint,
        "since": base.since,
        "positions": base.positions.tolist(),
        "tables": [table.model_dump(mode="json") for table in state.tables],
        "owned": np.flatnonzero(state.owned).tolist(),
        "epoch": state.epoch,
        "generation": state.generation,
        "completed_units": [unit for unit, _ in state.completed_units],
        "completed_leases": [lease for _, lease in state.completed_units],
        "lowest_lease": state.lowest_lease,
    }
    text = json.dumps(content, separators=(",", ":"))
    folder.replace(BASE_FILE, json.dumps({"digest": _digest(text), "content": text}).encode())


def read_base(folder: LogFolder) -> CheckpointBase | None:
    """What this log goes on from, or None where it begins with an empty shard. Raises: CorruptPushLogError."""
    if BASE_FILE not in folder.names():
        return None
    path = folder.path(BASE_FILE)
    file = folder.open(BASE_FILE)
    try:
        data = file.read(0, file.size()).tobytes()
    finally:
        file.close()
    try:
        outer = json.loads(data)
        text, digest = outer["content"], outer["digest"]
        if set(outer) != {"content", "digest"} or _digest(text) != digest:
            raise ValueError("another checksum")
        content: dict[str, Any] = json.loads(text)
        if content["format"] != BASE_FORMAT:
            raise ValueError(f"format {content['format']}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptPushLogError(
            path, 0, f"expected the base of a push log, format {BASE_FORMAT}, got {error}"
        ) from None
    positions = np.array(content["positions"], np.int64)
    owned = np.zeros(len(positions), np.bool_)
    owned[content["owned"]] = True
    tables = tuple(TableConfig.model_validate(table) for table in content["tables"])
    completed = content["completed_units"]
    state = ShardState(
        tables,
        owned,
        content["epoch"],
        content["generation"],
        tuple(zip(completed, content.get("completed_leases", [ALL_LEASES] * len(completed)), strict=True)),
        content["lowest_lease"],
    )
    return CheckpointBase(content["checkpoint"], content["since"], positions, state)


def _digest(text: str) -> str:
    return mmh3.mmh3_x64_128_digest(text.encode()).hex()
