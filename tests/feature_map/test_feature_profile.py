"""The profile: its numbers against plain counting, its files, its picture, the suggestions drawn from it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embershard.feature_map import Bucketize, Categorical, Cross, FeatureMap, Numeric
from embershard.feature_map.feature_profile import (
    FeatureProfile,
    profile_features,
    ranking_auc,
    row_bytes,
    suggested_dim,
)
from embershard.feature_map.grouping import group_features
from embershard.feature_map.key_counts import DistinctSketch, KeyCounts, binary_entropy_bits

ROWS = 20_000


def clicks() -> pa.Table:
    random = np.random.default_rng(7)
    shop = random.integers(0, 50, ROWS)
    city = shop * 7 % 51  # one to one
    user = random.zipf(1.4, ROWS) % 100_000
    seller = random.integers(0, 60, ROWS)
    price = random.exponential(10, ROWS)
    label = random.random(ROWS) < np.where(shop < 10, 0.8, 0.1) * np.where(price > 10, 1.0, 0.5)
    return pa.table(
        {
            "click": label.astype(np.int8),
            "shop": shop,
            "city": city,
            "user": pa.array(user, mask=random.random(ROWS) < 0.1),
            "seller": seller,
            "noise": random.integers(0, 40, ROWS),
            "tags": [[f"t{v % 9}", "all"] if v % 3 else [] for v in range(ROWS)],
            "price": pa.array(price, mask=random.random(ROWS) < 0.2),
            "raw": price * 1e6,
        }
    )


def features() -> FeatureMap:
    return FeatureMap(
        [
            *(Categorical(name, dim=16) for name in ("shop", "city", "user", "seller", "noise")),
            Categorical("tags", id="text", is_list=True),
            Cross("pair", of=("shop", "noise")),
            Bucketize("price_bucket", column="price", edges=(1, 10, 100)),
            Numeric("price", transform="log1p", missing_indicator=True),
            Numeric("raw"),
        ],
        label="click",
    )


@pytest.mark.parametrize("count", [1, 100, 10_000, 1_000_000])
def test_sketch_estimates_within_four_standard_errors(count: int) -> None:
    random = np.random.default_rng(count)
    sketch, half = DistinctSketch(), DistinctSketch()
    keys = random.integers(0, 1 << 64, count, dtype=np.uint64, endpoint=False)
    sketch.add(keys[: count // 2])
    sketch.add(keys[: count // 2])
    half.add(keys[count // 2 :])
    sketch.merge(half)
    assert sketch.estimate() == pytest.approx(count, rel=4 * 1.04 / math.sqrt(1 << 14), abs=2)


def test_counts_are_exact_below_capacity_and_bounded_above() -> None:
    random = np.random.default_rng(1)
    keys = (random.zipf(1.3, 400_000) % 50_000).astype(np.uint64)
    labels = (keys % np.uint64(2)).astype(np.float64)
    exact, bounded = KeyCounts(), KeyCounts(capacity=2_000)
    for start in range(0, len(keys), 10_000):
        exact.add(keys[start : start + 10_000], labels[start : start + 10_000])
        bounded.add(keys[start : start + 10_000], labels[start : start + 10_000])
    exact.settle()
    bounded.settle()
    unique, counts = np.unique(keys, return_counts=True)
    assert exact.keys.tolist() == unique.tolist()
    assert exact.counts.tolist() == counts.tolist()
    assert exact.clicks.tolist() == (counts * (unique % np.uint64(2))).tolist()
    assert len(bounded.keys) <= 2_000
    assert bounded.total == exact.total == len(keys)
    assert not bounded.is_exact
    assert set(bounded.keys[bounded.top(10)].tolist()) == set(exact.keys[exact.top(10)].tolist())
    shares = counts / counts.sum()
    assert exact.entropy_bits(len(unique)) == pytest.approx(-(shares * np.log2(shares)).sum())
    whole = float(binary_entropy_bits(np.array([labels.mean()]))[0])  # the key decides the label; rare keys are pooled
    assert 0.85 * whole < exact.label_information_bits() < whole


def test_chance_is_not_information() -> None:
    random = np.random.default_rng(2)
    counts = KeyCounts()
    counts.add((random.zipf(1.3, 50_000)).astype(np.uint64), random.integers(0, 2, 50_000).astype(np.float64))
    counts.settle()
    assert counts.label_information_bits() < 0.002


def test_profile_of_every_feature() -> None:
    table = clicks()
    profile = profile_features(features(), table.to_batches(1_000))
    by_name = {p.name: p for p in profile.categorical}
    assert profile.rows == ROWS
    assert profile.click_rate == pytest.approx(table.column("click").to_numpy().mean())
    user = table.column("user").drop_null().to_numpy()
    assert by_name["user"].distinct == len(np.unique(user))
    assert by_name["user"].null_share == pytest.approx(1 - len(user) / ROWS)
    top = {t.value: t.count for t in by_name["user"].top}
    assert top["(missing)"] == ROWS - len(user)
    assert top["1"] == int((user == 1).sum())
    assert by_name["user"].bytes_at_full_size == by_name["user"].distinct * row_bytes(16)
    assert by_name["user"].suggested_min_count == 1 or by_name["user"].coverage >= 0.97
    assert by_name["tags"].null_share == pytest.approx(sum(not t for t in table.column("tags").to_pylist()) / ROWS)
    assert by_name["tags"].values_per_row == pytest.approx(2 * (1 - by_name["tags"].null_share))
    assert {t.value for t in by_name["tags"].top} == {"all", *(f"t{n}" for n in range(9) if n % 3)}
    assert by_name["shop"].label_information > 0.2
    assert by_name["noise"].label_information < 0.01
    shop_rates = {t.value: t.click_rate for t in by_name["shop"].top}
    assert max(shop_rates.values()) > 0.4
    assert min(shop_rates.values()) < 0.2
    price, missing, raw = profile.numeric
    assert (price.name, missing.name, raw.name) == ("price", "price.is_missing", "raw")
    assert missing.mean == pytest.approx(table.column("price").null_count / ROWS)
    assert price.label_auc > 0.53
    assert "transform is missing" in raw.warning
    assert not price.warning


def test_unlabelled_logs_have_profiles_too(tmp_path: Path) -> None:
    profile = profile_features(features().without_label(), [clicks().drop(["click"])])
    assert profile.click_rate is None
    assert {p.label_information for p in profile.categorical} == {None}
    profile.save(tmp_path / "profile.parquet")


def test_saved_numbers_and_picture(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from embershard.feature_map.profile_picture import draw_profile

    assert matplotlib.__version__
    profile = profile_features(features(), clicks().to_batches(5_000))
    profile.save(tmp_path / "profile.parquet")
    saved = pq.read_table(tmp_path / "profile.parquet").to_pylist()
    assert [row["name"] for row in saved] == [p.name for p in (*profile.categorical, *profile.numeric)]
    assert saved[0]["distinct"] == 50
    assert saved[0]["top"][0]["count"] == profile.categorical[0].top[0].count
    draw_profile(profile, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    draw_profile(profile_features(FeatureMap([Categorical("shop")]), [clicks()]), tmp_path / "one.svg")
    assert "what" not in (tmp_path / "one.svg").read_text(encoding="utf-8")[:50]


def test_grouping_puts_like_features_together_and_says_what_to_save() -> None:
    profile, report = group_features(features(), clicks().to_batches(2_000))
    assert next(group for group in report.groups if "shop" in group)[:2] in (("shop", "city"), ("city", "shop"))
    pairs = {frozenset((s.a, s.b)): s for s in report.similarities}
    assert pairs[frozenset(("shop", "city"))].redundancy > 0.99
    assert pairs[frozenset(("shop", "noise"))].redundancy < 0.05
    assert pairs[frozenset(("shop", "seller"))].overlap == pytest.approx(50 / 60, abs=0.01)
    found = {(s.feature, s.action): s for s in report.suggestions}
    assert ("shop", "leave out") in found or ("city", "leave out") in found
    assert ("noise", "leave out") in found
    assert "crosses first" in found["noise", "leave out"].reason
    narrower = next(s for s in report.suggestions if s.action == "narrower")
    dims = {p.name: (p.dim, p.suggested_dim) for p in profile.categorical}
    before, after = dims[narrower.feature]
    assert narrower.bytes_per_example == pytest.approx((before - after) * 8)
    importance = dict.fromkeys(("shop", "city", "user", "seller", "noise", "tags", "pair", "price_bucket"), 1.0)
    _, measured = group_features(features(), [clicks()], importance=importance)
    assert not [s for s in measured.suggestions if s.feature == "noise" and s.action == "leave out"]


def test_suggested_dim_grows_with_the_fourth_root() -> None:
    assert [suggested_dim(n) for n in (1, 100, 10_000, 10**6, 10**9)] == [4, 12, 16, 40, 64]


def test_auc_counts_ties_half() -> None:
    assert ranking_auc(np.float32([1, 1, 1, 1]), np.float32([0, 1, 0, 1])) == 0.5
    assert ranking_auc(np.float32([0, 1, 2, 3]), np.float32([0, 0, 1, 1])) == 1.0
    assert ranking_auc(np.float32([0, 1]), np.float32([1, 1])) is None


def test_criteo_profile_takes_seconds(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "criteo-45k-20cols" / "train_45k_20cols.arff"
    if not path.exists():
        pytest.skip(f"no data set at {path}")
    draw = pytest.importorskip("embershard.feature_map.profile_picture", exc_type=ImportError).draw_profile
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    rows = [line.split(",") for line in lines[lines.index("@data") + 1 :] if line]
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
    criteo = FeatureMap(
        [
            *(Numeric(n, transform="log1p") for n in names if n.startswith("I")),
            *(Categorical(n, id="text") for n in names if n.startswith("C")),
        ],
        label="Label",
        null_values=("?",),
    )
    start = time.process_time()  # of the processor: what else runs on the machine is not its matter
    profile = profile_features(criteo, table.to_batches(4096))
    draw(profile, tmp_path / "profile.png")
    assert time.process_time() - start < 10
    assert profile.rows == 45_840
    assert profile.click_rate == pytest.approx(0.2566, abs=1e-4)
    assert {p.name: p.distinct for p in profile.categorical}["C9"] == 3


def test_no_title_or_name_of_the_picture_lies_over_another_or_outside() -> None:
    figures = pytest.importorskip("matplotlib.backends.backend_agg")
    from matplotlib.axes import Axes

    from embershard.feature_map.profile_picture import profile_figure

    profile = profile_features(features(), [clicks()])
    for numbers in (profile.numeric, ()):
        figure = profile_figure(FeatureProfile(profile.rows, profile.click_rate, profile.categorical, numbers))
        canvas = figures.FigureCanvasAgg(figure)
        canvas.draw()
        boxes = []
        for axes in figure.findobj(Axes):
            shown = [axes._left_title, *axes.get_yticklabels()] if axes.get_yticks().size else [axes._left_title]
            boxes += [text.get_window_extent() for text in shown if text.get_text() and text.get_visible()]
        assert len(boxes) > len(profile.categorical)
        for place, box in enumerate(boxes):
            assert box.x0 >= 0
            assert box.x1 <= canvas.get_width_height()[0]
            assert not any(box.overlaps(other) for other in boxes[place + 1 :])
