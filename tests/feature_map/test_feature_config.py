"""Feature map files: what they may say, how they are refused, what columns and tables follow from them."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from embershard.datasets.schema import ColumnSpec
from embershard.feature_map import (
    Bucketize,
    Categorical,
    ColumnTypeError,
    ConfigError,
    Constant,
    Cross,
    EventTime,
    FeatureMap,
    FeatureMapError,
    Group,
    Numeric,
    Sequence,
    TimePart,
    ValueEncodeError,
)

FILE = """\
version: 2
label: {column: rating, at_least: 4}
example_weight: weight
group: user_id
event_time: {column: at, unit: s}
null_values: ["\\\\N", -1]
dim: 16
features:
  - {name: user, kind: categorical, column: user_id}
  - {name: friend, kind: categorical, column: friend_id, table: user}
  - {name: genres, kind: categorical, id: text, delimiter: "|", pooling: mean}
  - {name: seen, kind: sequence, id: uint64, max_length: 3, keep: first}
  - {name: pair, kind: cross, of: [user, genres], dim: 8}
  - {name: age, kind: bucketize, edges: [18, 30, 50]}
  - {name: price, kind: numeric, transform: [log1p, standardise], mean: 1.0, std: 2.0, fill: 0}
  - {name: bias, kind: constant}
