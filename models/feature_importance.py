"""How much a trained model owes to each feature: the AUC it loses without it, and what its gradients say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..feature_map.batch import FeatureBatch
from ..feature_map.feature_config import Numeric
from ..feature_map.feature_map import FeatureMap
from .embedding_collection import EmbeddingCollection
from .evaluation import evaluate, evaluation_mode, loss_of
from .tensor_batch import TensorBatch


@dataclass(frozen=True, slots=True)
class FeatureImportance:
    """One feature of a trained model.

    auc_loss:        AUC that is lost when the feature's values are dealt anew among the examples of each batch.
    gradient_signal: Σ |weight · ∂loss/∂weight| over the feature's rows, summed over the batches and divided by their
                     number: to first order, the loss that the rows' weights account for (Molchanov 2019, eq. 8).
                     Features that share a table share it; None for numeric features.
    """

    feature: str
    auc_loss: float
    gradient_signal: float | None


def feature_importance(
    model: nn.Module,
    embeddings: EmbeddingCollection,
    features: FeatureMap,
    batches: Sequence[FeatureBatch],
    *,
    seed: int = 0,
) -> list[FeatureImportance]:
    """All features, the one whose loss costs most AUC first. Nothing is trained and no table grows.

    batches: with labels, held in memory; the larger they are, the better the values are mixed.
    Cost: one pass a feature, and one with a backward pass.   Raises: ValueError for batches without labels."""
    whole = evaluate(model, embeddings, batches).auc
    signals = _gradient_signals(model, embeddings, batches)
    found: list[FeatureImportance] = []
    column = 0
    for feature in features.features:
        random = np.random.default_rng([seed, len(found)])
        if feature.name in batches[0].features:
            dealt = [_deal_keys(batch, feature.name, random) for batch in batches]
            signal = signals[embeddings.layout.slots[feature.name].table]
        else:
            stop = column + (feature.output_width if isinstance(feature, Numeric) else 0)
            dealt = [_deal_columns(batch, slice(column, stop), random) for batch in batches]
            column, signal = stop, None
        auc = evaluate(model, embeddings, dealt).auc
        found.append(FeatureImportance(feature.name, whole - auc, signal))
    return sorted(found, key=lambda one: -one.auc_loss)


def _deal_keys(batch: FeatureBatch, feature: str, random: np.random.Generator) -> FeatureBatch:
    """The batch with the feature's bags dealt anew among its examples."""
    index = batch.features.index(feature)
    first = index * batch.size
    starts, lengths = batch.offsets[first : first + batch.size], batch.bag_lengths(feature)
    order = random.permutation(batch.size)
    dealt_lengths = lengths[order]
    ends = np.cumsum(dealt_lengths)
    place = np.arange(int(ends[-1]) if batch.size else 0) - np.repeat(ends - dealt_lengths, dealt_lengths)
    source = np.repeat(starts[order], dealt_lengths) + place
    here = batch.feature_slice(index)
    keys, offsets = batch.keys.copy(), batch.offsets.copy()
    keys[here] = batch.keys[source]
    offsets[first + 1 : first + batch.size + 1] = here.start + ends
    weights = batch.weights
    if weights is not None:
        weights = weights.copy()
        weights[here] = batch.weights[source]  # type: ignore[index]
    return replace(batch, keys=keys, offsets=offsets, weights=weights, id=None)


def _deal_columns(batch: FeatureBatch, columns: slice, random: np.random.Generator) -> FeatureBatch:
    """The batch with the rows of some dense columns dealt anew among its examples."""
    dense: npt.NDArray[np.float32] = batch.dense.copy()
    dense[:, columns] = batch.dense[random.permutation(batch.size), columns]
    return replace(batch, dense=dense, id=None)


def _gradient_signals(
    model: nn.Module, embeddings: EmbeddingCollection, batches: Sequence[FeatureBatch]
) -> dict[str, float]:
    totals = dict.fromkeys(embeddings.layout.tables, 0.0)
    with evaluation_mode(model, embeddings):
        for batch in batches:
            output = embeddings(batch)
            output.rows.require_gradients()
            tensors = TensorBatch.of(batch, embeddings.transfer)
            loss = loss_of(model(output, tensors.dense), tensors)
            leaves = output.rows.leaves
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
            splits = output.rows.unique.keys.splits
            for group, start, leaf, gradient in zip(
                embeddings.layout.groups, output.rows.row_starts, leaves, gradients, strict=True
            ):
                if gradient is None:
                    continue
                signal = (leaf.detach() * gradient).abs().sum(dim=1)
                for table in range(group.first_table, group.first_table + group.table_count):
                    rows = slice(int(splits[table]) - start, int(splits[table + 1]) - start)
                    totals[embeddings.layout.tables[table]] += float(signal[rows].sum())
    return {table: total / len(batches) for table, total in totals.items()}
