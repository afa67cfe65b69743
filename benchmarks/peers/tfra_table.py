"""Our table beside TFRA's CPU hash table and torch's sparse embedding bag: lookups and updates a second, one thread.

TFRA lives in an environment of its own (tensorflow-cpu==2.16.2, tf-keras==2.16.0, numpy<2,
tensorflow-recommenders-addons==0.8.1), so this file plays both parts and takes turns between them:

    python benchmarks/peers/tfra_table.py --python /path/to/that/environment/bin/python

Comparisons of updates on the same keys. The same work: ready values written, by TFRA's upsert and by our assign (a
table without optimizer state, as TFRA keeps none beside its rows); and an optimizer step with its lookup, SGD and
Adagrad, by TFRA's own DynamicEmbeddingOptimizer and by us. Then our update alone beside TFRA's upsert, which computes
nothing: it writes a row's weights, while an SGD step reads them too, and an Adagrad step reads and writes its
accumulators as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

ROWS, DIM, KEYS, CALLS, ROUNDS = 2_000_000, 16, 100_000, 20, 3


def rate(call: Callable[[int], object]) -> float:
    """Keys a second in the median of CALLS calls of KEYS keys, after one that is not timed."""
    call(0)
    seconds = []
    for index in range(CALLS):
        started = time.perf_counter()
        call(index)
        seconds.append(time.perf_counter() - started)
    return KEYS / float(np.median(seconds))


def draw_keys() -> tuple[np.ndarray, list[np.ndarray]]:
    """All keys, and the keys of each call (unique within a call)."""
    rng = np.random.default_rng(0)
    every = rng.choice(2**62, ROWS, replace=False).astype(np.int64)
    return every, [every[rng.choice(ROWS, KEYS, replace=False)] for _ in range(CALLS)]


def measure_ours() -> dict[str, float]:
    """Rates of lookup, Adagrad update, SGD update and assign of our native table."""
    import embershard as es
    from embershard.embedding import TableKeys, UpdateStep
    from embershard.embedding.native_table_group import NativeTableGroup

    every, calls = draw_keys()
    gradients = np.full(KEYS * DIM, 0.01, np.float32)
    once = np.ones(KEYS, np.uint32)
    requests = [TableKeys.of("t", keys.view(np.uint64)) for keys in calls]
    out = np.empty(KEYS * DIM, np.float32)
    rates: dict[str, float] = {}
    for verb, optimizer in (("adagrad_update", es.Adagrad()), ("sgd_update", es.Sgd())):
        group = NativeTableGroup(8, 1)
        group.ensure_table(es.TableConfig(name="t", blocks=(es.ColumnBlock(dim=DIM, optimizer=optimizer),)))
        for first in range(0, ROWS, KEYS):
            keys = TableKeys.of("t", every[first : first + KEYS].view(np.uint64))
            group.apply_gradients(keys, gradients, once, UpdateStep())
        rates.setdefault("lookup", rate(partial(_lookup, group, requests, out)))
        rates[verb] = rate(partial(_update, group, requests, gradients, once))
    rates["assign"] = rate(partial(_assign, group, requests, np.ones(KEYS * DIM, np.float32)))
    return rates


def _lookup(group: Any, requests: list[Any], out: np.ndarray, index: int) -> None:
    group.lookup(requests[index], "initial", out)


def _update(group: Any, requests: list[Any], gradients: np.ndarray, once: np.ndarray, index: int) -> None:
    from embershard.embedding import UpdateStep

    group.apply_gradients(requests[index], gradients, once, UpdateStep())


def _assign(group: Any, requests: list[Any], values: np.ndarray, index: int) -> None:
    if group.assign(requests[index], values) != KEYS:
        raise RuntimeError(f"expected {KEYS} rows to be set by call {index}")


def measure_torch() -> dict[str, float]:
    """Rate of a sparse embedding bag's lookup, backward and torch Adagrad step on ids numbered in advance."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.02)
    calls = [torch.from_numpy(rng.choice(ROWS, KEYS, replace=False)) for _ in range(CALLS)]
    offsets = torch.arange(KEYS)

    def step(index: int) -> None:
        optimizer.zero_grad()
        bag(calls[index], offsets).sum().backward()
        optimizer.step()

    return {"adagrad_step": rate(step)}


