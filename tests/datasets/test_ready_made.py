"""Public click logs from their publishers' files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from embershard.datasets import READY_MADE, ClickLog, ClickLogError, ColumnSpec, CsvOptions, open_ready_made

DATA = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")

CASES = {
    # name: (path, rows, clicks); counts as the files' publishers or a plain scan give them
    "movielens_100k": ("ml-100k", 100_000, 55_375),
    "movielens_1m": ("ml-1m-sample", 100_000, None),
    "movielens_latest": ("ml-latest-small", 100_836, 48_580),
    "criteo": ("criteo-head-8k/*.tsv", 8_000, 1_549 + 93 + 86),
    "avazu": ("avazu-head-9k/*.csv", 8_999, 1_563),
    "adult": ("adult-census/adult.*", 32_561 + 16_281, 7_841 + 3_846),
    "frappe": ("frappe/frappe.validation.libfm", 57_722, 19_063),
    "alimama_dmr": ("alimama-dmr-500/*.txt", 500, 210),
    "din_sequences": ("amazon-din-sample/din_sample.txt", 100, None),
    "sasrec_interactions": ("sasrec-video-seq/Video.txt.gz", 2 * (287_107 - 31_013), 287_107 - 31_013),
    "amazon_interactions": ("amazon-din-sample/amazon_electronics_sample.csv", 2 * (100 - 17), 100 - 17),
    "taobao_user_behavior": ("", None, None),  # no file of it here: see test_interaction_sequences.py
}
LABELS = {"avazu": "click", "alimama_dmr": "clk"}


def read(log: ClickLog, *columns: ColumnSpec) -> pa.Table:
    return pa.Table.from_batches([batch for unit in log.units(0) for batch in log.records(unit, columns, 4_096)])


def test_every_ready_made_log_has_a_case() -> None:
    assert set(CASES) == set(READY_MADE)
    with pytest.raises(ClickLogError, match="expected one of adult, alimama_dmr"):
        open_ready_made("netflix", DATA)


@pytest.mark.parametrize("name", CASES)
def test_rows_and_clicks_are_as_published(name: str) -> None:
    path, rows, clicks = CASES[name]
    if not path:
        pytest.skip("no file of it in ../shared/data")
    log = open_ready_made(name, DATA / path)
    label = LABELS.get(name, "label")
    table = read(log, ColumnSpec(label, pa.float64()))
    assert (log.rows(), table.num_rows) == (rows, rows)
    counts = Counter(table.column(label).to_pylist())
    assert set(counts) == {0.0, 1.0}
    assert clicks is None or counts[1.0] == clicks


def test_a_movielens_rating_has_the_columns_of_its_user_and_film() -> None:
    names = ("user", "item", "rating", "timestamp", "age", "gender", "occupation", "zip", "title", "release_year")
    table = read(open_ready_made("movielens_100k", DATA / "ml-100k"), *map(ColumnSpec, names), ColumnSpec("genres"))
    (row,) = table.filter((pa.compute.field("user") == 196) & (pa.compute.field("item") == 242)).to_pylist()
    assert row == {
        "user": 196, "item": 242, "rating": 3.0, "timestamp": "881250949", "age": 49, "gender": "M",
        "occupation": "writer", "zip": "55105", "title": "Kolya (1996)", "release_year": 1996, "genres": ["Comedy"],
    }  # fmt: skip
    assert table.column("genres").null_count == 0
    assert table.column("age").null_count == 0
    assert table.column("release_year").null_count < 20


def test_films_of_the_later_editions_keep_quoted_titles_and_genre_lists() -> None:
    columns = (ColumnSpec("item", pa.int64()), ColumnSpec("title"), ColumnSpec("genres"))
    table = read(open_ready_made("movielens_latest", DATA / "ml-latest-small"), *columns)
    films = {row["item"]: (row["title"], row["genres"]) for row in table.to_pylist()}
    assert films[11] == ("American President, The (1995)", ["Comedy", "Drama", "Romance"])
    old = read(open_ready_made("movielens_1m", DATA / "ml-1m-sample"), *columns)
    films = {row["item"]: (row["title"], row["genres"]) for row in old.to_pylist()}
    assert films[1] == ("Toy Story (1995)", ["Animation", "Children's", "Comedy"])
    assert any("é" in title for title, _ in films.values())


def test_adult_cells_are_trimmed_and_question_marks_null() -> None:
    columns = (ColumnSpec("workclass"), ColumnSpec("age", pa.int64()), ColumnSpec("native-country"))
    table = read(open_ready_made("adult", DATA / "adult-census/adult.data"), *columns)
    assert table.slice(0, 1).to_pylist() == [{"workclass": "State-gov", "age": 39, "native-country": "United-States"}]
    assert table.column("workclass").null_count == 1_836
    assert table.column("native-country").null_count == 583


def test_frappe_fields_are_the_ids_of_each_line_in_order() -> None:
    path = DATA / "frappe" / "frappe.test.libfm"
    names = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
    rows = read(open_ready_made("frappe", path), *(ColumnSpec(name) for name in ("label", *names))).to_pylist()
    for line, row in zip(path.read_text().splitlines(), rows, strict=True):
        label, *tokens = line.split()
        assert row["label"] == (1.0 if label == "1" else 0.0)
        assert [row[name] for name in names] == [int(token.split(":")[0]) for token in tokens]


def test_criteo_in_weka_form_is_read_by_csv_options() -> None:
    path = DATA / "criteo-45k-20cols" / "train_45k_20cols.arff"
    names = ("Label", *(f"I{i}" for i in range(1, 14)), "C6", "C9", "C14", "C17", "C20", "C22", "C23")
    csv = CsvOptions(skip_to="@data", column_names=names, null_values=("?",))
    log = ClickLog(path, format="csv", csv=csv)
    table = read(log, ColumnSpec("Label", pa.float64()), ColumnSpec("I1", pa.int64()), ColumnSpec("C6"))
    assert table.num_rows == log.rows() == 45_840
    assert pa.compute.sum(table.column("Label")).as_py() == 11_764


@pytest.mark.parametrize(
    ("path", "csv", "rows"),
    [
        ("sparrow-ml-seq/testSamples.csv", {}, 22_440),
        ("talkingdata-10k/train_sample.csv", {}, 10_000),
        ("criteo-200/criteo_sample.txt", {}, 200),
        ("obd-women-bts/women.csv.gz", {}, 10_000),
        ("fuxictr-tiny/tiny_csv_train_sample.csv", {}, 100),
        ("aliccp-aliexpress-sample/ali_ccp_train_sample.csv", {}, 100),
        ("criteo-random-4k/train_sample_4K.csv", {}, 4_584),
        ("sasrec-video-seq/Video.txt.gz", {"delimiter": " ", "column_names": ("user", "item")}, 287_107),
    ],
)
def test_other_real_files_read_whole(path: str, csv: dict[str, object], rows: int) -> None:
    log = ClickLog(DATA / path, format="csv", csv=CsvOptions(**csv))  # type: ignore[arg-type]
    assert read(log, *map(ColumnSpec, log.column_names() or ())).num_rows == rows


def test_libsvm_logs_read_whole() -> None:
    specs = (ColumnSpec("label"), ColumnSpec("indices"), ColumnSpec("values"))
    assert read(ClickLog(DATA / "criteo-10k-libsvm" / "va.libsvm"), *specs).num_rows == 10_038
    table = read(ClickLog(DATA / "ipinyou-fm" / "train.fm.txt.gz", format="libsvm"), *specs)
    assert (table.num_rows, pa.compute.sum(table.column("label")).as_py()) == (26_773, 255)
    assert set(pa.compute.list_value_length(table.column("indices")).to_pylist()) == {16}
