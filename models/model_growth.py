"""Dense parameters of a model whose features have changed: columns go where their feature has gone. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import nn

from ..embedding.errors import CheckpointMismatchError
from ..feature_map.feature_map import FeatureMap
from .errors import ModelSpecError

Array = npt.NDArray[Any]
Column = tuple[str, int]
"""A column of a parameter: its feature, and which of that feature's columns there it is."""


@runtime_checkable
class GrowingModel(Protocol):
    """What a model says of itself so that features can be added to it and taken from it."""

    def input_columns(self, features: FeatureMap) -> Mapping[str, Sequence[str]]:
        """Parameter name → the feature of each place of its last dimension, for each parameter whose shape or presence
        depends on which features there are. A name that is no feature stays whatever features come and go."""


@dataclass(frozen=True, slots=True)
class ModelColumns:
    """A model's parameters, in the order in which its optimizer numbers them, and the features of their columns."""

    parameters: tuple[str, ...]
    columns: Mapping[str, tuple[Column, ...]]

    @classmethod
    def of(cls, model: nn.Module, features: FeatureMap) -> ModelColumns:
        """What `model`, made for `features`, says of itself.

        Raises: ModelSpecError for a model that does not, or says it of a parameter that it has not or of another width.
        """
        if not isinstance(model, GrowingModel):
            raise ModelSpecError(
                f"expected {type(model).__name__} to have input_columns(features), got none: its parameters cannot be "
                "matched with other features than it was trained with (docs/feature_growth.md)"
            )
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if hasattr(value, "shape")}
        said = {name: tuple(_numbered(names)) for name, names in model.input_columns(features).items()}
        for name, columns in said.items():
            if not shapes.get(name) or shapes[name][-1] != len(columns):
                got = f"one of shape {shapes[name]}" if name in shapes else f"none; it has {sorted(shapes)}"
                raise ModelSpecError(
                    f"{type(model).__name__}.input_columns: expected a parameter {name!r} of {len(columns)} columns, "
                    f"got {got}"
                )
        trained = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        return cls(trained, said)


@dataclass(frozen=True, slots=True)
class FeatureChange:
    """What becomes of features' columns.

    anew:     features that start again: their columns are drawn, not carried over.
    at_zero:  features that came and do not begin as zeros themselves: their columns begin at zero.
    """

    anew: frozenset[str] = frozenset()
    at_zero: frozenset[str] = frozenset()


def grown_arrays(
    saved: Mapping[str, Array],
    fresh: Mapping[str, Array],
    before: ModelColumns,
    after: ModelColumns,
    change: FeatureChange,
) -> dict[str, Array]:
    """The arrays of `trainer_state.dense_arrays` for the model `after`: those of `saved`, feature by feature.

    saved: of the model `before`.   fresh: of the model `after` as it was drawn, and of its optimizer.
    Carried columns keep their bits, with their optimizer state; others are as drawn, without optimizer state.
    Raises: CheckpointMismatchError for a parameter that differs in more than the columns of features."""
    grown = {name: array for name, array in saved.items() if name.startswith("random/")}
    _check_rest(saved, fresh, before, after)
    sources = {_plain(name): array for name, array in saved.items() if name.startswith("model/")}
    for name, array in fresh.items():
        if not name.startswith("model/"):
            continue
        parameter = _plain(name)
        if parameter in after.columns:
            move = _Move(before, after, parameter, change.anew)
            grown[name] = move.onto(_at_zero(array, after.columns[parameter], change.at_zero), sources)
        else:
            grown[name] = sources[parameter]
    states = {name: _state(saved, number) for number, name in enumerate(before.parameters)}
    for number, name in enumerate(after.parameters):
        if name in after.columns:
            state = _Move(before, after, name, change.anew).state(_state(fresh, number), states)
        else:
            state = states.get(name, {})
        grown.update({f"optimizer/{number}/{key}": array for key, array in state.items()})
    return grown


