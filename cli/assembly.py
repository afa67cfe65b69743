"""The parts of a job put together: feature map, store, model and embeddings, fresh or from a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..embedding.checkpoint import open_checkpoint
from ..embedding.store import EmbeddingStore
from ..feature_map import FeatureMap
from ..models.device_transfer import choose_device
from ..models.embedding_collection import EmbeddingCollection
from ..models.model_factory import build_embeddings, build_model
from ..models.trainer_state import load_dense_arrays
from .checkpoint_source import checkpoint_in
from .run_config import RunConfig
from .store_config import LocalStoreConfig
from .store_opening import opened_store


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a job works with."""

    config: RunConfig
    features: FeatureMap
    store: EmbeddingStore
    model: nn.Module
    embeddings: EmbeddingCollection


@contextmanager
def assembled(config: RunConfig, features: FeatureMap, *, without: Collection[str] = ()) -> Iterator[Assembly]:
    """Everything as configured, with fresh parameters; the store is closed at the end.

    without: tables that a running cluster may have and that are dropped there first."""
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    seed = config.train.seed
    model = build_model(config.model, features, seed)
    device = choose_device(config.train.device)  # before shards are started for nothing
    with opened_store(config.store) as store:
        for table in {table.name for table in store.tables()}.intersection(without):
            store.drop_table(table)
        embeddings = build_embeddings(config.model, config.optimizer, features, store, seed=seed, device=str(device))
        yield Assembly(config, features, store, model.to(embeddings.device), embeddings)


@contextmanager
def assembled_checkpoint(path: Path) -> Iterator[Assembly]:
    """Model and rows of a checkpoint in this process, ready to evaluate and predict.

    path:   a checkpoint, or a folder of them or of a run: its best complete one is taken.
    Raises: CorruptCheckpointError, CheckpointMismatchError, UsageError."""
    with open_checkpoint(checkpoint_in(path)) as checkpoint:
        manifest = checkpoint.manifest
        config = RunConfig.from_dict(manifest.config, f"{checkpoint.path} (configuration)")
        features = FeatureMap.from_dict(manifest.feature_map, f"{checkpoint.path} (feature map)")
        local = config.model_copy(update={"store": LocalStoreConfig(tablet_bits=manifest.tablet_bits)})
        with assembled(local, features) as assembly:
            checkpoint.restore(assembly.store)
            load_dense_arrays(checkpoint.dense(), assembly.model, None)
            assembly.embeddings.checkpoint = checkpoint.path
            yield assembly
