"""Which columns of a model's inputs belong to which feature, and which of them came later. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..feature_map.feature_map import FeatureMap
from .config import CustomModelConfig, LogisticRegressionConfig, ModelConfig
from .errors import ModelSpecError


@dataclass(frozen=True, slots=True)
class AddedInputs:
    """Inputs that a model was given after it had begun to train; they have columns of their own in its first layer.

    fields: places of pooled features among all of them.   dense: columns of the dense floats.
    """

    fields: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()


def check_inputs(config: ModelConfig, features: FeatureMap) -> None:
    """Raises: ModelSpecError where the model cannot read a feature, or has none to read.

    Logistic regression reads numbers alone too; factors are of pooled features."""
    if isinstance(config, CustomModelConfig):
        return
    pooled = pooled_names(features)
    apart = [feature.name for feature in features.categorical if feature.name not in pooled]
    if apart:
        raise ModelSpecError(
            f"expected pooling sum, mean, sqrtn or max of every feature for model {config.kind!r}, got none of "
            f"{apart}; only a model of your own (model.class) reads values that are kept apart"
        )
    if not pooled and not isinstance(config, LogisticRegressionConfig):
        raise ModelSpecError(
            f"expected at least one pooled feature for model {config.kind!r}, got only numbers; model 'lr' takes them"
        )


def pooled_names(features: FeatureMap) -> tuple[str, ...]:
    """Features whose bags become one vector, in the order in which models get them."""
    return tuple(f.name for f in features.categorical if getattr(f, "pooling", "sum") != "none")


def dense_names(features: FeatureMap) -> tuple[str, ...]:
    """The feature of each column of the dense floats."""
    return tuple(f.name for f in features.numeric for _ in range(f.output_width))


def added_inputs(features: FeatureMap, added: Sequence[Sequence[str]]) -> tuple[AddedInputs, ...]:
    """Where the inputs of features that came later are, one entry a group of names.

    Raises: ModelSpecError for a name that is no feature, or stands twice."""
    known = {feature.name for feature in features.features}
    names = [name for group in added for name in group]
    for name in names:
        if name not in known or names.count(name) > 1:
            got = f"{name!r} twice" if name in known else repr(name)
            raise ModelSpecError(f"expected distinct features of {sorted(known)} in model.added, got {got}")
    pooled, dense = pooled_names(features), dense_names(features)
    return tuple(
        AddedInputs(
            tuple(place for place, name in enumerate(pooled) if name in group),
            tuple(column for column, name in enumerate(dense) if name in group),
        )
        for group in added
    )


def tables_of_added(features: FeatureMap, added: Sequence[Sequence[str]]) -> frozenset[str]:
    """Tables that only features which came later read."""
    later = {name for group in added for name in group}
    return frozenset(table.name for table in features.tables if later.issuperset(table.features))
