"""Export workloads: what it costs to write a table for serving, and to look vectors up in it.

References in the same run: for an export, pyarrow writing the same columns from memory to the same format and an fsync;
for a lookup in a mapped export, `numpy.take` on the vectors as one array in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from ..embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from ..embedding.embedding_reader import EmbeddingReader
from ..embedding.export import ExportOptions, export_tables
from ..feature_map import Categorical, FeatureMap
from .checkpoint import filled_store
from .measurement import BenchOptions, Measurement, interleaved_rates

_TABLE = "feature_0"


class Options(BenchOptions):
    """rows: of the one table.   keys: looked up in a call.   directory: where to write; a temporary one."""

    rows: int = Field(default=2_000_000, ge=1)
    keys: int = Field(default=100_000, ge=1)
    dim: int = Field(default=16, ge=1)
    threads: int = Field(default=2, ge=1)
    rounds: int = Field(default=5, ge=1)
    directory: str | None = None


def run(options: Options) -> Iterator[Measurement]:
    """export to Parquet and Arrow, lookup of random keys in the Arrow export."""
    if options.quick:
        options = options.model_copy(update={"rows": 20_000, "keys": 1_000, "rounds": 2})
    folder = Path(tempfile.mkdtemp(prefix="embershard-bench-", dir=options.directory))
    try:
        yield from _measure(folder, options)
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, options: Options) -> Iterator[Measurement]:
    features = FeatureMap([Categorical(name=_TABLE, id="uint64")], dim=options.dim)
    store = filled_store(options.rows, 1, options.dim, options.threads)
    saved = write_checkpoint(folder / "saved", store, TrainingState(step=0, feature_map=features.to_dict()))
    details = {"rows": options.rows, "dim": options.dim, "threads": options.threads}
    with open_checkpoint(saved, verify="sizes") as checkpoint:
        export_tables(checkpoint, folder / "arrow", [_TABLE], ExportOptions(format="arrow"))
        columns = pa.ipc.open_file(folder / "arrow" / f"{_TABLE}.arrow").read_all()
        for name, write in (("parquet", _write_parquet), ("arrow", _write_arrow)):
            export_options = ExportOptions.model_validate({"format": name})
            work: dict[str, Callable[[], object]] = {
                "export": partial(export_tables, checkpoint, folder / f"again-{name}", [_TABLE], export_options),
                "pyarrow": partial(write, columns, folder / "plain"),
            }
            rates = interleaved_rates(work, dict.fromkeys(work, options.rows / 1e6), options.rounds)
            yield Measurement(
                "export", rates["export"], "M rows/s", "pyarrow_write", rates["pyarrow"], {**details, "format": name}
            )
    yield _lookup(EmbeddingReader(folder / "arrow"), columns, options)


def _write_parquet(columns: pa.Table, path: Path) -> None:
    pq.write_table(columns, path, compression="zstd", use_dictionary=["count"])
    _sync(path)


def _write_arrow(columns: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, columns.schema) as writer:
        writer.write_table(columns)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _lookup(reader: EmbeddingReader, columns: pa.Table, options: Options) -> Measurement:
    keys = columns["key"].to_numpy()
    vectors = columns["vector"].combine_chunks().flatten().to_numpy().reshape(len(keys), options.dim)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(keys), options.keys)
    wanted = keys[rows]
    if not np.array_equal(reader.lookup_keys(_TABLE, wanted), vectors[rows]):
        raise AssertionError("expected the exported vectors, got others")
    work = {"lookup": lambda: reader.lookup_keys(_TABLE, wanted), "take": lambda: np.take(vectors, rows, axis=0)}
    rates = interleaved_rates(work, dict.fromkeys(work, options.keys / 1e6), max(options.rounds, 5))
    return Measurement(
        "reader_lookup",
        rates["lookup"],
        "M keys/s",
        "numpy_take",
        rates["take"],
        {"rows": options.rows, "dim": options.dim, "keys": options.keys, "format": "arrow"},
    )