def measure_tfra() -> dict[str, float]:
    """Rates of lookup, upsert and whole optimizer steps of a TFRA dynamic embedding variable."""
    os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    every, calls = draw_keys()
    requests = [tf.constant(keys) for keys in calls]
    values = tf.ones((KEYS, DIM))
    rates: dict[str, float] = {}
    for name, base in (
        ("sgd_step", tf.keras.optimizers.legacy.SGD(0.02)),
        ("adagrad_step", tf.keras.optimizers.legacy.Adagrad(0.02)),
    ):
        table = tfra.dynamic_embedding.get_variable(
            name,
            key_dtype=tf.int64,
            value_dtype=tf.float32,
            dim=DIM,
            devices=["/CPU:0"],
            initializer=0.01,
            init_size=ROWS * 2,
        )
        for first in range(0, ROWS, KEYS):
            table.upsert(tf.constant(every[first : first + KEYS]), values)
        if "lookup" not in rates:
            rates["lookup"] = rate(partial(_tfra_lookup, table, requests))
            rates["upsert"] = rate(partial(_tfra_upsert, table, requests, values))
        optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(base)
        for index in range(CALLS):  # makes the rows of the optimizer's slots
            _tfra_step(table, optimizer, requests, index)
        rates[name] = rate(partial(_tfra_step, table, optimizer, requests))
    return rates


def _tfra_lookup(table: Any, requests: list[Any], index: int) -> None:
    table.lookup(requests[index])


def _tfra_upsert(table: Any, requests: list[Any], values: Any, index: int) -> None:
    table.upsert(requests[index], values)


def _tfra_step(table: Any, optimizer: Any, requests: list[Any], index: int) -> None:
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra

    with tf.GradientTape() as tape:
        rows, trainable = tfra.dynamic_embedding.embedding_lookup(
            table, requests[index], return_trainable=True, name=table.name.replace(":", "_") + "_rows"
        )
        loss = tf.reduce_sum(rows * 0.01)
    optimizer.apply_gradients([(tape.gradient(loss, trainable), trainable)])


PARTS = {"ours": measure_ours, "torch": measure_torch, "tfra": measure_tfra}


def run_part(python: str, part: str) -> dict[str, float]:
    """One part in a process of its own."""
    command = [python, __file__, "--part", part]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return dict(json.loads(output.strip().splitlines()[-1]))


def main() -> None:
    """Print the median rates of interleaved rounds and our ratios to the peers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--python", help="interpreter of the environment that has TFRA")
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part]()))
        return
    if not arguments.python:
        parser.error("expected --python of the environment that has TFRA")
    rounds = [
        {
            "ours": run_part(sys.executable, "ours"),
            "tfra": run_part(arguments.python, "tfra"),
            "torch": run_part(sys.executable, "torch"),
        }
        for _ in range(ROUNDS)
    ]

    def median(part: str, verb: str) -> float:
        return float(np.median([one[part][verb] for one in rounds]))

    def beside(ours: float, part: str, verb: str) -> dict[str, float]:
        return {"ours": ours, part: median(part, verb), "ratio": ours / median(part, verb)}

    lookup, adagrad, sgd = (median("ours", verb) for verb in ("lookup", "adagrad_update", "sgd_update"))
    adagrad_step, sgd_step = (1 / (1 / lookup + 1 / update) for update in (adagrad, sgd))
    report = {
        "rows": ROWS,
        "dim": DIM,
        "keys_per_call": KEYS,
        "lookup": beside(lookup, "tfra", "lookup"),
        "assign_beside_upsert": beside(median("ours", "assign"), "tfra", "upsert"),
        "adagrad_step": beside(adagrad_step, "tfra", "adagrad_step"),
        "sgd_step": beside(sgd_step, "tfra", "sgd_step"),
        "adagrad_update_beside_upsert": beside(adagrad, "tfra", "upsert"),
        "sgd_update_beside_upsert": beside(sgd, "tfra", "upsert"),
        "embedding_bag_adagrad_step": beside(adagrad_step, "torch", "adagrad_step"),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
