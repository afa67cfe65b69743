"""What a shard is, to the bit, in a form that tests compare and print."""

import dataclasses
import hashlib

import numpy as np


def shard_state(shard):
    """Everything later decisions and reads depend on, of every owned tablet."""
    state = {
        "owned": shard.owned.tolist(),
        "epoch": shard.epoch,
        "generation": shard.generation,
        "completed": shard.completed_units,
        "lowest_lease": shard.lowest_lease,
        "tables": [table.model_dump() for table in shard.tables()],
    }
    for tablet in np.flatnonzero(shard.owned).tolist():
        state[tablet] = tablet_state(shard.snapshot(tablet))
    return state


def tablet_state(snapshot):
    """A tablet's rows (sorted by key, as digests), counters and applied memory."""
    return {
        "version": snapshot.version,
        "push_count": snapshot.push_count,
        "applied": [
            array.tolist() for array in (snapshot.applied.unit, snapshot.applied.lease, snapshot.applied.batch)
        ],
        "tables": {name: rows_state(rows) for name, rows in snapshot.tables.items()},
    }


def rows_state(rows):
    """Digest and length of each array of a table's rows."""
    return {
        field.name: (len(array), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16])
        for field in dataclasses.fields(rows)
        for array in [getattr(rows, field.name)]
    }