"""


def load(tmp_path: Path, text: str) -> FeatureMap:
    path = tmp_path / "features.yaml"
    path.write_text(text, encoding="utf-8")
    return FeatureMap.load(path)


def test_file_says_what_code_says(tmp_path: Path) -> None:
    features = load(tmp_path, FILE)
    assert features.version == 2
    assert [t.name for t in features.tables] == ["user", "genres", "seen", "pair", "age", "bias"]
    shared = features.tables[0]
    assert (shared.features, shared.key_space, shared.dim, shared.id) == (("user", "friend"), "user", 16, "int64")
    assert features.dense_width == 1
    assert features.columns == (
        ColumnSpec("user_id", pa.int64()),
        ColumnSpec("friend_id", pa.int64()),
        ColumnSpec("genres", pa.string()),
        ColumnSpec("seen", pa.list_(pa.uint64())),
        ColumnSpec("age", pa.float64()),
        ColumnSpec("price", pa.float64()),
        ColumnSpec("rating", pa.float64()),
        ColumnSpec("weight", pa.float64()),
        ColumnSpec("at", pa.int64()),
    )
    again = FeatureMap.from_dict(features.to_dict())
    assert again == features == pickle.loads(pickle.dumps(features))
    assert again.hash == features.hash
    assert hash(again) == hash(features)
    batch = features.encode(
        pa.table(
            {
                "user_id": [1, -1], "friend_id": [1, 2], "genres": ["a|b", "\\N"], "seen": [[1, 2, 3, 4], None],
                "age": [18.0, -1.0], "price": [-1.0, np.e], "rating": [5, 3], "weight": [0.5, 2.0], "at": [100, 200],
            }
        )
    )  # fmt: skip
    assert batch.keys_of("friend")[0] == batch.keys_of("user")[0]
    assert batch.keys_of("user")[1] == features.key("user", None)
    assert batch.bag_lengths("genres").tolist() == [2, 0]
    assert batch.bag_lengths("seen").tolist() == [3, 0]
    assert batch.bag_lengths("pair").tolist() == [2, 0]
    assert [features.value("age", int(k)) for k in batch.keys_of("age")] == [1, None]
    np.testing.assert_allclose(batch.dense[:, 0], [-0.5, (np.log1p(np.e) - 1) / 2], rtol=1e-6)
    assert batch.example_weight is not None
    assert batch.example_weight.tolist() == [0.5, 2.0]
    assert batch.event_time is not None
    assert batch.event_time.tolist() == [100, 200]
    assert batch.group is not None
    assert batch.group[0] != batch.group[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "features: [{name: a, kind: categorical, dims: 3}]",
            r"\$.features\[0\].dims: unknown key; did you mean 'dim'",
        ),
        ("features: [{name: a, kind: categoric}]", r"unknown kind 'categoric'; did you mean 'categorical'"),
        ("features: [{kind: numeric}]", r"\$.features\[0\].*name: expected a value"),
        ("features: [{name: a, kind: numeric, std: 1.0}]", "expected transform standardise with std"),
        ("features: [{name: a, kind: bucketize}]", r"expected edges \(centres\) or quantiles, got neither"),
        ("features: [{name: a, kind: bucketize, edges: [3, 2]}]", r"expected ascending numbers, got \[3.0, 2.0\]"),
        (
            "features: [{name: a, kind: categorical, weight_delimiter: ':'}]",
            "expected a delimiter with weight_delimiter",
        ),
        ("features: [{name: a, kind: categorical, default: x}]", "expected a default of id type int64, got 'x'"),
        ("features: [{name: a, kind: cross, of: [b]}]", "of"),
        ("features: []", r"\$.features"),
        ("feature: [{name: a, kind: numeric}]", "unknown key; did you mean 'features'"),
        ("features: [{name: a, kind: numeric}]\nfeatures: []", "expected each key once"),
        ("format_version: 2\nfeatures: [{name: a, kind: numeric}]", r"\$.format_version: expected 1, got 2"),
        ("features: [{name: a, kind: numeric, transform: log}]", r"\$.features\[0\].transform"),
    ],
)
def test_bad_file_is_refused_by_path(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([Numeric("a"), Numeric("a")], "expected distinct feature names, got 'a' twice"),
        ([Categorical("a", table="t"), Categorical("b", id="text", table="t")], "expected one id type, got int64"),
        ([Categorical("a", table="t"), Categorical("b", id="uint64", table="t")], "expected one id type, got int64"),
        (
            [Categorical("a", table="t", dim=4), Categorical("b", table="t", dim=8)],
            "table 't': expected one dim, got 4",
        ),
        (
            [Categorical("a", key_space="x", table="t"), Categorical("b", key_space="y", table="t")],
            "expected one key space",
        ),
        ([Numeric("a"), Cross("c", of=("a", "b"))], "expected a categorical feature in `of`, got 'a'"),
        ([Categorical("a", is_list=True), Numeric("b", column="a")], "column 'a': expected lists for all features"),
    ],
)
def test_contradictions_are_refused(features: list[Categorical], message: str) -> None:
    with pytest.raises(FeatureMapError, match=message):
        FeatureMap(features)


def test_renaming_a_table_changes_no_key() -> None:
    before = FeatureMap([Categorical("a", table="old")])
    after = FeatureMap([Categorical("a", table="new", key_space="old")])
    assert before.key("a", 5) == after.key("a", 5) != FeatureMap([Categorical("a", table="new")]).key("a", 5)
    assert [(t.name, t.key_space) for t in after.tables] == [("new", "old")]


def test_a_column_for_several_features_is_parsed_as_what_all_can_read() -> None:
    features = FeatureMap(
        [
            Categorical("a", column="x"),
            Numeric("b", column="x"),
            Categorical("c", column="y"),
            Categorical("d", column="y", id="text"),
        ]
    )
    assert {c.name: c.type for c in features.columns} == {"x": pa.int64(), "y": pa.string()}
    batch = features.encode(pa.table({"x": ["5"], "y": ["7"]}))
    assert batch.dense.tolist() == [[5.0]]
    assert batch.keys.tolist() == [features.key("a", 5), features.key("c", 7), features.key("d", "7")]


def test_hash_knows_what_matters() -> None:
    base = FeatureMap([Categorical("a"), Numeric("b")], label="y")
    assert base.hash == FeatureMap([Categorical("a"), Numeric("b")], label="y", version=9).hash
    others = [
        FeatureMap([Categorical("a"), Numeric("b")], label="z"),
        FeatureMap([Numeric("b"), Categorical("a")], label="y"),
        FeatureMap([Categorical("a", id="text"), Numeric("b")], label="y"),
        FeatureMap([Categorical("a"), Numeric("b", fill=1.0)], label="y"),
    ]
    assert len({base.hash, *(other.hash for other in others)}) == 5


def test_time_parts_read_units_formats_and_zones() -> None:
    instant = dt.datetime(2014, 10, 21, 23, 30, tzinfo=dt.timezone.utc)
    seconds = int(instant.timestamp())
    features = FeatureMap(
        [
            Categorical("hour", column="ts", time=TimePart(part="hour")),
            Categorical("hour_oslo", column="ts", time=TimePart(part="hour", time_zone="Europe/Oslo")),
            Categorical("weekday", column="s", time=TimePart(part="weekday", unit="s")),
            Categorical("weekday_oslo", column="ms", time=TimePart(part="weekday", unit="ms", time_zone="Europe/Oslo")),
            Categorical("text_hour", column="avazu", time=TimePart(part="hour_of_week", format="%y%m%d%H")),
            Categorical("iso", column="iso", time=TimePart(part="day")),
            Categorical("month", column="date", time=TimePart(part="month")),
            Bucketize("age", column="ts", edges=(1, 7), time=TimePart(part="age_days", since="2014-10-24T23:30:00")),
            Numeric("hours", column="ts", time=TimePart(part="age_hours", since="later")),
        ],
        event_time=EventTime(column="ts"),
    )
    table = pa.table(
        {
            "ts": pa.array([instant, None], pa.timestamp("us", "UTC")),
            "s": [seconds, None],
            "ms": [seconds * 1000, None],
            "avazu": ["14102123", None],
            "iso": ["2014-10-21T23:30:00", None],
            "date": pa.array([instant.date(), None]),
            "later": pa.array([instant + dt.timedelta(hours=5), None], pa.timestamp("ns", "UTC")),
        }
    )
    batch = features.without_label().encode(table.slice(0, 1))
    found = {name: features.value(name, int(batch.keys_of(name)[0])) for name in batch.features}
    assert found == {
        "hour": 23, "hour_oslo": 1, "weekday": 1, "weekday_oslo": 2, "text_hour": 47, "iso": 21, "month": 10, "age": 1,
    }  # fmt: skip
    assert batch.dense.tolist() == [[5.0]]
    assert batch.event_time is not None
    assert batch.event_time.tolist() == [seconds]
    without_time = features.config.model_copy(update={"event_time": None})
    nulls = FeatureMap.of(without_time).encode(table.slice(1))
    assert {features.value(name, int(nulls.keys_of(name)[0])) for name in nulls.features} == {None}
    assert features.encode_one(table.slice(0, 1).to_pylist()[0]).keys.tolist() == batch.keys.tolist()


def test_times_that_cannot_be_read_name_the_column() -> None:
    features = FeatureMap([Categorical("hour", column="ts", time=TimePart(part="hour", format="%y%m%d"))])
    with pytest.raises(ValueEncodeError, match="column 'ts': expected a time of format '%y%m%d'"):
        features.encode(pa.table({"ts": ["tomorrow"]}))
    with pytest.raises(ColumnTypeError, match="column 'ts': expected a time, got int64; declare the unit"):
        features.encode(pa.table({"ts": [5]}))
    with pytest.raises(
        ColumnTypeError, match="column 'ts': expected a date, timestamp, integer or text time, got double"
    ):
        features.encode(pa.table({"ts": [5.0]}))


def test_lookups_read_their_file_once(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"shop": [1, 2, 2, None], "city": ["Oslo", "Rome", "Paris", "x"]}), tmp_path / "shops.parquet"
    )
    pyarrow.csv.write_csv(pa.table({"shop": [1], "day": ["07"], "open": [3]}), tmp_path / "hours.csv")
    (tmp_path / "features.yaml").write_text(
        "features:\n"
        "  - {name: city, kind: lookup, id: text, of: [{column: shop}],\n"
        "     file: shops.parquet, keys: [shop], result: city}\n"
        "  - {name: open, kind: lookup, of: [{column: shop}, {column: day, id: text}],\n"
        "     file: hours.csv, keys: [shop, day], result: open}\n",
        encoding="utf-8",
    )
    features = FeatureMap.load(tmp_path / "features.yaml")
    (tmp_path / "shops.parquet").unlink()
    batch = features.encode(pa.table({"shop": [1, 2, 9, None], "day": ["07", "07", "7", "07"]}))
    plain = FeatureMap([Categorical("city", id="text"), Categorical("open")])
    assert batch.keys_of("city").tolist() == [plain.key("city", v) for v in ("Oslo", "Rome", None, None)]
    assert batch.keys_of("open").tolist() == [plain.key("open", v) for v in (3, None, None, None)]
    assert FeatureMap.from_dict(features.to_dict()) == features
    with pytest.raises(FeatureMapError, match=r"feature 'city': file '.*shops.parquet': .*nothing is there"):
        FeatureMap.load(tmp_path / "features.yaml")
    fields = {"kind": "lookup", "of": [{"column": "a"}], "file": "hours.csv", "keys": ["nope"], "result": "open"}
    with pytest.raises(FeatureMapError, match=r"feature 'x'.*expected columns nope \(int64\)"):
        FeatureMap.from_dict({"features": [{"name": "x", **fields}]}, folder=tmp_path)


def test_encode_values_and_key_of_several_columns() -> None:
    features = FeatureMap(
        [
            Categorical("tags", id="text", delimiter="|"),
            Sequence("seen", max_length=2),
            Cross("both", of=("tags", "seen")),
            Constant("bias"),
            Numeric("n"),
        ]
    )
    keys = features.encode_values("tags", ["a|b", "c"])
    assert keys.tolist() == features.encode_values("tags", pa.chunked_array([["a|b"], ["c"]])).tolist()
    assert keys[1] == features.key("tags", "c")
    assert features.encode_values("seen", np.array([5, 6, 7])).tolist() == [
        features.key("seen", [v]) for v in (5, 6, 7)
    ]
    assert features.encode_values("seen", []).tolist() == []
    assert (
        features.key("both", ("c", [7])) == features.encode_one({"tags": "c", "seen": [7], "n": 0}).keys_of("both")[0]
    )
    assert features.key("bias", None) == features.encode_one({"tags": "c", "seen": [7], "n": 0}).keys_of("bias")[0]
    with pytest.raises(FeatureMapError, match=r"got 'a\|b' with 2"):
        features.key("tags", "a|b")
    with pytest.raises(FeatureMapError, match=r"a value for each of \['tags', 'seen'\]"):
        features.key("both", "c")
    with pytest.raises(FeatureMapError, match="did you mean 'seen'"):
        features.key("sen", 1)
    with pytest.raises(FeatureMapError, match="no arithmetic inverse"):
        features.value("tags", 5)


def test_group_takes_text_ids_too() -> None:
    features = FeatureMap([Categorical("a")], group=Group(column="session", id="text"))
    group = features.encode(pa.table({"a": [1, 2, 3], "session": ["x", "y", "x"]})).group
    assert group is not None
    assert group[0] == group[2] != group[1]


def test_weights_that_are_no_numbers_are_refused() -> None:
    features = FeatureMap([Categorical("a", id="text", delimiter=",", weight_delimiter=":")], example_weight="w")
    for text in ("x:nan", "x:", "x:1e999", "x:y"):
        with pytest.raises(
            ValueEncodeError, match=r"column 'a': expected value:weight with a finite weight.* \(row 1\)"
        ):
            features.encode(pa.table({"a": ["x:1", text], "w": [1, 1]}))
    with pytest.raises(
        ValueEncodeError, match=r"column 'w': expected an example weight of at least 0, got -1 \(row 0\)"
    ):
        features.encode(pa.table({"a": ["x"], "w": [-1]}))
    lists = FeatureMap([Categorical("a", weights="v")])
    with pytest.raises(ValueEncodeError, match=r"column 'a': expected 2 weights, one a value, got 1 \(row 0\)"):
        lists.encode(pa.table({"a": [[1, 2]], "v": [[1.0]]}))


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"name": "h", "time": {"part": "hour", "time_zone": "Mars/Phobos"}}, r"time zone.*got 'Mars/Phobos'"),
        ({"name": "h", "id": "text", "delimiter": "|", "weight_delimiter": "|"}, r"to differ, got '\|' twice"),
        ({"name": "a b"}, r"\.name: expected text that matches .*, got 'a b'"),
    ],
)
def test_what_could_only_fail_later_is_refused_when_the_map_is_read(feature: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureMap.from_dict({"features": [{"kind": "categorical", **feature}]})


def test_event_time_in_an_unknown_zone_and_a_label_named_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\$\.event_time\.time_zone: expected a time zone.*'Nowhere'"):
        FeatureMap([Categorical("a")], event_time={"column": "t", "time_zone": "Nowhere"})  # type: ignore[arg-type]
    with pytest.raises(FeatureMapError, match="expected distinct label columns, got 'y' twice"):
        FeatureMap([Categorical("a")], label=["y", "y"])


@pytest.mark.parametrize(
    "feature",
    [
        Categorical("seen", column="click"),
        Numeric("click"),
        Categorical("user", id="text", delimiter="|", weight_delimiter=":", column="click"),
        Categorical("item", weights="click"),
        Categorical("age", column="born", time={"part": "age_days", "unit": "s", "since": "click"}),
        Cross("pair", of=("user", {"column": "click"})),
        Bucketize("step", column="click", edges=(0.5,)),
    ],
    ids=lambda feature: feature.name,
)
def test_a_feature_that_reads_a_label_is_refused(feature: Any) -> None:
    others = [] if feature.name == "user" else [Categorical("user")]
    with pytest.raises(FeatureMapError, match=f"feature '{feature.name}': expected columns .*label column 'click'"):
        FeatureMap([*others, feature], label=["buy", "click"])
    assert FeatureMap([*others, feature], label="buy").labels == ("buy",)
