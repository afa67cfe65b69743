"""Our rows beside FBGEMM's CPU tables: equal weights, 200 batches with duplicates, adagrad and rowwise adagrad.

FBGEMM lives in an environment of its own, so this file plays both parts: `--write FOLDER` (our environment) draws the
batches, trains our table and saves both; `--check FOLDER` (FBGEMM's environment) trains FBGEMM on the same batches and
compares weights and state. Without arguments it does both, given `--python` of the other environment:

    pip install torch==2.13.0 numpy && pip install --no-deps fbgemm-gpu-cpu==1.8.0
    python benchmarks/peers/fbgemm_parity.py --python /path/to/that/environment/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROWS, DIM, BATCHES, VALUES, LR, EPS = 5000, 16, 200, 4096, 0.05, 1e-8
OPTIMIZERS = ("adagrad", "rowwise_adagrad")
TOLERANCE = 1e-6


def write(folder: Path) -> None:
    """Batches, start weights and our final rows, as .npy files."""
    import embershard as es
    from embershard.embedding import TableKeys, UpdateStep
    from embershard.embedding.native_table_group import NativeTableGroup

    rng = np.random.default_rng(0)
    start = rng.uniform(-0.1, 0.1, (ROWS, DIM)).astype(np.float32)
    ids = (ROWS * rng.random((BATCHES, VALUES)) ** 2).astype(np.int64)  # hot ids stand many times in a batch
    # Multiples of 2^-16, so that summing duplicates is exact in any order and only the optimizers are compared.
    gradients = (np.round(rng.normal(0, 0.01, (BATCHES, VALUES, DIM)) * 65536) / 65536).astype(np.float32)
    for name, array in (("start", start), ("ids", ids), ("gradients", gradients)):
        np.save(folder / f"{name}.npy", array)
    all_keys = np.arange(ROWS, dtype=np.uint64)
    for name in OPTIMIZERS:
        kind = es.Adagrad if name == "adagrad" else es.RowwiseAdagrad
        block = es.ColumnBlock(dim=DIM, optimizer=kind(lr=LR, eps=EPS))
        group = NativeTableGroup(8, 1)
        group.ensure_table(es.TableConfig(name="t", blocks=(block,)))
        group.assign(TableKeys.of("t", all_keys), start.reshape(-1))
        truth, state = start.astype(np.float64), np.zeros((ROWS, DIM))
        for batch in range(BATCHES):
            unique, inverse = np.unique(ids[batch], return_inverse=True)
            summed = np.zeros((len(unique), DIM), np.float32)
            np.add.at(summed, inverse.reshape(-1), gradients[batch])
            occurrences = np.bincount(inverse.reshape(-1)).astype(np.uint32)
            keys = TableKeys.of("t", unique.astype(np.uint64))
            group.apply_gradients(keys, summed.reshape(-1), occurrences, UpdateStep(step=batch + 1))
            squares = summed.astype(np.float64) ** 2
            state[unique] += squares if name == "adagrad" else squares.mean(1, keepdims=True)
            truth[unique] -= LR * summed / (np.sqrt(state[unique]) + EPS)
        np.save(folder / f"truth_{name}.npy", truth)
        np.save(folder / f"ours_{name}.npy", group.lookup(TableKeys.of("t", all_keys)).reshape(ROWS, DIM))


def check(folder: Path) -> list[dict[str, object]]:
    """‖ours − theirs‖ / ‖rows‖ for each optimizer, and how far each of the two is from the formula in float64."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    start, ids, gradients = (np.load(folder / f"{name}.npy") for name in ("start", "ids", "gradients"))
    kinds = {"adagrad": EmbOptimType.EXACT_ADAGRAD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    results: list[dict[str, object]] = []
    for name in OPTIMIZERS:
        table = SplitTableBatchedEmbeddingBagsCodegen(
            [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=kinds[name],
            learning_rate=LR,
            eps=EPS,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.FATAL,
        )
        table.split_embedding_weights()[0].copy_(torch.from_numpy(start))
        offsets = torch.arange(VALUES + 1)
        for batch in range(BATCHES):
            output = table(torch.from_numpy(ids[batch]), offsets)
            output.backward(torch.from_numpy(gradients[batch]))
        theirs = table.split_embedding_weights()[0].detach().numpy()
        ours = np.load(folder / f"ours_{name}.npy")
        truth = np.load(folder / f"truth_{name}.npy")
        result: dict[str, object] = {"optimizer": name, "batches": BATCHES}
        for label, one, other in (
            ("ours_to_fbgemm", ours, theirs),
            ("ours_to_float64", ours, truth),
            ("fbgemm_to_float64", theirs, truth),
        ):
            result[label] = float(np.linalg.norm(one - other) / np.linalg.norm(truth))
        results.append(result)
    return results


def main() -> int:
    """0 if every optimizer agrees within the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--python", help="interpreter of the environment that has fbgemm_gpu")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write)
        return 0
    if arguments.check:
        print(json.dumps(check(arguments.check)))
        return 0
    if not arguments.python:
        parser.error("expected --python of the environment that has fbgemm_gpu")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        command = [arguments.python, __file__, "--check", folder]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout
    results = json.loads(output.strip().splitlines()[-1])
    print(json.dumps(results, indent=2))
    return 0 if all(result["ours_to_fbgemm"] <= TOLERANCE for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
