"""Errors of the models: one class per decision a caller can take."""

from __future__ import annotations


class FeatureMismatchError(ValueError):
    """A batch does not have the features that the embedding collection was made for."""


class StoreMismatchError(ValueError):
    """A state dict belongs to rows in another store; the message names both and the way out."""


class ModelSpecError(ValueError):
    """A model cannot be built of its configuration and the features, or gives no logits; the message says why."""


class DeviceError(ValueError):
    """torch does not have the device that was asked for; the message names it and says why."""


class StaleRowsError(RuntimeError):
    """Gradients that a store refused, since their rows had been pulled too long ago."""


class TrainingDivergedError(ArithmeticError):
    """The loss is not finite; the message names the step, the epoch and what to lower."""


class ResumeMismatchError(ValueError):
    """A checkpoint's cursor does not fit the run that would go on from it; the message names the setting."""


class TrainedBeforeError(RuntimeError):
    """The click log's batches were applied to this store before, so training them again changed nothing."""
