"""Checkpoints of a run: the trainer's state and the store's rows, with what is needed to open them alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..embedding.checkpoint import (
    CatalogEntry,
    KeepBest,
    KeepLast,
    TrainingState,
    open_checkpoint,
    prune,
    write_checkpoint,
)
from ..embedding.store import EmbeddingStore
from ..feature_map import FeatureMap
from ..models.trainer_state import TrainerState
from .checkpoint_source import of_newest_features
from .run_config import RunConfig


@dataclass(frozen=True)
class KeepBestOfFeatures:
    """What `best` keeps among the checkpoints of the newest one's features."""

    best: KeepBest

    def keep(self, checkpoints: Sequence[CatalogEntry]) -> Iterable[str]:
        """Names to keep; early stop may go back to them."""
        return self.best.keep(of_newest_features(checkpoints))


class RunCheckpoints:
    """Saves into `root` and keeps the newest, the best, and the best of the features as they are now; see `Checkpoints`
    of the trainer.

    A checkpoint carries the run's whole configuration and feature map: evaluate, predict and export need no other file.
    """

    def __init__(self, root: Path, store: EmbeddingStore, config: RunConfig, features: FeatureMap) -> None:
        self._root, self._store = root, store
        self._config, self._feature_map = config.to_dict(), features.to_dict()
        metric = "auc" if config.train.early_stop is None else config.train.early_stop.metric
        best = KeepBest(metric, "highest" if metric == "auc" else "lowest")
        self._policies = (KeepLast(config.output.keep), best, KeepBestOfFeatures(best))

    def save(self, state: TrainerState, *, is_best: bool) -> str:
        """Path of the checkpoint written. Raises: CheckpointWriteError (disk full); older ones are untouched."""
        path = write_checkpoint(
            self._root,
            self._store,
            TrainingState(
                step=state.step,
                feature_map=self._feature_map,
                config=self._config,
                cursor=state.cursor,
                scalars=state.scalars,
                dense=state.dense,
            ),
        )
        # Committed already; a second time it only says whether every shard goes on from this one now.
        if self._store.commit_checkpoint(path):
            prune(self._root, self._policies)
        return path

    def restore(self, name: str) -> TrainerState:
        """State of a checkpoint of this root; its rows are put into the store."""
        with open_checkpoint(self._root / Path(name).name) as checkpoint:
            checkpoint.restore(self._store)
            manifest = checkpoint.manifest
            return TrainerState(manifest.step, manifest.cursor, manifest.scalars, checkpoint.dense())
