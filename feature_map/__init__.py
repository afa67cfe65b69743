"""Columns to 64-bit keys."""

from .batch import FeatureBatch
from .errors import (
    ColumnTypeError,
    ConfigError,
    FeatureMapChangeError,
    FeatureMapError,
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
from .feature_profile import FeatureProfile, profile_features
from .grouping import GroupingReport, group_features
from .learned_statistics import learn_statistics
from .value_dictionary import ValueDictionary
from .value_files import merge_values

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
    "FeatureProfile",
    "FeatureTable",
    "Group",
    "GroupingReport",
    "Label",
    "LabelError",
    "Lookup",
    "MissingColumnError",
    "Numeric",
    "Sequence",
    "SoftBuckets",
    "TimePart",
    "ValueDictionary",
    "ValueEncodeError",
    "group_features",
    "learn_statistics",
    "merge_values",
    "profile_features",
]
