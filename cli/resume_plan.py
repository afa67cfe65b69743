"""How a run goes on from a checkpoint after its features have changed: what stays, comes, goes, starts anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..embedding.checkpoint import Checkpoint
from ..embedding.checkpoint.table_match import check_layout
from ..embedding.errors import CheckpointMismatchError
from ..embedding.table_config import TableConfig
from ..feature_map import FeatureMap
from ..feature_map.errors import FeatureMapChangeError
from ..feature_map.feature_config import Bucketize, Numeric, SoftBuckets
from ..feature_map.feature_map_change import FeatureMapDiff, check_change, diff
from ..models.config import CustomModelConfig
from ..models.model_factory import build_dense_optimizer, build_model, model_tables
from ..models.model_growth import FeatureChange, ModelColumns, grown_arrays
from ..models.trainer_state import TrainerState, dense_arrays
from .errors import UsageError
from .run_config import RunConfig

_LEARNED = ("mean", "std", "low", "high", "edges", "centres")


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What a resume does.

    config:  of the run from now on: its features with their statistics and the next version, `model.added` filled.
    saved, old: the checkpoint's own configuration and feature map.
    kept:    tables whose rows are restored.   dropped, anew: tables that go, that start again.
    found:   what differs between the checkpoint's features and those of the configuration.
    changes: lines that say what is not as it was; empty where the checkpoint's features simply go on.
    """

    config: RunConfig
    saved: RunConfig
    old: FeatureMap
    kept: frozenset[str]
    dropped: tuple[str, ...]
    anew: tuple[str, ...]
    found: FeatureMapDiff
    changes: tuple[str, ...]

    @property
    def moves_columns(self) -> bool:
        """Whether dense parameters have other columns than in the checkpoint, or in another order."""
        return bool(self.found.added or self.found.removed or self.found.order_changed or self.anew)


def plan_resume(checkpoint: Checkpoint, config: RunConfig, reinit: Collection[str] = ()) -> ResumePlan:
    """The plan for `config` to go on from `checkpoint`; nothing is changed by it.

    reinit: tables that start anew, with the columns of their features.
    Raises: FeatureMapChangeError, CheckpointMismatchError naming what does not fit and what would let it."""
    saved = RunConfig.from_dict(checkpoint.manifest.config, f"{checkpoint.path} (configuration)")
    old = FeatureMap.from_dict(checkpoint.manifest.feature_map, f"{checkpoint.path} (feature map)")
    new = _with_learned(FeatureMap.of(config.features), old)
    found = _checked_change(old, new, reinit, checkpoint.path)
    is_changed = not found.is_empty or bool(reinit)
    if is_changed:
        _check_model(saved, config, checkpoint.path)
    version = max(new.version, old.version + is_changed)
    features = new.config.model_copy(update={"version": version})
    groups = [tuple(name for name in group if name not in found.removed) for group in saved.model.added]
    added = (*(group for group in groups if group), *((found.added,) if found.added else ()))
    config = config.model_copy(update={"features": features, "model": config.model.model_copy(update={"added": added})})
    new = FeatureMap.of(features)
    tables = model_tables(config.model, config.optimizer, new, seed=config.train.seed)
    kept = frozenset(table.name for table in old.tables if table.name in tables and table.name not in reinit)
    _check_layouts(checkpoint, [tables[table.name] for table in old.tables if table.name in kept])
    anew = tuple(dict.fromkeys(reinit))
    changes = [*_changes(found, old, new, kept), *(f"table {name!r} starts anew, with its columns" for name in anew)]
    if found.added and isinstance(config.model, CustomModelConfig):
        changes.append(f"whether a field of zeros is neutral is up to {config.model.class_}")
    dropped = tuple(table.name for table in old.tables if table.name not in tables)
    return ResumePlan(config, saved, old, kept, dropped, anew, found, tuple(changes))


def resumed_state(checkpoint: Checkpoint, plan: ResumePlan) -> TrainerState:
    """The trainer's state to go on with: the checkpoint's, its dense arrays as the changed features need them.

    Raises: ModelSpecError for a model of the user's own that does not say which columns are whose;
    CheckpointMismatchError for one that differs in more than its features."""
    manifest, dense = checkpoint.manifest, checkpoint.dense()
    if not plan.changes:
        return TrainerState(manifest.step, manifest.cursor, manifest.scalars, dense, checkpoint.path)
    # The best checkpoint is one of other features: there is no going back to it.
    scalars = {**manifest.scalars, "best": None, "best_checkpoint": None, "bad_evaluations": 0}
    if plan.moves_columns:
        # Drawn by another seed than the run began with, so that what starts anew is not what it was.
        dense = _grown(dense, plan, (plan.config.train.seed + manifest.step + 1) % (1 << 63))
    return TrainerState(manifest.step, manifest.cursor, scalars, dense)


