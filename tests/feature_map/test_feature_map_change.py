"""Features that come, go and change: what is new, what is refused, what a file looks like afterwards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from embershard.feature_map import (
    Bucketize,
    Categorical,
    ConfigError,
    Cross,
    FeatureMap,
    FeatureMapChangeError,
    FeatureMapError,
    Numeric,
    Sequence,
)
from embershard.feature_map.feature_map_change import add_feature, check_change, diff, remove_feature
from embershard.feature_map.feature_map_edit import add_to_file, remove_from_file

OLD = FeatureMap(
    [
        Categorical("user", dim=8),
        Categorical("ad", dim=8, id="text"),
        Cross("both", of=("user", "ad"), dim=4),
        Bucketize("age", edges=(18, 30), dim=2),
        Numeric("price"),
    ],
    label="click",
)


def changed(name: str, **fields: object) -> FeatureMap:
    features = [f.model_copy(update=fields) if f.name == name else f for f in OLD.features]
    return FeatureMap.of(OLD.config.model_copy(update={"features": tuple(features)}))


def test_b44_new_feature_reads_older_files_as_missing() -> None:
    new = add_feature(OLD, Categorical("ad_cat", id="text", dim=8))
    found = check_change(OLD, new)
    assert (found.added, found.tables_added, found.changed) == (("ad_cat",), ("ad_cat",), ())
    assert new.version == OLD.version + 1
    before = {"user": [1], "ad": ["x"], "age": [20.0], "price": [1.0], "click": [0]}
    old_file = new.encode(pa.table(before))
    assert old_file.keys_of("ad_cat").tolist() == [new.key("ad_cat", None)]
    assert new.encode(pa.table({**before, "ad_cat": ["c"]})).keys_of("ad_cat").tolist() == [new.key("ad_cat", "c")]
    assert old_file.keys_of("user").tolist() == OLD.encode(pa.table(before)).keys_of("user").tolist()
    assert [c.required for c in new.columns if c.name in ("ad_cat", "user")] == [True, False]


def test_removed_feature_drops_its_table() -> None:
    found = check_change(OLD, remove_feature(OLD, "both"))
    assert (found.removed, found.tables_dropped) == (("both",), ("both",))


def test_removing_a_part_of_a_cross_is_refused() -> None:
    with pytest.raises(FeatureMapError, match=r"got 'user', part of \['both'\]"):
        remove_feature(OLD, "user")
    with pytest.raises(FeatureMapError, match="did you mean 'price'"):
        remove_feature(OLD, "prise")


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (changed("user", dim=16), r"feature 'user': dim 8 → 16 \(layout\)"),
        (changed("both", of=("ad", "user")), r"feature 'both': of .* \(keys\)"),
        (changed("age", edges=(18.0, 40.0)), r"feature 'age': edges .* \(keys\)"),
        (changed("user", key_space="other"), r"feature 'user': key_space 'user' → 'other' \(keys\)"),
        (changed("price", width=2), r"feature 'price': width 1 → 2 \(layout\)"),
    ],
)
def test_change_of_keys_or_width_is_refused(new: FeatureMap, message: str) -> None:
    with pytest.raises(FeatureMapChangeError, match=message):
        check_change(OLD, new)


def test_id_type_change_is_refused_unless_reinitialised() -> None:
    features = [Categorical("user", dim=8, id="text"), *OLD.features[1:]]
    new = FeatureMap(features, label="click")
    with pytest.raises(FeatureMapChangeError, match=r"feature 'user': id 'int64' → 'text' \(keys\)"):
        check_change(OLD, new)
    assert [c.field for c in check_change(OLD, new, reinit={"user"}).changed] == ["id"]
    with pytest.raises(FeatureMapError, match="to re-initialise, got 'users'"):
        check_change(OLD, new, reinit={"users"})


def test_other_changes_are_accepted_and_told() -> None:
    found = check_change(OLD, changed("price", transform=("log1p",)))
    assert [str(c) for c in found.changed] == ["feature 'price': transform [] → ['log1p'] (values)"]
    assert check_change(OLD, changed("user", pooling="mean")).changed[0].effect == "model"
    assert diff(OLD, OLD).is_empty
    reordered = FeatureMap(OLD.features[::-1], label="click")
    assert diff(OLD, reordered).order_changed
    assert not diff(OLD, reordered).is_empty


def test_categorical_may_become_a_sequence_of_the_same_keys() -> None:
    sequence = Sequence("user", dim=8, max_length=5)
    found = check_change(OLD, FeatureMap([sequence, *OLD.features[1:]], label="click"))
    assert {c.field: c.effect for c in found.changed if c.effect == "model"} == {"kind": "model", "pooling": "model"}
    assert sequence.kind == "sequence"


YAML = """\
# Ads, since spring
version: 3   # raised by each change
label: click
features:
  - name: user   # the account
    kind: categorical
    dim: 8
  - {name: ad, kind: categorical, id: text, dim: 8}
"""


def test_file_edits_keep_comments(tmp_path: Path) -> None:
    path = tmp_path / "features.yaml"
    path.write_text(YAML, encoding="utf-8")
    new = add_to_file(path, {"name": "pair", "kind": "cross", "of": ["user", "ad"], "dim": 4})
    new = add_to_file(path, {"name": "city", "kind": "categorical", "id": "text"})
    assert new == FeatureMap.load(path)
    assert (new.version, [f.name for f in new.features]) == (5, ["user", "ad", "pair", "city"])
    text = path.read_text(encoding="utf-8")
    assert "# Ads, since spring" in text
    assert "# the account" in text
    assert "required: false" in text
    assert remove_from_file(path, "pair").version == 6
    assert [f.name for f in FeatureMap.load(path).features] == ["user", "ad", "city"]


def test_refused_edit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run: 1\nfeatures:\n" + "".join(f"  {line}\n" for line in YAML.splitlines()), encoding="utf-8")
    before = path.read_bytes()
    with pytest.raises(FeatureMapError, match="'user', which is there"):
        add_to_file(path, {"name": "user", "kind": "categorical"}, section=("features",))
    with pytest.raises(ConfigError, match="unknown key"):
        add_to_file(path, {"name": "x", "kind": "categorical", "dims": 3}, section=("features",))
    with pytest.raises(ConfigError, match=r"\$.feature"):
        remove_from_file(path, "user", section=("feature",))
    assert path.read_bytes() == before
    assert remove_from_file(path, "ad", section=("features",)).version == 4
    assert [p.name for p in tmp_path.iterdir()] == ["run.yaml"]
