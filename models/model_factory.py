"""Configurations to models: the module and the embedding collection it reads."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from ..embedding.store import EmbeddingStore
from ..embedding.table_config import TableConfig, Zeros
from ..feature_map.feature_map import FeatureMap
from .config import (
    CustomModelConfig,
    DeepFMConfig,
    DenseAdagrad,
    DenseAdam,
    DenseOptimizer,
    FactorizationMachineConfig,
    LogisticRegressionConfig,
    ModelConfig,
    OptimizerConfig,
)
from .deepfm import DeepFM
from .embedding_collection import EmbeddingCollection, table_configs
from .errors import ModelSpecError
from .factorization_machine import FactorizationMachine
from .input_columns import added_inputs, check_inputs, pooled_names, tables_of_added
from .logistic_regression import LogisticRegression


def build_model(config: ModelConfig, features: FeatureMap, seed: int = 0) -> nn.Module:
    """The module of a configuration, its parameters drawn from `seed`. Raises: ModelSpecError."""
    check_inputs(config, features)
    added = added_inputs(features, config.added)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match config:
            case LogisticRegressionConfig():
                return LogisticRegression(features.dense_width, added=added)
            case DeepFMConfig():
                return DeepFM(
                    len(pooled_names(features)),
                    config.dim,
                    features.dense_width,
                    hidden=config.hidden,
                    dropout=config.dropout,
                    added=added,
                )
            case FactorizationMachineConfig():
                return FactorizationMachine(features.dense_width, added=added)
            case CustomModelConfig():
                return _custom(config, features)


def build_embeddings(
    config: ModelConfig,
    optimizer: OptimizerConfig,
    features: FeatureMap,
    store: EmbeddingStore,
    *,
    seed: int = 0,
    device: str = "auto",
) -> EmbeddingCollection:
    """The embedding collection that the configured model reads; rows start from `seed` unless `tables.seed` is set."""
    return EmbeddingCollection(
        features,
        store,
        blocks=config.blocks(optimizer),
        tables=model_tables(config, optimizer, features, seed=seed),
        device=device,
    )


def model_tables(
    config: ModelConfig, optimizer: OptimizerConfig, features: FeatureMap, *, seed: int = 0
) -> dict[str, TableConfig]:
    """Configuration of each table that the configured model reads, by name; those of added features start at zeros."""
    options = config.tables
    if "seed" not in options.model_fields_set:
        options = options.model_copy(update={"seed": seed})
    configs = table_configs(features, config.blocks(optimizer), options)
    for name in tables_of_added(features, config.added):
        table = configs[name]
        blocks = tuple(block.model_copy(update={"initializer": Zeros()}) for block in table.blocks)
        configs[name] = table.model_copy(update={"blocks": blocks})
    return configs


def build_dense_optimizer(config: DenseOptimizer, model: nn.Module) -> torch.optim.Optimizer | None:
    """The torch optimizer of the model's own parameters; None where it has none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    match config:
        case DenseAdam():
            make = torch.optim.AdamW if config.decoupled else torch.optim.Adam
            # The fused kernel is one pass over each parameter; bits do not depend on the number of threads.
            return make(
                parameters,
                lr=config.lr,
                betas=config.betas,
                eps=config.eps,
                weight_decay=config.weight_decay,
                fused=True,
            )
        case DenseAdagrad():
            return torch.optim.Adagrad(parameters, lr=config.lr, eps=config.eps, weight_decay=config.weight_decay)
        case _:
            return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def _custom(config: CustomModelConfig, features: FeatureMap) -> nn.Module:
    module_name, _, path = config.class_.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except ImportError as error:
        raise ModelSpecError(f"expected an importable module in model.class {config.class_!r}: {error}") from error
    except AttributeError as error:
        raise ModelSpecError(f"expected {path!r} in module {module_name!r} (model.class {config.class_!r})") from error
    try:
        model = found(features, **config.options)
    except TypeError as error:
        raise ModelSpecError(f"{config.class_} does not take (features, {list(config.options)}): {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelSpecError(f"expected {config.class_} to give a torch module, got {type(model).__name__}")
    return model
