"""The built-in click log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embershard.datasets import SyntheticClicks, best_auc, write_synthetic_clicks

CLICKS = SyntheticClicks(rows=150_000, max_ids=500)


def test_the_log_is_the_same_each_time_and_holds_what_its_settings_say(tmp_path: Path) -> None:
    path = write_synthetic_clicks(tmp_path / "new" / "clicks.parquet", CLICKS)
    again = write_synthetic_clicks(tmp_path / "again.parquet", CLICKS)
    file = pq.ParquetFile(path)
    assert file.metadata.num_rows == 150_000
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [65_536, 65_536, 18_928]
    table = file.read()
    assert table.equals(pq.read_table(again))
    assert table.column_names == ["label", "true_probability", *(f"c{i}" for i in range(1, 9)), "n1", "n2"]
    for number, ids in enumerate(CLICKS.ids_per_feature(), 1):
        counts = np.sort(np.unique(table.column(f"c{number}").to_numpy(), return_counts=True)[1])[::-1]
        assert ids / 2 <= counts.size <= ids
        assert counts[: counts.size // 5].sum() > 0.5 * counts.sum()  # a power law: the head has most of the rows
    assert not list(tmp_path.rglob("*.partial"))
    other = next(SyntheticClicks(rows=10, seed=8).tables())
    assert not other.equals(next(SyntheticClicks(rows=10, seed=7).tables()))


def test_labels_are_drawn_from_the_true_probability_and_no_score_ranks_better() -> None:
    table = next(CLICKS.tables())
    probability, label = table.column("true_probability").to_numpy(), table.column("label").to_numpy()
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        inside = (probability >= low) & (probability < high)
        assert label[inside].mean() == pytest.approx(probability[inside].mean(), rel=0.1)
    best = best_auc(probability, label)
    assert 0.75 < best < 0.95
    noise = np.random.default_rng(0).normal(0, 0.5, probability.size)
    assert best_auc(probability + noise, label) < best - 0.01


def test_best_auc_counts_pairs_with_ties_as_half() -> None:
    scores, label = np.array([0.1, 0.4, 0.4, 0.8, 0.4]), np.array([0, 1, 0, 1, 1])
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[label == 1] for b in scores[label == 0]]
    assert best_auc(scores, label) == pytest.approx(np.mean(pairs))
    assert np.isnan(best_auc(scores, np.zeros(5)))
    assert best_auc(np.full(4, 0.3), np.array([0, 1, 1, 0])) == 0.5


def test_a_write_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_synthetic_clicks(tmp_path / "clicks.parquet", SyntheticClicks(rows=100))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="no space left"):
        write_synthetic_clicks(path, SyntheticClicks(rows=200))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["clicks.parquet"]
