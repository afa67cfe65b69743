"""Row optimizers: how a block's gradients change its weights and state. The NumPy definition of `native/optimizers.h`.

All arithmetic is float32 in the order written here, never fused; √ and ÷ are correctly rounded. Scalars that need more
(bias corrections, powers) are float64 and rounded once. So the native kernels give the same bits on every CPU.

Shapes: n rows of one block of d columns. w, g (n, d); state (n, s): the block's run of state columns, laid out as
`state_columns` lists them. A division by a denominator of 0 (eps 0, nothing accumulated) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .table_config import Adagrad, Adam, ColumnBlock, Ftrl, Momentum, Optimizer, Rmsprop, RowwiseAdagrad, RowwiseAdam
from .table_group import UpdateStep

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

GRADIENT_LIMIT = np.float32(1e15)
"""A row is refused unless every gradient component is within ±1e15: its square summed would leave float32."""

REDUCTION_LANES = 16


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a block: its optimizer, learning rate (lr·lr_scale) and the push's settings."""

    optimizer: Any
    lr: np.float32
    push: UpdateStep


def state_columns(block: ColumnBlock) -> tuple[tuple[str, int], ...]:
    """(name, width) of the block's state columns, in storage order; `last_step` is there with catch_up only."""
    d = block.dim
    columns: dict[str, tuple[tuple[str, int], ...]] = {
        "sgd": (),
        "momentum": (("momentum", d),),
        "adagrad": (("accumulator", d),),
        "rowwise_adagrad": (("accumulator", 1),),
        "adam": (("m", d), ("v", d), ("step", 1)),
        "adamw": (("m", d), ("v", d), ("step", 1)),
        "rowwise_adam": (("m", d), ("v", 1), ("step", 1)),
        "rmsprop": (("v", d),),
        "ftrl": (("z", d), ("n", d)),
    }
    last_step = (("last_step", 1),) if block.optimizer.catch_up else ()
    return columns[block.optimizer.kind] + last_step


def block_state_width(block: ColumnBlock) -> int:
    """State floats a row of the block."""
    return sum(width for _, width in state_columns(block))


def initial_state(block: ColumnBlock, w: F32) -> F32:
    """(n, s) float32 state of rows that start with weights `w`; `last_step` 0 means never touched."""
    optimizer = block.optimizer
    state = np.zeros((len(w), block_state_width(block)), np.float32)
    if isinstance(optimizer, Adagrad):
        state[:, : block.dim] = optimizer.initial_accumulator
    elif isinstance(optimizer, RowwiseAdagrad):
        state[:, 0] = optimizer.initial_accumulator
    elif isinstance(optimizer, Ftrl):
        state[:, : block.dim] = _ftrl_seat(optimizer, w, np.zeros_like(w))
    return state


def scaled_gradients(block: ColumnBlock, g: F32, step: UpdateStep) -> F32:
    """Gradients of the batch loss the optimizer sees: `sum` multiplies the mean's gradient by the examples."""
    with np.errstate(over="ignore", invalid="ignore"):
        return g * np.float32(step.examples) if block.optimizer.gradient == "sum" else g


def is_refused(g: F32) -> npt.NDArray[np.bool_]:
    """(n,) bool: rows with a component that is not finite or beyond `GRADIENT_LIMIT`."""
    with np.errstate(invalid="ignore"):
        return ~np.all(np.abs(g) <= GRADIENT_LIMIT, axis=1)


def update_block(block: ColumnBlock, w: F32, g: F32, state: F32, step: UpdateStep) -> tuple[F32, F32]:
    """New (w, state) after one step with `scaled_gradients` g; the arguments are left as they are.

    Order: clip by value, clip by norm, decay, the optimizer's formula, max_norm.
    Cost: one pass over w, g and state.
    """
    optimizer = block.optimizer
    w, state = w.copy(), state.copy()
    lr = np.float32(optimizer.lr) * np.float32(step.lr_scale)
    with np.errstate(under="ignore", over="ignore", divide="ignore", invalid="ignore"):
        if isinstance(optimizer, Ftrl):
            g = g * np.float32(step.lr_scale)
        g = _clip(optimizer, g)
        w_before = w
        w, g = _decay(_Step(optimizer, lr, step), w, g, state)
        if isinstance(optimizer, Ftrl) and w is not w_before:
            state[:, : block.dim] = _ftrl_seat(optimizer, w, state[:, block.dim : 2 * block.dim])
        w = _FORMULAS[optimizer.kind](_Step(optimizer, lr, step), w, g, state)
        if optimizer.max_norm is not None:
            scale = _norm_scale(w, optimizer.max_norm)
            w = w * scale
            if isinstance(optimizer, Ftrl):
                shrunk = scale[:, 0] != 1
                seated = _ftrl_seat(optimizer, w, state[:, block.dim : 2 * block.dim])
                state[shrunk, : block.dim] = seated[shrunk]
    return w, state


