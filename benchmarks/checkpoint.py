"""Checkpoint workloads: a full save and a full restore beside the sequential write and read of the same bytes.

The reference is what pyarrow does with the same bytes and nothing else: one output stream and an fsync, as the save
has, or one input stream into memory. Each side of a pair starts from the same page cache: `warm` reads follow the
write, `cold` ones come after the files were dropped from the cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import fs as pafs
from pydantic import Field

from ..embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from ..embedding.table_config import Adagrad, ColumnBlock, TableConfig
from ..embedding.table_group import TableKeys
from ..ps_server.local_store import LocalStore
from .measurement import BenchOptions, Measurement

_FILL_ROWS = 1 << 18


class Options(BenchOptions):
    """rows: over all tables.   dim: weights (and Adagrad state) a row.   directory: where to write; a temporary one."""

    rows: int = Field(default=4_000_000, ge=1)
    tables: int = Field(default=4, ge=1)
    dim: int = Field(default=16, ge=1)
    threads: int = Field(default=2, ge=1)
    rounds: int = Field(default=5, ge=1)
    directory: str | None = None


def run(options: Options) -> Iterator[Measurement]:
    """checkpoint_write; restore from warm and from cold files."""
    if options.quick:
        options = options.model_copy(update={"rows": 20_000, "rounds": 2})
    folder = Path(tempfile.mkdtemp(prefix="embershard-bench-", dir=options.directory))
    try:
        yield from _Workloads(folder, options).measure()
    finally:
        shutil.rmtree(folder)


def filled_store(rows: int, tables: int, dim: int, threads: int) -> LocalStore:
    """A store of `tables` Adagrad tables with `rows` random keys in all."""
    store = LocalStore(threads=threads)
    names = [f"feature_{index}" for index in range(tables)]
    store.ensure_tables([TableConfig(name=name, blocks=(ColumnBlock(dim=dim, optimizer=Adagrad()),)) for name in names])
    rng = np.random.default_rng(0)
    for index, name in enumerate(names):
        left = rows // tables + (index < rows % tables)
        while left:
            keys = np.unique(rng.integers(0, 1 << 64, min(left, _FILL_ROWS), np.uint64))
            values = rng.standard_normal(len(keys) * dim).astype(np.float32)
            store.assign(TableKeys.of(name, keys), values)
            left -= len(keys)
    return store


class _Workloads:
    """The saved bytes, and the four pieces of work that are timed."""

    def __init__(self, folder: Path, options: Options) -> None:
        self._folder, self._options = folder, options
        self._store = filled_store(options.rows, options.tables, options.dim, options.threads)
        self._saved = write_checkpoint(folder / "saved", self._store, TrainingState(step=0))
        self._files = [path for path in Path(self._saved).rglob("*") if path.is_file()]
        self._content = [np.fromfile(path, np.uint8) for path in self._files]
        self._bytes = sum(len(content) for content in self._content)
        self._local = pafs.LocalFileSystem()

    def measure(self) -> Iterator[Measurement]:
        """The three pairs."""
        writes = {"checkpoint_write": self._save, "sequential_write": self._write}
        yield self._pair(writes, self._clear, {"cache": "fsynced"})
        reads = {"restore": self._restore, "sequential_read": self._read}
        yield self._pair(reads, lambda: None, {"cache": "warm"})
        yield self._pair(reads, self._drop_cache, {"cache": "cold"})

    def _pair(
        self, work: Mapping[str, Callable[[], object]], prepare: Callable[[], None], details: Mapping[str, object]
    ) -> Measurement:
        seconds: dict[str, list[float]] = {name: [] for name in work}
        for round_number in range(1 + self._options.rounds):
            for name, call in work.items():
                prepare()
                start = time.perf_counter()
                result: Any = call()
                elapsed = time.perf_counter() - start
                del result
                if round_number:
                    seconds[name].append(elapsed)
        (name, own), (reference, other) = (
            (name, self._bytes / 1e6 / sorted(times)[len(times) // 2]) for name, times in seconds.items()
        )
        options = self._options
        return Measurement(
            name,
            own,
            "MB/s",
            reference,
            other,
            {
                "rows": options.rows,
                "tables": options.tables,
                "dim": options.dim,
                "threads": options.threads,
                "megabytes": round(self._bytes / 1e6, 1),
                "files": len(self._files),
                **details,
            },
        )

    def _save(self) -> str:
        return write_checkpoint(self._folder / "again", self._store, TrainingState(step=1))

    def _write(self) -> None:
        path = self._folder / "plain"
        with self._local.open_output_stream(str(path)) as stream:
            for content in self._content:
                stream.write(content)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def _restore(self) -> LocalStore:
        store = LocalStore(threads=self._options.threads)
        with open_checkpoint(self._saved) as checkpoint:
            checkpoint.restore(store)
        return store

    def _read(self) -> list[bytes]:
        contents = []
        for path in self._files:
            with self._local.open_input_stream(str(path)) as stream:
                contents.append(stream.read())
        return contents

    def _clear(self) -> None:
        shutil.rmtree(self._folder / "again", ignore_errors=True)
        (self._folder / "plain").unlink(missing_ok=True)
        os.sync()

    def _drop_cache(self) -> None:
        for path in self._files:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
