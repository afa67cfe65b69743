"""The run file: one YAML file that says all of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..feature_map.config_file import read_yaml, validate
from ..feature_map.errors import ConfigError, FeatureMapError
from ..feature_map.feature_config import FeatureMapConfig
from ..feature_map.feature_map import FeatureMap
from ..feature_map.lookup_file import with_absolute_files
from ..models.config import CustomModelConfig, DeepFMConfig, ModelConfig, OptimizerConfig, TrainConfig
from ..models.errors import ModelSpecError
from ..models.input_columns import check_inputs
from .data_config import DataConfig
from .output_config import OutputConfig
from .overrides import apply_overrides
from .store_config import LocalStoreConfig, StoreConfig


class RunConfig(BaseModel):
    """A training run: data in, features, model and its optimizer, where rows live, how to train, what to leave behind.

    features: the feature map itself; a file may name the feature map's own file instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataConfig
    features: FeatureMapConfig
    model: ModelConfig = Field(default_factory=DeepFMConfig)
    optimizer: OptimizerConfig = OptimizerConfig()
    store: StoreConfig = LocalStoreConfig()
    train: TrainConfig = TrainConfig()
    output: OutputConfig = OutputConfig()

    def to_dict(self) -> dict[str, object]:
        """The whole configuration in plain dicts, lists and scalars, defaults spelt out; `from_dict` reads it back."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, data: object, source: str) -> RunConfig:
        """The configuration that `to_dict` gave. Raises: ConfigError naming `source` and path."""
        return validate(cls, data, source)


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a run file with overrides laid over it.

    Files of lookups are relative to the file that names them, the run file or the feature map's own.
    Raises: FileNotFoundError; ConfigError with one line a problem."""
    if path.is_dir():
        own = path / "config.yaml"
        hint = f"; its configuration is {own}" if own.exists() else ""
        raise ConfigError(f"expected a run file, got the folder {path}{hint}")
    data = apply_overrides(read_yaml(path), overrides)
    source = path
    if isinstance(data.get("features"), str):
        source = path.parent / str(data["features"])
        data["features"] = read_yaml(source)
    config = RunConfig.from_dict(data, str(path))
    config = config.model_copy(update={"features": with_absolute_files(config.features, source.parent)})
    try:
        features = FeatureMap.of(config.features)
        check_inputs(config.model, features)
    except (FeatureMapError, ModelSpecError) as error:
        raise ConfigError(f"{path}: $.features: {error}") from None
    if (problem := _label_problem(config, list(features.labels))) is not None:
        raise ConfigError(f"{path}: $.features.label: {problem}")
    if config.train.early_stop is not None and config.data.evaluate is None:
        raise ConfigError(f"{path}: $.train.early_stop: expected rows to evaluate ($.data.evaluate), got none")
    return config


def _label_problem(config: RunConfig, labels: list[str]) -> str | None:
    if not labels:
        return "expected a label column to train on, got none"
    if len(labels) == 1:
        return None
    if not isinstance(config.model, CustomModelConfig):
        return f"expected one label column, got {labels}: model {config.model.kind!r} gives one logit an example"
    if config.data.evaluate is not None:
        return f"expected one label column, got {labels}: $.data.evaluate measures one logit an example"
    return None
