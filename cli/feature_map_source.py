"""The feature map behind a path: its own file, a run's configuration, or a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..feature_map.config_file import read_yaml
from .checkpoint_source import checkpoint_in
from .errors import UsageError

if TYPE_CHECKING:
    from ..feature_map import FeatureMap


def load_feature_map(path: Path) -> FeatureMap:
    """The feature map in a YAML file, in the `features:` section of a run's configuration, or in a checkpoint
    (of a run's folder: its best one).

    Raises: UsageError, ConfigError, FeatureMapError, CorruptCheckpointError; each names the path."""
    from ..feature_map import FeatureMap

    if path.is_dir():
        found = checkpoint_in(path)
        return FeatureMap.from_dict(_of_checkpoint(found), str(found))
    data = read_yaml(path)
    section = data.get("features")
    if isinstance(section, list):
        return FeatureMap.from_dict(data, str(path))
    return section_feature_map(section, path)


def section_feature_map(section: object, config: Path) -> FeatureMap:
    """The feature map of a run's `features:` section: the map itself, or the name of its file beside `config`."""
    from ..feature_map import FeatureMap

    if isinstance(section, str):
        return FeatureMap.load(config.parent / section)
    if section is None:
        raise UsageError(f"{config}: expected a run file or a feature map with features, got neither")
    if not isinstance(section, dict):
        raise UsageError(f"{config}: expected a feature map at $.features, got {section!r}")
    return FeatureMap.from_dict(section, f"{config} ($.features)", config.parent)


def _of_checkpoint(path: Path) -> dict[str, object]:
    from ..embedding.checkpoint import open_checkpoint

    with open_checkpoint(path, verify="sizes") as checkpoint:
        features = checkpoint.manifest.feature_map
    if not isinstance(features, dict):
        raise UsageError(f"expected a checkpoint with a feature map, got {path} without one")
    return cast("dict[str, object]", features)
