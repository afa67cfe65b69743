"""Statistics learned from the click log: exact moments, quantiles of a bounded sample, saved with the map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.datasets import ClickLog
from embershard.feature_map import Bucketize, FeatureMap, FeatureMapError, Numeric, SoftBuckets, learned_statistics
from embershard.feature_map.learned_statistics import StatisticsLearner, learn_statistics


def features() -> FeatureMap:
    return FeatureMap(
        [
            Numeric("a", transform=("log1p", "standardise")),
            Numeric("b", transform="min_max", clip=(0, 50), null_values=(-1,)),
            Bucketize("c", column="a", quantiles=4),
            SoftBuckets("d", column="b", quantiles=3),
        ]
    )


def records(rows: int = 10_000) -> pa.Table:
    random = np.random.default_rng(5)
    a = random.exponential(100, rows)
    a[::17] = np.nan
    b = random.integers(-1, 100, rows)
    return pa.table({"a": a, "b": pa.array(b, mask=random.random(rows) < 0.1)})


def test_learned_numbers_are_those_of_the_whole_log(tmp_path: Path) -> None:
    table = records()
    assert features().unlearned == ("a", "b", "c", "d")
    with pytest.raises(FeatureMapError, match="feature 'c': expected edges, got 4 quantiles not learned yet"):
        features().encode(table)
    learned = learn_statistics(features(), (table.slice(s, 700) for s in range(0, 10_000, 700)))
    assert learned.unlearned == ()
    a = table.column("a").to_numpy()
    logs = np.log1p(a[~np.isnan(a)])
    numeric_a, numeric_b = learned.numeric
    assert numeric_a.mean == pytest.approx(logs.mean())
    assert numeric_a.std == pytest.approx(logs.std())
    assert (numeric_b.low, numeric_b.high) == (0.0, 50.0)
    edges = learned.feature("c").edges
    np.testing.assert_allclose(edges, np.quantile(a[~np.isnan(a)], [0.25, 0.5, 0.75]), rtol=0.01)
    centres = learned.feature("d").edges
    assert (centres[0], centres[-1]) == (-1.0, 99.0)
    batch = learned.encode(table)
    dense = batch.dense[~np.isnan(a), 0]
    assert abs(float(dense.mean())) < 1e-4
    assert abs(float(dense.std()) - 1) < 1e-4
    assert batch.dense[np.isnan(a), 0].tolist() == [0.0] * int(np.isnan(a).sum())
    learned.save(tmp_path / "features.yaml")
    assert FeatureMap.load(tmp_path / "features.yaml") == learned
    assert learn_statistics(learned, []) == learned


def test_sample_is_bounded_and_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_statistics, "SAMPLE_VALUES", 500)
    values = pa.table({"a": np.arange(20_000.0)})
    source = FeatureMap([Bucketize("a", quantiles=10)])
    first = learn_statistics(source, [values])
    again = learn_statistics(source, [values.slice(s, 333) for s in range(0, 20_000, 333)])
    assert first == again
    edges = np.array(first.feature("a").edges)
    assert len(edges) == 9
    np.testing.assert_allclose(edges / 20_000, np.arange(1, 10) / 10, atol=0.07)


def test_only_nulls_is_an_error_that_names_the_feature() -> None:
    with pytest.raises(FeatureMapError, match="feature 'a': expected values to learn from, got none that is finite"):
        learn_statistics(FeatureMap([Numeric("a", transform="standardise")]), [pa.table({"a": [None, None]})])


def test_constant_columns_do_not_divide_by_zero() -> None:
    table = pa.table({"a": [3.0, 3.0, 3.0]})
    source = FeatureMap(
        [
            Numeric("x", column="a", transform="standardise"),
            Numeric("y", column="a", transform="min_max"),
            SoftBuckets("z", column="a", quantiles=5),
        ]
    )
    batch = learn_statistics(source, [table]).encode(table)
    assert batch.dense.tolist() == [[0.0, 0.0]] * 3
    assert batch.bag_lengths("z").tolist() == [1, 1, 1]


def test_learner_in_the_maps_place_learns_the_same_and_its_errors_name_file_and_row(tmp_path: Path) -> None:
    table = records(3000)
    pq.write_table(table, tmp_path / "good.parquet")
    text = [None if value is None else str(value) for value in table.column("a").to_pylist()]
    text[2500] = "many"
    pq.write_table(table.set_column(0, "a", pa.array(text)), tmp_path / "bad.parquet")

    def learned(name: str) -> FeatureMap:
        learner = StatisticsLearner(features())
        for numbers in ClickLog(tmp_path / name, unit_rows=1000).batches(learner, 400):
            learner.add(numbers)
        return learner.learned()

    expected = learn_statistics(features(), (table.slice(s, 400) for s in range(0, 3000, 400)))
    found = learned("good.parquet")
    assert found.feature("c") == expected.feature("c")
    assert found.feature("d") == expected.feature("d")
    assert found.feature("a").mean == pytest.approx(expected.feature("a").mean)
    with pytest.raises(ValueError, match="column 'a': expected a number, got 'many'") as error:
        learned("bad.parquet")
    path = str(tmp_path / "bad.parquet")
    assert error.value.__notes__[-1] == f"the first such row there is row 2501 of file {path!r}"
