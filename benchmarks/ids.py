"""Columns to keys: whole-column kernels against a copy of the column and a Python loop over `mmh3.hash64`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..feature_map import Categorical, Cross, CrossPart, FeatureMap, Numeric
from .measurement import BenchOptions, Measurement, interleaved_rates

BATCH_ROWS = 4096
CRITEO_NUMERIC, CRITEO_CATEGORICAL = 13, 26


class Options(BenchOptions):
    """values: length of each column.   rounds: times each workload is measured; the median counts."""

    values: int = 1_000_000
    rounds: int = 9

    @property
    def size(self) -> int:
        """Values a column, fewer in a quick run."""
        return min(self.values, 50_000) if self.quick else self.values


def run(options: Options) -> Iterator[Measurement]:
    """One thread throughout: ids beside `numpy.copyto`, text beside a `mmh3` loop, Parquet beside pyarrow."""
    yield from _integer_workloads(options)
    yield from _text_workloads(options)
    yield from _criteo_workloads(options)


def _integer_workloads(options: Options) -> Iterator[Measurement]:
    size = options.size
    ids = np.random.default_rng(0).integers(-(1 << 63), 1 << 63, size)
    target = np.empty_like(ids)
    column = pa.array(ids)
    offsets = pa.array(np.arange(0, size + 1, 5, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, column[: int(offsets[-1].as_py())])
    columns = {
        "int_ids": (FeatureMap([Categorical(name="a")]), pa.record_batch({"a": column})),
        "int_ids_nulls": (FeatureMap([Categorical(name="a")]), pa.record_batch({"a": _with_nulls(ids)})),
        "list_ids": (FeatureMap([Categorical(name="a", is_list=True)]), pa.record_batch({"a": lists})),
        "cross": (
            FeatureMap([Cross(name="x", of=(CrossPart(column="a"), CrossPart(column="b")))]),
            pa.record_batch({"a": column, "b": pa.array(ids[::-1].copy())}),
        ),
    }
    work: dict[str, Callable[[], object]] = {name: _encoding(*pair) for name, pair in columns.items()}
    rates = interleaved_rates(
        {"copy": lambda: np.copyto(target, ids), **work}, dict.fromkeys(["copy", *work], float(size)), options.rounds
    )
    for name in work:
        reference, rate = ("int_ids", rates["int_ids"]) if name == "cross" else ("numpy.copyto", rates["copy"])
        yield Measurement(name, rates[name], "values/s", reference, rate, {"keys": size, "threads": 1})


def _text_workloads(options: Options) -> Iterator[Measurement]:
    size = options.size
    random = np.random.default_rng(1)
    texts = [f"user_{number}" for number in random.integers(0, 1 << 30, size)]
    few = [f"city_{number}" for number in random.integers(0, 1000, size)]
    sample = texts[: max(1, size // 10)]
    offsets = pa.array(np.arange(0, size + 1, 5, dtype=np.int32))
    column = pa.array(texts)
    features, listed = (
        FeatureMap([Categorical(name="a", id="text")]),
        FeatureMap([Categorical(name="a", id="text", is_list=True)]),
    )
    delimited = FeatureMap([Categorical(name="a", id="text", delimiter="|")])
    joined = pa.array(["|".join(texts[start : start + 5]) for start in range(0, size, 5)])
    columns = {
        "text_ids": (features, pa.record_batch({"a": column})),
        "text_lists": (listed, pa.record_batch({"a": pa.ListArray.from_arrays(offsets, column)})),
        "text_dictionary": (features, pa.record_batch({"a": pa.array(few).dictionary_encode()})),
        "text_delimited": (delimited, pa.record_batch({"a": joined})),
    }
    work: dict[str, Callable[[], object]] = {name: _encoding(*pair) for name, pair in columns.items()}
    amounts = {"loop": float(len(sample)), **dict.fromkeys(work, float(size))}
    rates = interleaved_rates({"loop": lambda: _mmh3_loop(sample), **work}, amounts, options.rounds)
    for name in work:
        yield Measurement(
            name, rates[name], "values/s", "mmh3.hash64 loop", rates["loop"], {"keys": size, "threads": 1}
        )


def _criteo_workloads(options: Options) -> Iterator[Measurement]:
    rows = BATCH_ROWS * (4 if options.quick else 64)
    table = _criteo_rows(rows)
    features = criteo_features()
    names = [spec.name for spec in features.columns]
    batches = table.to_batches(max_chunksize=BATCH_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.parquet"
        pq.write_table(table, path, row_group_size=rows // 4)

        def decode() -> None:
            for _ in _read(path, names):
                pass

        def decode_and_encode() -> None:
            for records in _read(path, names):
                features.encode(records)

        def encode() -> None:
            for records in batches:
                features.encode(records)

        work: dict[str, Callable[[], object]] = {
            "decode": decode,
            "criteo_parquet": decode_and_encode,
            "criteo_encode": encode,
        }
        rates = interleaved_rates(work, dict.fromkeys(work, float(rows)), options.rounds)
    details = {"rows": rows, "batch_rows": BATCH_ROWS, "threads": 1}
    for name in ("criteo_encode", "criteo_parquet"):
        milliseconds = {"milliseconds_a_batch": 1e3 * BATCH_ROWS / rates[name]}
        yield Measurement(
            name, rates[name], "rows/s", "pyarrow decode of the Parquet", rates["decode"], {**details, **milliseconds}
        )


def criteo_features() -> FeatureMap:
    """13 numeric features, 26 int64 ids, a label: the shape of the Criteo click logs."""
    return FeatureMap(
        [
            *(Numeric(name=f"i{n}", transform="log1p") for n in range(CRITEO_NUMERIC)),
            *(Categorical(name=f"c{n}") for n in range(CRITEO_CATEGORICAL)),
        ],
        label="label",
    )


def _criteo_rows(rows: int) -> pa.Table:
    random = np.random.default_rng(2)
    columns: dict[str, pa.Array] = {"label": pa.array(random.integers(0, 2, rows))}
    for n in range(CRITEO_NUMERIC):
        columns[f"i{n}"] = pa.array(random.geometric(0.01, rows), mask=random.random(rows) < 0.1)
    for n in range(CRITEO_CATEGORICAL):
        columns[f"c{n}"] = pa.array(random.zipf(1.2, rows).astype(np.int64) * 0x9E3779B1 % (1 << 40))
    return pa.table(columns)


def _read(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=names, use_threads=False)


def _encoding(features: FeatureMap, records: pa.RecordBatch) -> Callable[[], object]:
    return lambda: features.encode(records)


def _with_nulls(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(ids, mask=np.arange(len(ids)) % 10 == 0)


def _mmh3_loop(texts: list[str]) -> list[int]:
    hash64 = mmh3.hash64
    return [hash64(text, signed=False)[0] for text in texts]
