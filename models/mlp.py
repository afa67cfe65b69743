"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int = 1, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers of widths `hidden`, ReLU (and dropout) after each, then a linear layer to `outputs`."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU(inplace=True)]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