class _Move:
    """Where the columns of one parameter come from."""

    def __init__(self, before: ModelColumns, after: ModelColumns, parameter: str, anew: frozenset[str]) -> None:
        self._columns = after.columns[parameter]
        self._from: list[tuple[int, str, int]] = []
        others = {name: columns for name, columns in before.columns.items() if name != parameter}
        named = {parameter: before.columns[parameter]} if parameter in before.columns else {}
        places = {
            column: (name, place)
            for name, columns in [*others.items(), *named.items()]  # a parameter's own columns come first
            for place, column in enumerate(columns)
        }
        widths = _widths(column for columns in before.columns.values() for column in columns)
        for feature, width in _widths(self._columns).items():
            if feature not in anew and feature in widths and widths[feature] != width:
                raise CheckpointMismatchError(
                    f"expected {widths[feature]} columns of feature {feature!r} as in the checkpoint, got {width} "
                    f"(parameter {parameter!r})"
                )
        for place, column in enumerate(self._columns):
            if column in places and column[0] not in anew:
                self._from.append((place, *places[column]))

    def onto(self, array: Array, sources: Mapping[str, Array]) -> Array:
        """A copy of `array` with the carried columns in it."""
        moved = array.copy()
        for place, name, column in self._from:
            if name not in sources:
                continue
            source = sources[name]
            if source.shape[:-1] != moved.shape[:-1] or source.dtype != moved.dtype:
                raise CheckpointMismatchError(
                    f"expected parameter {name!r} of {source.dtype} {source.shape[:-1]} as in the checkpoint, beside "
                    f"its columns, got {moved.dtype} {moved.shape[:-1]}"
                )
            moved[..., place] = source[..., column]
        return moved

    def state(self, own: Mapping[str, Array], states: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
        """The optimizer state of the parameter: of carried columns theirs, step counts of the first of them.

        own: as drawn.   states: of each parameter before."""
        carried = next((states[name] for _, name, _ in self._from if states.get(name)), None)
        if carried is None:
            return dict(own)
        state: dict[str, Array] = {}
        for key, array in carried.items():
            if array.ndim == 0:
                state[key] = array
                continue
            base = own.get(key, np.zeros((*array.shape[:-1], len(self._columns)), array.dtype))
            state[key] = self.onto(base, {name: found[key] for name, found in states.items() if key in found})
        return state


def _check_rest(
    saved: Mapping[str, Array], fresh: Mapping[str, Array], before: ModelColumns, after: ModelColumns
) -> None:
    """Raises: CheckpointMismatchError unless the models agree in all but the columns of features."""
    old = {_plain(name): array for name, array in saved.items() if name.startswith("model/")}
    new = {_plain(name): array for name, array in fresh.items() if name.startswith("model/")}
    kept = set(old) - set(before.columns)
    if kept != set(new) - set(after.columns):
        raise CheckpointMismatchError(
            f"expected dense parameters {sorted(kept)} beside the columns of features, got "
            f"{sorted(set(new) - set(after.columns))}: the checkpoint is of another model"
        )
    for name in sorted(kept):
        if old[name].shape != new[name].shape or old[name].dtype != new[name].dtype:
            raise CheckpointMismatchError(
                f"expected parameter {name!r} of {old[name].dtype} {old[name].shape} as in the checkpoint, got "
                f"{new[name].dtype} {new[name].shape}; if that follows from the features, input_columns must name it"
            )


def _at_zero(array: Array, columns: Sequence[Column], features: frozenset[str]) -> Array:
    zeroed = array.copy()
    zeroed[..., [place for place, (feature, _) in enumerate(columns) if feature in features]] = 0
    return zeroed


def _state(arrays: Mapping[str, Array], number: int) -> dict[str, Array]:
    start = f"optimizer/{number}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def _plain(name: str) -> str:
    """The parameter behind an array's name."""
    return name.removeprefix("model/").removesuffix(":bfloat16")


def _numbered(names: Sequence[str]) -> Iterator[Column]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        yield name, seen[name]


def _widths(columns: Iterator[Column] | Sequence[Column]) -> dict[str, int]:
    widths: dict[str, int] = {}
    for feature, number in columns:
        widths[feature] = max(widths.get(feature, 0), number + 1)
    return widths
