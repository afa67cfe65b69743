"""Rows after 200 pushes against torch.optim, and against float64 definitions of what torch has no sparse form of.

A batch names keys more than once. Its gradients are multiples of 2^-16, so the sum over a key's occurrences is exact in
any order, and what is compared is the optimizers alone. Errors are relative to how far the rows moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from embershard.embedding.native_table_group import NativeTableGroup
from embershard.embedding.table_config import (
    Adagrad,
    Adam,
    AdamW,
    ColumnBlock,
    Ftrl,
    Initializer,
    Momentum,
    Normal,
    Optimizer,
    Rmsprop,
    Sgd,
    TableConfig,
    Zeros,
)
from embershard.embedding.table_group import TableKeys, UpdateStep

DIM, ROWS, BATCHES = 10, 60, 200
KEYS = np.random.default_rng(1).integers(0, 2**64, ROWS, np.uint64)
RELATIVE = 1e-6


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(numbers of rows, gradients) of each occurrence: few rows often, many rarely."""
    rng = np.random.default_rng(2)
    for _ in range(BATCHES):
        rows = np.minimum(rng.zipf(1.3, 40), ROWS).astype(np.int64) - 1
        yield rows, (rng.integers(-(2**16), 2**16, (40, DIM)) * 2.0**-16).astype(np.float32)