def sum_of_squares(x: F32) -> F32:
    """(n,) float32 Σ x² a row, in the kernels' order: column c adds to lane c mod 16, then the lanes fold by halves."""
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // REDUCTION_LANES) * REDUCTION_LANES), np.float32)
    padded[:, :columns] = x * x
    lanes = np.zeros((rows, REDUCTION_LANES), np.float32)
    for start in range(0, padded.shape[1], REDUCTION_LANES):
        lanes = lanes + padded[:, start : start + REDUCTION_LANES]
    width = REDUCTION_LANES
    while width > 1:
        width //= 2
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
    return lanes[:, 0]


def power(base: float | F64, exponent: npt.NDArray[np.int64]) -> F64:
    """float64 base**exponent by squaring, lowest bit first; exponents ≥ 0."""
    result = np.ones(exponent.shape, np.float64)
    square = np.broadcast_to(np.asarray(base, np.float64), exponent.shape).copy()
    rest = exponent.astype(np.int64)
    with np.errstate(under="ignore"):
        while rest.any():
            result = np.where(rest & 1, result * square, result)
            square = square * square
            rest = rest >> 1
    return result


def bias_correction(beta1: float, beta2: float, steps: npt.NDArray[np.int64]) -> F32:
    """(n,) float32 √(1 − β2^t) / (1 − β1^t), the factor on lr of Kingma 2015 §2 (last paragraph); t ≥ 1."""
    return (np.sqrt(1.0 - power(beta2, steps)) / (1.0 - power(beta1, steps))).astype(np.float32)


def _clip(optimizer: Optimizer, g: F32) -> F32:
    if optimizer.clip_value is not None:
        limit = np.float32(optimizer.clip_value)
        g = np.minimum(np.maximum(g, -limit), limit)
    if optimizer.clip_norm is not None:
        g = g * _norm_scale(g, optimizer.clip_norm)
    return g


def _norm_scale(x: F32, limit: float) -> F32:
    """(n, 1) factor that brings each row's norm down to `limit`; 1 where it is within."""
    norm = np.sqrt(sum_of_squares(x))
    return np.where(norm > np.float32(limit), np.float32(limit) / norm, np.float32(1))[:, None]


def _decay(step: _Step, w: F32, g: F32, state: F32) -> tuple[F32, F32]:
    """Decay of this step, and with catch_up first (1 − lr·wd) for each step the row was not touched in.

    l2: g + wd·w.   decoupled: w·(1 − lr·wd).   A row that was never touched has skipped no step.
    """
    optimizer, lr = step.optimizer, step.lr
    if optimizer.weight_decay_mode == "none":
        return w, g
    decay = np.float32(optimizer.weight_decay)
    factor = np.maximum(np.float32(1) - lr * decay, np.float32(0))
    if optimizer.catch_up:
        last = state[:, -1]
        skipped = np.where(
            last > 0, np.maximum(np.float32(step.push.step) - last - np.float32(1), np.float32(0)), np.float32(0)
        )
        state[:, -1] = np.maximum(last, np.float32(step.push.step))
        w = w * power(float(factor), skipped.astype(np.int64)).astype(np.float32)[:, None]
    if optimizer.weight_decay_mode == "l2":
        return w, g + decay * w
    return w * factor, g


def _quotient(numerator: F32, denominator: F32) -> F32:
    return np.where(denominator > 0, numerator / denominator, np.float32(0))


def _sgd(step: _Step, w: F32, g: F32, state: F32) -> F32:
    return w - step.lr * g


