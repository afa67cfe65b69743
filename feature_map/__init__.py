"""Columns to 64-bit keys."""

from .batch import FeatureBatch
from .errors import (
    ColumnTypeError,
    ConfigError,
    FeatureMapChangeError,
    FeatureMapError,
    KeyCollisionError,
    LabelError,
    MissingColumnError,
    ValueEncodeError,
)
from .feature_config import (
    Bucketize,
    Categorical,
    Constant,
    Cross,
    CrossPart,
    EventTime,
    FeatureMapConfig,
    Group,
    Label,
    Lookup,
    Numeric,
    Sequence,
    SoftBuckets,
    TimePart,
)
from .feature_map import FeatureMap, FeatureTable

__all__ = [
    "Bucketize",
    "Categorical",
    "ColumnTypeError",
    "ConfigError",
    "Constant",
    "Cross",
    "CrossPart",
    "EventTime",
    "FeatureBatch",
    "FeatureMap",
    "FeatureMapChangeError",
    "FeatureMapConfig",
    "FeatureMapError",
    "FeatureTable",
    "Group",
    "KeyCollisionError",
    "Label",
    "LabelError",
    "Lookup",
    "MissingColumnError",
    "Numeric",
    "Sequence",
    "SoftBuckets",
    "TimePart",
    "ValueEncodeError",
]
