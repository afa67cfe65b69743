"""Saving, restoring and exporting hold a few tablets in memory, not a table; offsets are 64 bits wide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint.storage import Directory
from embershard.embedding.export.manifest import ExportedBlock, ExportedFile, ExportedTable, ExportOptions
from embershard.embedding.export.table_reader import read_columns

MEASURED = """
import dataclasses, sys
import numpy as np
from embershard.embedding.checkpoint import TrainingState, open_checkpoint, write_checkpoint
from embershard.embedding.export import ExportOptions, arrow_writer, export_tables
from embershard.embedding.table_config import ColumnBlock, TableConfig
from embershard.embedding.table_group import TableRows, TabletSnapshot

DIM, ROWS, BITS = 64, 3000, 6
arrow_writer.BATCH_BYTES = 1 << 20
TABLE = TableConfig(name="user", blocks=(ColumnBlock(dim=DIM),))

class Endless:
    '''Tablets of 1.6 MB, each made when it is asked for; what is restored into it is checked and dropped.'''
    tablet_bits = BITS
    restored = 0
    def tables(self): return (TABLE,)
    def ensure_tables(self, tables): pass
    def begin_checkpoint(self): return 0
    def commit_checkpoint(self, checkpoint, taken): pass
    def cut(self, tablet): return 2
    def snapshot(self, tablet, since_version=None):
        keys = np.arange(ROWS, dtype=np.uint64) + np.uint64(tablet << (64 - BITS))
        plain = np.ones(ROWS, np.uint32)
        none, none32 = np.empty(0, np.uint64), np.empty(0, np.uint32)
        weights, state = np.full((ROWS, DIM), tablet, np.float32), np.full((ROWS, DIM), tablet, np.float32)
        rows = TableRows(keys, weights, state, plain, plain, plain, none, none32, none, none32)
        return TabletSnapshot(tablet, BITS, 2, None, 0, {"user": rows})
    def restore(self, snapshot):
        assert (snapshot.tables["user"].weights == snapshot.tablet).all()
        self.restored += len(snapshot.tables["user"].keys)

def peak_mb(work):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    work()
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM"].split()[0]) / 1024

class Small(Endless):
    '''The same of one tablet, so that libraries are loaded before anything is measured.'''
    tablet_bits = 0
    def snapshot(self, tablet, since_version=None):
        return dataclasses.replace(super().snapshot(tablet), tablet_bits=0)

FORMATS = ("safetensors", "npy", "arrow", "parquet")
write_checkpoint(sys.argv[1] + "/small", Small(), TrainingState(step=1))
for format in FORMATS:
    export_tables(Small(), sys.argv[1] + "/small-" + format, ["user"], ExportOptions(format=format))
store = Endless()
with open("/proc/self/status") as file:
    before = int(dict(line.split(":", 1) for line in file)["VmRSS"].split()[0]) / 1024
print(peak_mb(lambda: write_checkpoint(sys.argv[1] + "/save", store, TrainingState(step=1))) - before)
checkpoint = open_checkpoint(sys.argv[1] + "/save/step-000000001")
for format in FORMATS:
    options = ExportOptions(format=format)
    print(peak_mb(lambda: export_tables(store, sys.argv[1] + "/" + format, ["user"], options)) - before)
checkpoint.restore(store)
assert store.restored == ROWS << BITS
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads peak memory from /proc")
def test_memory_is_that_of_a_few_tablets(tmp_path: Path) -> None:
    """100 MB of rows, half of it vectors; record batches of 1 MB, so that what grows with the table would show."""
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    megabytes = [float(line) for line in done.stdout.split()]
    assert len(megabytes) == 5
    assert max(megabytes) < 35, megabytes


@pytest.mark.parametrize("format", ["npy", "safetensors"])
def test_last_row_beyond_two_billion_values_is_read_back_b11(tmp_path: Path, format: str) -> None:
    """34 M rows of 64 float16 in sparse files: 2.2e9 values, 4.4 GB; nothing but the last row is on the disk."""
    rows, dim = 34_000_000, 64
    last = np.arange(dim, dtype=np.float16)
    arrays = {"key": np.dtype(np.uint64), "count": np.dtype(np.uint32), "vector": np.dtype(np.float16)}
    shapes = {"key": (rows,), "count": (rows,), "vector": (rows, dim)}
    if format == "npy":
        paths = []
        for name, dtype in arrays.items():
            with open(tmp_path / f"{name}.npy", "wb") as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": shapes[name]}
                np.lib.format.write_array_header_1_0(file, header)
                file.truncate(file.tell() + int(np.prod(shapes[name], dtype=np.int64)) * dtype.itemsize)
                if name == "vector":
                    file.seek(-last.nbytes, 2)
                    file.write(last.tobytes())
            paths.append(f"{name}.npy")
    else:
        import json

        header, start = {}, 0
        for name, code in (("key", "U64"), ("count", "U32"), ("vector", "F16")):
            size = int(np.prod(shapes[name], dtype=np.int64)) * arrays[name].itemsize
            header[name] = {"dtype": code, "shape": shapes[name], "data_offsets": [start, start + size]}
            start += size
        text = json.dumps(header).encode()
        with open(tmp_path / "t.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + start)
            file.seek(-last.nbytes, 2)
            file.write(last.tobytes())
        paths = ["t.safetensors"]
    table = ExportedTable(
        name="t",
        key_space="t",
        id=None,
        missing_key=None,
        blocks=(ExportedBlock(name="weights", dim=dim),),
        unseen=(0.0,) * dim,
        rows=rows,
        files=tuple(ExportedFile(path=path, bytes=0, sha256="") for path in paths),
    )
    options = ExportOptions(format=format, vectors="float16")
    chunk = read_columns(Directory.of(tmp_path), table, options).chunks[0]
    assert chunk.vectors.shape == (rows, dim)
    assert chunk.vectors[rows - 1].tolist() == last.tolist()
    assert chunk.vectors[33_554_432].tolist() == [0] * dim
