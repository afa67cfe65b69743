"""Initial weights: their distributions, and that they depend on seed, key space, key and column alone."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from scipy import stats

from embershard.embedding.initializers import initial_weights, normal_quantile
from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.table_config import (
    ColumnBlock,
    Constant,
    Initializer,
    MinCount,
    Normal,
    Sgd,
    TableConfig,
    TruncatedNormal,
    Uniform,
    Zeros,
)
from embershard.embedding.table_group import TableGroup, TableKeys, UpdateStep

RANDOM: tuple[Initializer, ...] = (Uniform(low=-0.3, high=0.7), Normal(mean=0.5, std=2.0), TruncatedNormal(std=0.1))
DISTRIBUTIONS = {
    "uniform": stats.uniform(-0.3, 1.0),
    "normal": stats.norm(0.5, 2.0),
    "truncated_normal": stats.truncnorm(-2, 2, scale=0.1),
}
KEY_PATTERNS = {
    "counting": np.arange(20_000, dtype=np.uint64),
    "from the top": np.uint64(2**64 - 1) - np.arange(20_000, dtype=np.uint64),
    "high bits": np.arange(20_000, dtype=np.uint64) << np.uint64(49),
    "random": np.random.default_rng(0).integers(0, 2**64, 20_000, np.uint64),
}
DIM = 8
SIGNIFICANCE = 1e-4
"""All seeds are fixed: a test either always passes or always fails. One right initializer in 10,000 would fail."""


def table(initializer: Initializer, **fields: object) -> TableConfig:
    block = ColumnBlock(dim=DIM, initializer=initializer, optimizer=Sgd(lr=1))
    return TableConfig(**{"name": "user", "blocks": (block,), **fields})


def weights_of(config: TableConfig, keys: np.ndarray, tablet_bits: int = 0) -> np.ndarray:
    """Initial weights as the native core draws them."""
    group = NativeTableGroup(tablet_bits)
    group.ensure_table(config)
    return group.lookup(TableKeys.of(config.name, keys)).reshape(len(keys), config.dim)


def chi_square(uniform: np.ndarray, cells: int = 256) -> float:
    """Probability of a spread over equal cells of [0, 1] as uneven as this."""
    counts = np.bincount(np.minimum((uniform * cells).astype(np.int64), cells - 1), minlength=cells)
    return float(stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("keys", KEY_PATTERNS)
@pytest.mark.parametrize("initializer", RANDOM, ids=lambda initializer: initializer.kind)
def test_weights_follow_the_distribution_for_every_key_pattern(initializer: Initializer, keys: str) -> None:
    weights = weights_of(table(initializer), KEY_PATTERNS[keys]).astype(np.float64)
    expected = DISTRIBUTIONS[initializer.kind]
    uniform = expected.cdf(weights)
    assert chi_square(uniform.ravel()) > SIGNIFICANCE
    assert all(chi_square(column) > SIGNIFICANCE for column in uniform.T)
    mean, variance, skew, excess = expected.stats("mvsk")
    sampling = math.sqrt(variance / weights.size)
    assert abs(weights.mean() - mean) < 4 * sampling
    assert abs(weights.var() / variance - 1) < 4 * math.sqrt((float(excess) + 2) / weights.size)
    assert abs(stats.skew(weights, axis=None) - skew) < 4 * math.sqrt(15 / weights.size)


@pytest.mark.parametrize("keys", KEY_PATTERNS)
def test_columns_keys_and_neighbours_are_not_correlated(keys: str) -> None:
    weights = weights_of(table(Normal(std=1)), KEY_PATTERNS[keys]).astype(np.float64)
    limit = 4.5 / math.sqrt(len(weights))
    between_columns = np.corrcoef(weights.T) - np.eye(DIM)
    assert np.abs(between_columns).max() < limit
    assert abs(np.corrcoef(weights[:-1].ravel(), weights[1:].ravel())[0, 1]) < limit


def test_bounds_hold_and_low_is_reached() -> None:
    keys = np.arange(400_000, dtype=np.uint64)
    uniform = weights_of(table(Uniform(low=-0.01, high=0.01)), keys)
    assert np.float32(-0.01) <= uniform.min() < np.float32(-0.00999)
    assert np.float32(0.00999) < uniform.max() < np.float32(0.01)
    truncated = weights_of(table(TruncatedNormal(mean=1, std=0.5)), keys)
    assert 0 <= truncated.min() < 0.001
    assert 1.999 < truncated.max() <= 2


def test_normal_tails_are_there() -> None:
    weights = weights_of(table(Normal(std=1)), np.arange(400_000, dtype=np.uint64))
    beyond = np.count_nonzero(np.abs(weights) > 4)
    expected = weights.size * 2 * stats.norm.sf(4)
    assert abs(beyond - expected) < 4 * math.sqrt(expected)


def test_quantiles_are_the_normal_ones() -> None:
    p = np.concatenate([np.logspace(-16, -0.4, 500), np.linspace(0.01, 0.99, 500), 1 - np.logspace(-15, -1, 200)])
    assert np.allclose(normal_quantile(p), stats.norm.ppf(p), rtol=4e-7, atol=1e-7)


def test_constant_and_zeros_are_what_they_say() -> None:
    keys = KEY_PATTERNS["random"][:100]
    assert (weights_of(table(Constant(value=0.3)), keys) == np.float32(0.3)).all()
    assert (weights_of(table(Zeros()), keys) == 0).all()


@pytest.mark.parametrize("initializer", RANDOM, ids=lambda initializer: initializer.kind)
def test_b77_no_two_keys_share_a_vector(initializer: Initializer) -> None:
    keys = np.unique(np.concatenate([*KEY_PATTERNS.values(), np.uint64(1) << np.arange(64, dtype=np.uint64)]))
    weights = weights_of(table(initializer), keys)
    assert len(np.unique(weights, axis=0)) == len(keys)


def test_b77_seed_key_space_and_column_each_change_the_draw() -> None:
    keys = KEY_PATTERNS["counting"]
    draws = {
        "plain": weights_of(table(Normal(std=1)), keys),
        "seed": weights_of(table(Normal(std=1), seed=1), keys),
        "key space": weights_of(table(Normal(std=1), key_space="item"), keys),
        "name": weights_of(table(Normal(std=1), name="item"), keys),
    }
    assert np.array_equal(draws["key space"], draws["name"])
    del draws["name"]
    flat = np.stack([draw.ravel() for draw in draws.values()])
    assert np.abs(np.corrcoef(flat) - np.eye(len(flat))).max() < 4.5 / math.sqrt(flat.shape[1])
    # A renamed table that keeps its key space keeps its rows; a second block of a row draws its own columns.
    assert np.array_equal(weights_of(table(Normal(std=1), name="x", key_space="user"), keys), draws["plain"])
    halves = tuple(ColumnBlock(name=name, dim=DIM // 2, initializer=Normal(std=1)) for name in "ab")
    assert np.array_equal(weights_of(table(Normal(std=1), blocks=halves), keys), draws["plain"])


@pytest.mark.parametrize("initializer", RANDOM, ids=lambda initializer: initializer.kind)
@pytest.mark.parametrize("tablet_bits", [0, 3, 10])
def test_b77_rows_do_not_depend_on_order_threads_or_tablets(initializer: Initializer, tablet_bits: int) -> None:
    config = table(initializer)
    keys = np.random.default_rng(tablet_bits).permutation(KEY_PATTERNS["random"])
    group = NativeTableGroup(tablet_bits, threads=2)
    group.ensure_table(config)

    def client(part: np.ndarray) -> None:
        for some in np.array_split(part, 7):
            gradients = np.zeros(len(some) * DIM, np.float32)
            group.apply_gradients(TableKeys.of("user", some), gradients, np.ones(len(some), np.uint32), UpdateStep())

    threads = [threading.Thread(target=client, args=(keys[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert group.stats()["user"].rows == len(keys)
    rows = group.lookup(TableKeys.of("user", np.sort(keys)), "zeros").reshape(-1, DIM)
    assert np.array_equal(rows, initial_weights(config, np.sort(keys)))


# --- vectors from a file ----------------------------------------------------------------------------------------------


@pytest.fixture(params=[NativeTableGroup, ReferenceTableGroup], ids=["native", "reference"])
def group(request: pytest.FixtureRequest) -> TableGroup:
    """An empty group of two tablets."""
    return request.param(1)


GIVEN = np.array([7, 2**64 - 1, 0, 2**63], np.uint64)
VECTORS = np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM) + np.float32(0.1)


def write(path: Path, column: str, values: pa.Array, vectors: object = VECTORS.tolist()) -> str:
    """The path, after a file of two columns was written there."""
    rows = pa.table({column: values, "vector": pa.array(vectors, pa.list_(pa.float32()))})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(rows, path)
    else:
        pyarrow.feather.write_feather(rows, path)
    return str(path)


def read(group: TableGroup, keys: np.ndarray, absent: str = "initial") -> np.ndarray:
    return group.lookup(TableKeys.of("user", keys), absent).reshape(len(keys), DIM)


@pytest.mark.parametrize("name", ["vectors.parquet", "vectors.arrow", "vectors.feather"])
def test_init_from_gives_its_keys_their_vectors_and_others_the_initializer(
    group: TableGroup, tmp_path: Path, name: str
) -> None:
    config = table(Normal(std=1), init_from=write(tmp_path / name, "key", pa.array(GIVEN)))
    group.ensure_table(config)
    others = np.array([1, 2**63 + 1], np.uint64)
    assert np.array_equal(read(group, GIVEN), VECTORS)
    assert np.array_equal(read(group, others), initial_weights(config, others))
    assert group.stats()["user"].rows == 0
    ones, step = np.ones(2 * DIM, np.float32), UpdateStep()
    group.apply_gradients(TableKeys.of("user", GIVEN[:2]), ones, np.ones(2, np.uint32), step)
    assert np.array_equal(read(group, GIVEN), np.concatenate([VECTORS[:2] - 1, VECTORS[2:]]))
    group.erase(TableKeys.of("user", GIVEN[:1]))
    assert np.array_equal(read(group, GIVEN[:1]), VECTORS[:1])


def test_init_from_ids_are_hashed_into_the_tables_key_space(group: TableGroup, tmp_path: Path) -> None:
    from embershard.embedding.init_vectors import load_init_vectors

    texts = ["ada", "bob", "", "zoë"]
    config = table(Zeros(), init_from=write(tmp_path / "ids.parquet", "id", pa.array(texts)))
    elsewhere = config.model_copy(update={"key_space": "item"})
    keys = load_init_vectors(config).keys
    assert not np.isin(keys, load_init_vectors(elsewhere).keys).any()
    group.ensure_table(config)
    assert sorted(read(group, keys).tolist()) == VECTORS.tolist()


def test_init_from_of_a_frozen_table_is_read_and_never_trained(group: TableGroup, tmp_path: Path) -> None:
    path = write(tmp_path / "vectors.parquet", "key", pa.array(GIVEN))
    group.ensure_table(table(Zeros(), init_from=path, trainable=False))
    update = group.apply_gradients(
        TableKeys.of("user", GIVEN), np.ones(4 * DIM, np.float32), np.ones(4, np.uint32), UpdateStep()
    ).tables["user"]
    assert (update.applied, update.created) == (0, 0)
    assert np.array_equal(read(group, GIVEN, "unseen"), VECTORS)


def test_init_from_is_read_for_keys_that_are_not_admitted_yet(group: TableGroup, tmp_path: Path) -> None:
    path = write(tmp_path / "vectors.parquet", "key", pa.array(GIVEN))
    group.ensure_table(table(Normal(std=1), init_from=path, admission=MinCount(count=2)))
    keys = np.array([7, 8], np.uint64)
    assert np.array_equal(read(group, keys), np.stack([VECTORS[0], np.zeros(DIM, np.float32)]))


@pytest.mark.parametrize(
    ("column", "values", "vectors", "message"),
    [
        ("name", pa.array([1]), [[0.0] * DIM], "columns key or id"),
        ("key", pa.array([1, 1], pa.uint64()), [[0.0] * DIM] * 2, "key 1 more than once"),
        ("key", pa.array([1, None], pa.uint64()), [[0.0] * DIM] * 2, "no null in column key"),
        ("key", pa.array(["1"]), [[0.0] * DIM], "column key of integers"),
        ("key", pa.array([1], pa.uint64()), [[0.0] * (DIM - 1)], f"vectors of {DIM} floats"),
        ("key", pa.array([1], pa.uint64()), [None], f"vectors of {DIM} floats"),
        ("key", pa.array([1], pa.uint64()), [[float("nan")] * DIM], "finite"),
        ("id", pa.array([1.5]), [[0.0] * DIM], "integers or text"),
    ],
)
def test_init_from_names_what_is_wrong_and_adds_no_table(
    group: TableGroup, tmp_path: Path, column: str, values: pa.Array, vectors: object, message: str
) -> None:
    path = write(tmp_path / "bad.parquet", column, values, vectors)
    with pytest.raises(ValueError, match=rf"{message}.*bad\.parquet.*'user'"):
        group.ensure_table(table(Zeros(), init_from=path))
    assert group.tables() == ()


def test_init_from_a_missing_file_is_named(group: TableGroup, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.parquet"):
        group.ensure_table(table(Zeros(), init_from=str(tmp_path / "none.parquet")))
    assert group.tables() == ()
