"""The run file: one YAML file that says all of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..feature_map.config_file import read_yaml, validate
from ..feature_map.feature_config import FeatureMapConfig
from ..models.config import DeepFMConfig, ModelConfig, OptimizerConfig, TrainConfig
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

    Raises: FileNotFoundError; ConfigError with one line a problem."""
    data = apply_overrides(read_yaml(path), overrides)
    if isinstance(data.get("features"), str):
        data["features"] = read_yaml(path.parent / str(data["features"]))
    return RunConfig.from_dict(data, str(path))
