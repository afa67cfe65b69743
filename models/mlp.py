"""Multi-layer perceptron."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int = 1, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers of widths `hidden`, ReLU (and dropout) after each, then a linear layer to `outputs`."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_linear(inputs, width), nn.ReLU(inplace=True)]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    with warnings.catch_warnings():
        # Without inputs only the bias is left, which torch warns of: all that a model began with can be taken away.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors", UserWarning)
        return nn.Linear(inputs, outputs)
