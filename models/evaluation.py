"""Evaluate and predict: passes that change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..feature_map.batch import FeatureBatch
from .embedding_collection import EmbeddingCollection
from .errors import ModelSpecError
from .metrics import Metrics, measure
from .prefetch_pipeline import prefetch
from .tensor_batch import TensorBatch


@dataclass(frozen=True, slots=True)
class Prediction:
    """One batch's answer: logits (B,) float32, and the batch."""

    logits: npt.NDArray[np.float32]
    batch: FeatureBatch

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(B,) click probabilities."""
        # By the side on which nothing overflows.
        small = np.exp(-np.abs(self.logits.astype(np.float64)))
        return np.where(self.logits >= 0, 1.0, small) / (1.0 + small)


def predict(
    model: nn.Module, embeddings: EmbeddingCollection, batches: Iterable[FeatureBatch], depth: int = 1
) -> Iterator[Prediction]:
    """Predictions batch by batch, in order; unseen keys read the tables' `unseen` vector and no table grows.

    model: takes (EmbeddingOutput, dense (B, W)), gives (B,) logits. Both modules are back in their mode at the end.
    Raises: ModelSpecError for other logits; what reading and the store raise."""
    with evaluation_mode(model, embeddings):
        for batch, inputs in prefetch(batches, embeddings, depth):
            with torch.no_grad():
                logits = model(inputs, batch.dense)
            if logits.numel() != len(batch):
                raise ModelSpecError(f"expected logits of shape ({len(batch)},), got {tuple(logits.shape)}")
            yield Prediction(logits.detach().float().cpu().numpy().reshape(len(batch)), batch.features)


def evaluate(model: nn.Module, embeddings: EmbeddingCollection, batches: Iterable[FeatureBatch]) -> Metrics:
    """Exact metrics over all batches; `auc` is NaN with a note where it is not defined. An example weighs 1 by default.

    Raises: ValueError for a batch without labels; ModelSpecError for several labels."""
    logits, labels, weights, is_weighted = [], [], [], False
    for prediction in predict(model, embeddings, batches):
        batch = prediction.batch
        if batch.label is None:
            raise ValueError("expected batches with labels to evaluate, got one without")
        if batch.label.ndim != 1:
            raise ModelSpecError(f"expected one label to evaluate by, got {batch.label.shape[1]}")
        logits.append(prediction.logits)
        labels.append(batch.label)
        is_weighted = is_weighted or batch.example_weight is not None
        weights.append(np.ones(batch.size, np.float32) if batch.example_weight is None else batch.example_weight)
    if not logits:
        return measure(np.empty(0, np.float32), np.empty(0, np.float32))
    return measure(np.concatenate(logits), np.concatenate(labels), np.concatenate(weights) if is_weighted else None)


@contextmanager
def evaluation_mode(model: nn.Module, embeddings: EmbeddingCollection) -> Iterator[None]:
    """Both modules in evaluation mode; afterwards each of their modules is back in its own, frozen ones too."""
    roots = [(root, root.training) for root in (model, embeddings)]
    before = [(module, module.training) for root, _ in roots for module in root.modules()]
    for root, _ in roots:
        root.eval()
    try:
        yield
    finally:
        for root, training in roots:
            root.train(training)  # which modules of one's own may have more to do in
        for module, training in before:
            module.training = training


def loss_of(logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
    """Mean binary cross-entropy of a batch, weighted by its example weights. Raises: ValueError where shapes differ."""
    if batch.label is None:
        raise ValueError("expected a batch with labels to train on, got one without")
    if logits.shape != batch.label.shape:
        raise ValueError(f"expected logits of the labels' shape {tuple(batch.label.shape)}, got {tuple(logits.shape)}")
    if batch.example_weight is None:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.label)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.label, reduction="none")
    total = batch.example_weight.sum()
    return (losses * batch.example_weight).sum() / torch.where(total > 0, total, torch.ones_like(total))
