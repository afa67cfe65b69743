"""What features learn from a click log before they can be encoded: means, ranges, quantiles."""

from __future__ import annotations

from ..datasets.click_log import ClickLog
from ..feature_map import FeatureMap
from ..feature_map.learned_statistics import StatisticsLearner


def with_statistics(features: FeatureMap, log: ClickLog, batch_rows: int) -> FeatureMap:
    """The feature map with what its features learn from the log, which is read where one of them learns.

    Raises: as `learn_statistics`, with file and row of a number that cannot be read."""
    if not features.unlearned:
        return features
    learner = StatisticsLearner(features)
    for numbers in log.batches(learner, batch_rows, epoch=0):
        learner.add(numbers)
    return learner.learned()
