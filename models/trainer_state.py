"""TrainerState: all of a training run but the rows, as named arrays and JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..embedding.errors import CheckpointMismatchError

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a checkpoint keeps beside rows.

    step:    batches trained.
    cursor:  JSON: run, epoch, unit (its place in the epoch's order), batch: what comes next.
    scalars: JSON: metrics and learning rates.
    name:    of the checkpoint that holds it and the rows as they are; None where it has to be saved first.
    dense:   model/… parameters and buffers, optimizer/… state of the dense optimizer, random/torch generator state.
    """

    step: int
    cursor: dict[str, Any]
    scalars: dict[str, Any] = field(default_factory=dict)
    dense: dict[str, Array] = field(default_factory=dict)
    name: str | None = None


def dense_arrays(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Array]:
    """Parameters and buffers, dense optimizer state and the random generator's state by name; copies.

    bfloat16 tensors are given as their uint16 bit pattern under a name that ends in `:bfloat16`."""
    arrays: dict[str, Array] = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            _put(arrays, f"model/{name}", tensor)
    if optimizer is not None:
        for number, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
                _put(arrays, f"optimizer/{number}/{name}", tensor)
    _put(arrays, "random/torch", torch.get_rng_state())
    return arrays


def load_dense_arrays(arrays: Mapping[str, Array], model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Put back what `dense_arrays` gave. Raises: CheckpointMismatchError naming a parameter that does not fit."""
    tensors = dict(_tensor(name, array) for name, array in arrays.items())
    own = {f"model/{name}": value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    saved = {name for name in tensors if name.startswith("model/")}
    if saved != set(own):
        raise CheckpointMismatchError(
            f"expected dense parameters {sorted(own)}, got {sorted(saved)}: the checkpoint is of another model"
        )
    for name, value in own.items():
        if tensors[name].shape != value.shape:
            raise CheckpointMismatchError(
                f"expected {name} of shape {tuple(value.shape)}, got {tuple(tensors[name].shape)}"
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])
    if optimizer is not None:
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, number, key = name.split("/")
                state.setdefault(int(number), {})[key] = tensor
        _check_optimizer(optimizer, state)
        # Learning rates and the like stay as configured now; only moments and step counts are a run's state.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    if "random/torch" in tensors:
        torch.set_rng_state(tensors["random/torch"])


_STATE_NAMES: Mapping[type[torch.optim.Optimizer], frozenset[str]] = {
    torch.optim.Adam: frozenset({"exp_avg", "exp_avg_sq", "step"}),
    torch.optim.AdamW: frozenset({"exp_avg", "exp_avg_sq", "step"}),  # no Adam in older versions of torch
    torch.optim.Adagrad: frozenset({"sum", "step"}),
    torch.optim.SGD: frozenset({"momentum_buffer"}),
}


def _check_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
    """Raises: CheckpointMismatchError for the state of another optimizer, which it would not know what to do with."""
    for kind, names in _STATE_NAMES.items():
        strange = {name for of_parameter in state.values() for name in of_parameter} - names
        if isinstance(optimizer, kind) and (strange or any(set(one) < names for one in state.values() if one)):
            found = sorted({name for of_parameter in state.values() for name in of_parameter})
            raise CheckpointMismatchError(
                f"expected state {sorted(names)} of dense optimizer {type(optimizer).__name__}, got {found}: the "
                "checkpoint is of another one; resume with the optimizer.dense it was trained with"
            )


def _put(arrays: dict[str, Array], name: str, tensor: torch.Tensor) -> None:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        arrays[f"{name}:bfloat16"] = tensor.view(torch.uint16).numpy().copy()
    else:
        arrays[name] = tensor.numpy().copy()


def _tensor(name: str, array: Array) -> tuple[str, torch.Tensor]:
    tensor = torch.from_numpy(np.array(array))
    if name.endswith(":bfloat16"):
        return name.removesuffix(":bfloat16"), tensor.view(torch.bfloat16)
    return name, tensor