def _grown(dense: dict[str, npt.NDArray[Any]], plan: ResumePlan, seed: int) -> dict[str, npt.NDArray[Any]]:
    config, old, new = plan.config, plan.old, FeatureMap.of(plan.config.features)
    before, after = build_model(plan.saved.model, old, seed), build_model(config.model, new, seed)
    fresh = dense_arrays(after, build_dense_optimizer(config.optimizer.dense, after))
    change = FeatureChange(
        anew=frozenset(name for table in new.tables if table.name in plan.anew for name in table.features),
        at_zero=frozenset(
            name
            for name in plan.found.added
            if isinstance(feature := new.feature(name), Numeric) or feature.table in plan.kept
        ),
    )
    return grown_arrays(dense, fresh, ModelColumns.of(before, old), ModelColumns.of(after, new), change)


def _with_learned(given: FeatureMap, saved: FeatureMap) -> FeatureMap:
    """`given` with what features have learned from the click log, where `saved` has them and they are the same."""
    learned = {feature.name: feature for feature in saved.features if feature.name in given.unlearned}
    filled = tuple(
        feature.model_copy(update={name: getattr(known, name) for name in _LEARNED if hasattr(known, name)})
        if isinstance(feature, Numeric | Bucketize | SoftBuckets)
        and (known := learned.get(feature.name)) is not None
        and _unlearned(known) == _unlearned(feature)
        else feature
        for feature in given.features
    )
    return FeatureMap.of(given.config.model_copy(update={"features": filled}))


def _unlearned(feature: object) -> object:
    if not isinstance(feature, Numeric | Bucketize | SoftBuckets):
        return feature
    return feature.model_copy(update={name: None for name in _LEARNED if hasattr(feature, name)})


def _checked_change(old: FeatureMap, new: FeatureMap, reinit: Collection[str], where: str) -> FeatureMapDiff:
    known = sorted(table.name for table in new.tables)
    for name in reinit:
        if name not in known:
            raise UsageError(f"expected --reinit with one of tables {known}, got {name!r}")
    found = diff(old, new)
    refused = [
        str(change)
        for change in found.changed
        if change.field == "pooling"
        and "none" in (change.old, change.new)
        and (feature := new.feature(change.feature))
        and not isinstance(feature, Numeric)
        and feature.table not in reinit
    ]
    try:
        check_change(old, new, reinit=reinit)
    except FeatureMapChangeError as error:
        raise FeatureMapChangeError(f"{where}: {error} (--reinit TABLE)") from None
    if refused:
        raise FeatureMapChangeError(
            f"{where}: expected features that stay pooled, or stay sequences, got {'; '.join(refused)}: the model has "
            "other inputs then; start their tables anew (--reinit TABLE)"
        )
    return found


def _check_model(saved: RunConfig, config: RunConfig, where: str) -> None:
    """Raises: CheckpointMismatchError for a model of another kind, in which no parameter would mean the same."""
    for name in ("kind", "class_"):
        before, now = getattr(saved.model, name, None), getattr(config.model, name, None)
        if before != now:
            field = f"model.{name.rstrip('_')}"
            raise CheckpointMismatchError(f"{where}: expected {field} {before} as in the checkpoint, got {now}")


def _check_layouts(checkpoint: Checkpoint, tables: Sequence[TableConfig]) -> None:
    """Raises: CheckpointMismatchError naming every table whose saved rows would not fit."""
    problems = []
    for table in tables:
        saved = checkpoint.manifest.table(table.name)
        if saved is None:
            raise CheckpointMismatchError(f"expected table {table.name!r} in {checkpoint.path}, got none")
        try:
            check_layout(saved, table, checkpoint.path)
        except CheckpointMismatchError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointMismatchError(f"{'; '.join(problems)}; a table starts anew with --reinit TABLE")


def _changes(found: FeatureMapDiff, old: FeatureMap, new: FeatureMap, kept: Collection[str]) -> Iterator[str]:
    """A line for each difference, with what becomes of rows and columns."""
    if new.version != old.version:
        yield f"feature map version {old.version} -> {new.version}"
    for name in found.added:
        feature = new.feature(name)
        if isinstance(feature, Numeric):
            yield f"feature {name!r} added: its columns start at zero"
        elif feature.table in kept:
            yield f"feature {name!r} added: its table {feature.table!r} has rows, so the prediction changes with it"
        else:
            yield f"feature {name!r} added: table {feature.table!r} starts from zeros"
    for name in found.removed:
        gone = old.feature(name)
        is_dropped = not isinstance(gone, Numeric) and gone.table in found.tables_dropped
        what = (
            f"table {gone.table!r} and its columns" if is_dropped and not isinstance(gone, Numeric) else "its columns"
        )
        yield f"feature {name!r} removed: {what} dropped"
    for change in found.changed:
        yield str(change) if change.feature else f"feature map: {change.field} {change.old!r} → {change.new!r}"
    if found.order_changed:
        yield "order of features changed: columns go with their features"