def _momentum(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """torch.optim.SGD with momentum, dampening 0."""
    optimizer: Momentum = step.optimizer
    beta, d = np.float32(optimizer.momentum), w.shape[1]
    state[:, :d] = beta * state[:, :d] + g
    direction = g + beta * state[:, :d] if optimizer.nesterov else state[:, :d]
    return w - step.lr * direction


def _adagrad(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """Duchi, Hazan, Singer 2011, diagonal form; eps outside the root."""
    optimizer: Adagrad = step.optimizer
    d = w.shape[1]
    state[:, :d] = state[:, :d] + g * g
    return w - _quotient(step.lr * g, np.sqrt(state[:, :d]) + np.float32(optimizer.eps))


def _rowwise_adagrad(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """FBGEMM exact_rowwise_adagrad: one accumulator a block, fed with the mean of squares."""
    optimizer: RowwiseAdagrad = step.optimizer
    state[:, 0] = state[:, 0] + sum_of_squares(g) / np.float32(w.shape[1])
    multiplier = _quotient(np.full(len(w), step.lr), np.sqrt(state[:, 0]) + np.float32(optimizer.eps))
    return w - multiplier[:, None] * g


def _adam(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """Kingma & Ba 2015 in the order of §2's last paragraph, as torch.optim.SparseAdam: lr·√(1−β2^t)/(1−β1^t)."""
    optimizer: Adam = step.optimizer
    d = w.shape[1]
    m, v = state[:, :d], state[:, d : 2 * d]
    m[:] = np.float32(optimizer.beta1) * m + np.float32(1 - optimizer.beta1) * g
    v[:] = np.float32(optimizer.beta2) * v + (np.float32(1 - optimizer.beta2) * g) * g
    rate = _corrected_rate(step, state[:, 2 * d])
    return w - _quotient(rate[:, None] * m, np.sqrt(v) + np.float32(optimizer.eps))


def _rowwise_adam(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """FBGEMM partial_rowwise_adam: the second moment is one number a block, of the mean of squares."""
    optimizer: RowwiseAdam = step.optimizer
    d = w.shape[1]
    m, v = state[:, :d], state[:, d]
    m[:] = np.float32(optimizer.beta1) * m + np.float32(1 - optimizer.beta1) * g
    mean_square = sum_of_squares(g) / np.float32(d)
    v[:] = np.float32(optimizer.beta2) * v + np.float32(1 - optimizer.beta2) * mean_square
    rate = _corrected_rate(step, state[:, d + 1])
    return w - _quotient(rate, np.sqrt(v) + np.float32(optimizer.eps))[:, None] * m


def _corrected_rate(step: _Step, steps: F32) -> F32:
    """(n,) lr times the bias correction; the row's step column counts in both modes."""
    steps[:] = steps + np.float32(1)
    optimizer: Adam | RowwiseAdam = step.optimizer
    by_row = optimizer.bias_correction == "row"
    t = steps.astype(np.int64) if by_row else np.full(len(steps), step.push.step, np.int64)
    return step.lr * bias_correction(optimizer.beta1, optimizer.beta2, t)


def _rmsprop(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """torch.optim.RMSprop, not centred, on touched rows only."""
    optimizer: Rmsprop = step.optimizer
    d = w.shape[1]
    state[:, :d] = np.float32(optimizer.alpha) * state[:, :d] + (np.float32(1 - optimizer.alpha) * g) * g
    return w - _quotient(step.lr * g, np.sqrt(state[:, :d]) + np.float32(optimizer.eps))


def _ftrl(step: _Step, w: F32, g: F32, state: F32) -> F32:
    """FTRL-Proximal, McMahan et al. 2013, algorithm 1. α is the block's own lr for a row's whole life (w is computed
    from z anew at each step, so a changed α would move weights by itself); a push's lr_scale scales its gradient."""
    optimizer: Ftrl = step.optimizer
    d = w.shape[1]
    z, n = state[:, :d], state[:, d : 2 * d]
    alpha, l1 = np.float32(optimizer.lr), np.float32(optimizer.l1)
    root_before = np.sqrt(n)
    n[:] = n + g * g
    root = np.sqrt(n)
    z[:] = (z + g) - ((root - root_before) / alpha) * w
    curvature = _ftrl_curvature(optimizer, root)
    inside = ~(np.abs(z) > l1) | ~(curvature > 0)
    return np.where(inside, np.float32(0), (np.copysign(l1, z) - z) / curvature)


def _ftrl_curvature(optimizer: Ftrl, root: F32) -> F32:
    return (np.float32(optimizer.beta) + root) / np.float32(optimizer.lr) + np.float32(optimizer.l2)


def _ftrl_seat(optimizer: Ftrl, w: F32, n: F32) -> F32:
    """z such that the formula gives `w` back: −(w·curvature) − sign(w)·l1; 0 for a weight of 0."""
    pull = w * _ftrl_curvature(optimizer, np.sqrt(n))
    return np.where(w == 0, np.float32(0), -pull - np.copysign(np.float32(optimizer.l1), w))


_FORMULAS: dict[str, Callable[[_Step, F32, F32, F32], F32]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "adamw": _adam,
    "rowwise_adam": _rowwise_adam,
    "rmsprop": _rmsprop,
    "ftrl": _ftrl,
}
