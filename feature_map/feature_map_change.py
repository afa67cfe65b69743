"""Changes of a feature map over time: what differs, what it means for the rows there are, and what is refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from .errors import FeatureMapChangeError, FeatureMapError
from .feature_config import Cross, EmbeddedFeature, Lookup, Numeric
from .feature_map import FeatureMap

Effect = Literal["keys", "layout", "values", "model"]

_VALUE_KINDS = {"categorical", "sequence"}
_KEY_FIELDS = {"id", "table", "key_space", "of", "edges", "centres"}
_LAYOUT_FIELDS = {"dim", "width", "missing_indicator"}
_MODEL_FIELDS = {"pooling"}


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of a feature that both maps have.

    effect:
      keys    the same value gets another key, or a key another meaning;
      layout  rows or dense columns of another width;
      model   the rows stay, what the model does with them changes;
      values  other values are read from the log."""

    feature: str
    field: str
    old: object
    new: object
    effect: Effect

    def __str__(self) -> str:
        return f"feature {self.feature!r}: {self.field} {self.old!r} → {self.new!r} ({self.effect})"


@dataclass(frozen=True, slots=True)
class FeatureMapDiff:
    """What became of a feature map: names of features and tables, changed fields."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[FieldChange, ...]
    tables_added: tuple[str, ...]
    tables_dropped: tuple[str, ...]
    order_changed: bool

    @property
    def is_empty(self) -> bool:
        """Are the maps equal, but for their version?"""
        return not (self.added or self.removed or self.changed or self.order_changed)


def diff(old: FeatureMap, new: FeatureMap) -> FeatureMapDiff:
    """What differs from `old` to `new`; features are matched by name."""
    before, after = ({f.name: f for f in m.features} for m in (old, new))
    common = [name for name in after if name in before]
    changed = [change for name in common for change in _field_changes(old, new, name)]
    changed += _map_changes(old, new)
    tables_before, tables_after = ({t.name: t for t in m.tables} for m in (old, new))
    return FeatureMapDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(changed),
        tables_added=tuple(name for name in tables_after if name not in tables_before),
        tables_dropped=tuple(name for name in tables_before if name not in tables_after),
        order_changed=[name for name in before if name in after] != common,
    )


def check_change(old: FeatureMap, new: FeatureMap, *, reinit: Collection[str] = ()) -> FeatureMapDiff:
    """The difference, where rows trained under `old` may be used under `new`.

    reinit: tables that start anew; a change of keys or width of their features is accepted.
    Raises: FeatureMapChangeError naming every feature whose keys or width change; FeatureMapError, unknown table."""
    tables = {t.name: t for t in new.tables}
    for name in reinit:
        if name not in tables:
            raise FeatureMapError(f"expected one of tables {sorted(tables)} to re-initialise, got {name!r}")
    found = diff(old, new)
    refused = []
    for change in found.changed:
        if change.effect not in ("keys", "layout") or not change.feature:
            continue
        feature = new.feature(change.feature)
        if isinstance(feature, Numeric) or feature.table not in reinit:
            refused.append(str(change))
    for table in old.tables:
        other = tables.get(table.name)
        if other is None or table.name in reinit or other.features == table.features:
            continue
        if other.id != table.id or other.key_space != table.key_space:
            what = f"table {table.name!r}: {table.id} keys of {table.key_space!r} → {other.id} of {other.key_space!r}"
            refused.append(what)
    if refused:
        raise FeatureMapChangeError(
            f"expected features that keep their keys and width, got {'; '.join(dict.fromkeys(refused))}: rows trained "
            "under the old keys would be read under the new ones; re-initialise the tables to change them"
        )
    return found


def add_feature(feature_map: FeatureMap, feature: EmbeddedFeature | Numeric) -> FeatureMap:
    """The next version, with one feature more, at the end. Its column need not be in older files: they read as null.

    Raises: FeatureMapError where the name is taken or the feature contradicts the others."""
    if any(f.name == feature.name for f in feature_map.features):
        raise FeatureMapError(f"expected a new feature name, got {feature.name!r}, which is there")
    if "required" in type(feature).model_fields and "required" not in feature.model_fields_set:
        feature = feature.model_copy(update={"required": False})
    config = feature_map.config
    return FeatureMap.of(
        config.model_copy(update={"features": (*config.features, feature), "version": config.version + 1})
    )


def remove_feature(feature_map: FeatureMap, name: str) -> FeatureMap:
    """The next version, without one feature. Raises: FeatureMapError: it is unknown, the last, or part of another."""
    feature_map.feature(name)
    users = [f.name for f in feature_map.features if isinstance(f, Cross | Lookup) and name in f.of]
    if users:
        raise FeatureMapError(f"expected a feature that no other is made of, got {name!r}, part of {users}")
    config = feature_map.config
    kept = tuple(f for f in config.features if f.name != name)
    if not kept:
        raise FeatureMapError(f"expected a feature map with other features, got only {name!r}")
    return FeatureMap.of(config.model_copy(update={"features": kept, "version": config.version + 1}))


def _field_changes(old: FeatureMap, new: FeatureMap, name: str) -> list[FieldChange]:
    before, after = _fields(old, name), _fields(new, name)
    if before["kind"] != after["kind"] and not {before["kind"], after["kind"]} <= _VALUE_KINDS:
        before, after = {"kind": before["kind"]}, {"kind": after["kind"]}
    names = [*before, *(field for field in after if field not in before)]
    return [
        FieldChange(name, field, before.get(field), after.get(field), _effect(field, new.feature(name), before))
        for field in names
        if before.get(field) != after.get(field)
    ]


def _fields(feature_map: FeatureMap, name: str) -> dict[str, Any]:
    """A feature's fields, with the width it has from the map where it has none of its own."""
    feature = feature_map.feature(name)
    fields = feature.model_dump(mode="json")
    if not isinstance(feature, Numeric) and feature.dim is None:
        fields["dim"] = feature_map.config.dim
    return fields


def _effect(field: str, feature: EmbeddedFeature | Numeric, before: dict[str, Any]) -> Effect:
    if field == "kind":
        return "model" if {before["kind"], feature.kind} <= _VALUE_KINDS else "keys"
    if field in _KEY_FIELDS and not isinstance(feature, Numeric):
        return "keys"
    if field in _LAYOUT_FIELDS:
        return "layout"
    return "model" if field in _MODEL_FIELDS else "values"


def _map_changes(old: FeatureMap, new: FeatureMap) -> list[FieldChange]:
    own = {"features", "version", "dim"}
    before, after = (m.config.model_dump(mode="json", exclude=own) for m in (old, new))
    return [
        FieldChange("", name, before[name], after[name], "values") for name in before if before[name] != after[name]
    ]