def summed(rows: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows and the sum of each one's gradients."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    total = np.zeros((len(distinct), DIM), np.float32)
    np.add.at(total, inverse, gradients)
    return distinct, total


def trained(optimizer: Optimizer, initializer: Initializer | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(ROWS, DIM) weights of the native group before and after all batches."""
    block = ColumnBlock(dim=DIM, optimizer=optimizer, initializer=initializer or Normal(std=0.5))
    group = NativeTableGroup(tablet_bits=2)
    group.ensure_table(TableConfig(name="user", blocks=(block,)))
    every = TableKeys.of("user", KEYS)
    start = group.lookup(every).reshape(ROWS, DIM)
    for step, (rows, gradients) in enumerate(batches(), start=1):
        distinct, total = summed(rows, gradients)
        occurrences = np.bincount(rows, minlength=ROWS)[distinct].astype(np.uint32)
        request = TableKeys.of("user", KEYS[distinct])
        update = group.apply_gradients(request, total.ravel(), occurrences, UpdateStep(step=step)).tables["user"]
        assert update.applied == len(distinct)
    return start, group.lookup(every).reshape(ROWS, DIM)


def assert_moved_alike(start: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
    moved = np.linalg.norm(theirs.astype(np.float64) - start)
    apart = np.linalg.norm(ours.astype(np.float64) - theirs)
    assert moved > 0.1 * np.linalg.norm(start)
    assert apart <= RELATIVE * moved


def torch_sparse(start: np.ndarray, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> np.ndarray:
    """Weights after all batches through a sparse embedding; a batch's loss is the sum over its occurrences."""
    embedding = torch.nn.Embedding.from_pretrained(torch.tensor(start), freeze=False, sparse=True)
    optimizer = make([embedding.weight])
    with torch.sparse.check_sparse_tensor_invariants(True):  # unless chosen, torch warns that it is off
        for rows, gradients in batches():
            optimizer.zero_grad()
            (embedding(torch.from_numpy(rows)) * torch.from_numpy(gradients)).sum().backward()
            optimizer.step()
    return embedding.weight.detach().numpy()


def torch_by_row(start: np.ndarray, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> np.ndarray:
    """Weights after all batches with each row a parameter of its own: rows without gradient are not stepped."""
    parameters = [torch.tensor(row, requires_grad=True) for row in start]
    optimizer = make(parameters)
    for rows, gradients in batches():
        optimizer.zero_grad(set_to_none=True)
        for row, total in zip(*summed(rows, gradients), strict=True):
            parameters[row].grad = torch.from_numpy(total)
        optimizer.step()
    return np.stack([parameter.detach().numpy() for parameter in parameters])


def test_sgd_is_torchs() -> None:
    start, ours = trained(Sgd(lr=0.1))
    assert_moved_alike(start, ours, torch_sparse(start, lambda parameters: torch.optim.SGD(parameters, lr=0.1)))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_torchs_on_touched_rows(nesterov: bool) -> None:
    start, ours = trained(Momentum(lr=0.05, momentum=0.8, nesterov=nesterov))
    theirs = torch_by_row(start, lambda rows: torch.optim.SGD(rows, lr=0.05, momentum=0.8, nesterov=nesterov))
    assert_moved_alike(start, ours, theirs)


@pytest.mark.parametrize("accumulator", [0.0, 0.1])
def test_adagrad_is_torchs(accumulator: float) -> None:
    start, ours = trained(Adagrad(lr=0.2, eps=1e-8, initial_accumulator=accumulator))
    theirs = torch_sparse(
        start, lambda table: torch.optim.Adagrad(table, lr=0.2, eps=1e-8, initial_accumulator_value=accumulator)
    )
    assert_moved_alike(start, ours, theirs)


def test_adam_with_request_steps_is_torchs_sparse_adam() -> None:
    start, ours = trained(Adam(lr=0.05, beta1=0.8, beta2=0.99, eps=1e-6, bias_correction="request"))
    theirs = torch_sparse(start, lambda table: torch.optim.SparseAdam(table, lr=0.05, betas=(0.8, 0.99), eps=1e-6))
    assert_moved_alike(start, ours, theirs)


def test_adam_with_row_steps_is_torchs_dense_adam_on_touched_rows() -> None:
    """torch's Adam adds eps after the correction of the root, ours before; at eps 1e-12 they are the same formula."""
    start, ours = trained(Adam(lr=0.05, beta1=0.8, beta2=0.99, eps=1e-12))
    theirs = torch_by_row(start, lambda rows: torch.optim.Adam(rows, lr=0.05, betas=(0.8, 0.99), eps=1e-12))
    assert_moved_alike(start, ours, theirs)


def test_rmsprop_is_torchs_on_touched_rows() -> None:
    start, ours = trained(Rmsprop(lr=0.02, alpha=0.9, eps=1e-7))
    theirs = torch_by_row(start, lambda rows: torch.optim.RMSprop(rows, lr=0.02, alpha=0.9, eps=1e-7))
    assert_moved_alike(start, ours, theirs)


@pytest.mark.parametrize("initializer", [Zeros(), Normal(std=0.5)])
def test_ftrl_is_its_float64_definition(initializer: Initializer) -> None:
    """McMahan et al. 2013, algorithm 1; a row that does not start at 0 starts with the z that gives its weight."""
    alpha, beta, l1, l2 = 0.3, 0.7, 0.4, 0.05
    start, ours = trained(Ftrl(lr=alpha, beta=beta, l1=l1, l2=l2), initializer)
    w = start.astype(np.float64)
    n = np.zeros_like(w)
    z = -w * (beta / alpha + l2) - np.sign(w) * l1
    for rows, gradients in batches():
        at, g = summed(rows, gradients)
        sigma = (np.sqrt(n[at] + g.astype(np.float64) ** 2) - np.sqrt(n[at])) / alpha
        z[at] += g - sigma * w[at]
        n[at] += g.astype(np.float64) ** 2
        moved = -(z[at] - np.sign(z[at]) * l1) / ((beta + np.sqrt(n[at])) / alpha + l2)
        w[at] = np.where(np.abs(z[at]) <= l1, 0.0, moved)
    assert (w == 0).any()
    assert np.array_equal(ours == 0, w == 0)
    assert_moved_alike(start, ours, w)


def test_adamw_is_its_float64_definition() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, with the moments' correction in Kingma & Ba 2015 §2's last form."""
    lr, beta1, beta2, eps, decay = 0.05, 0.8, 0.99, 1e-6, 0.1
    start, ours = trained(AdamW(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay))
    w = start.astype(np.float64)
    m, v, t = np.zeros_like(w), np.zeros_like(w), np.zeros(ROWS)
    for rows, gradients in batches():
        at, g = summed(rows, gradients)
        t[at] += 1
        m[at] = beta1 * m[at] + (1 - beta1) * g
        v[at] = beta2 * v[at] + (1 - beta2) * g.astype(np.float64) ** 2
        rate = lr * np.sqrt(1 - beta2 ** t[at]) / (1 - beta1 ** t[at])
        w[at] = w[at] - lr * decay * w[at] - rate[:, None] * m[at] / (np.sqrt(v[at]) + eps)
    assert_moved_alike(start, ours, w)
