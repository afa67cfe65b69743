"""TensorFlow ParameterServerStrategy on the benchmark job: one parameter server, one worker, one coordinator.

DeepFM of 26 × 16 with an MLP 256-128 at batch 4,096; Adagrad on the touched rows, SGD on the dense side. Tables are
static and ids are numbered in advance, untimed, since TensorFlow has no dynamic table here.
Run by parameter_servers.py; prints one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import numpy as np
from click_columns import read_clicks

DIM, BATCH, FIELDS, DENSE = 16, 4096, 26, 13
LAYERS = (FIELDS * DIM + DENSE, 256, 128, 1)
ROW_LR, DENSE_LR = 0.02, 0.05


def free_address() -> str:
    """A loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def serve(cluster: dict[str, list[str]], job: str) -> None:
    """One TensorFlow server process; runs until it is killed."""
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=0, protocol="grpc").join()


def train(path: Path, cluster: dict[str, list[str]]) -> dict[str, object]:
    """Examples a second over the file, after one step that is not timed."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    clicks = read_clicks(path)
    numbered, rows = clicks.numbered()
    folder = tempfile.mkdtemp()
    for name, array in (("ids", numbered), ("dense", clicks.dense), ("label", clicks.label)):
        np.save(f"{folder}/{name}.npy", array)
    with strategy.scope():
        table = tf.Variable(tf.random.uniform([rows, DIM], -0.01, 0.01))
        squares = tf.Variable(tf.zeros([rows, DIM]))
        weights = [
            tf.Variable(tf.random.normal([fan_in, fan_out], stddev=(2 / fan_in) ** 0.5))
            for fan_in, fan_out in itertools.pairwise(LAYERS)
        ]
        biases = [tf.Variable(tf.zeros([width])) for width in LAYERS[1:]]

    def batches() -> object:
        arrays = tuple(np.load(f"{folder}/{name}.npy") for name in ("ids", "dense", "label"))
        return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH).repeat().prefetch(2)

    @tf.function
    def step(iterator: object) -> object:
        ids, dense, label = next(iterator)  # type: ignore[call-overload]
        unique, inverse = tf.unique(tf.reshape(ids, [-1]))
        rows_pulled = tf.gather(table, unique)
        with tf.GradientTape() as tape:
            tape.watch(rows_pulled)
            vectors = tf.reshape(tf.gather(rows_pulled, inverse), [-1, FIELDS, DIM])
            total = tf.reduce_sum(vectors, 1)
            interactions = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(vectors * vectors, 1), 1)
            hidden = tf.concat([tf.reshape(vectors, [-1, FIELDS * DIM]), dense], 1)
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                hidden = tf.nn.relu(hidden @ weight + bias)
            logit = interactions + (hidden @ weights[-1] + biases[-1])[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, logit))
        row_gradient, *dense_gradients = tape.gradient(loss, [rows_pulled, *weights, *biases])
        row_gradient = tf.convert_to_tensor(row_gradient)
        state = tf.gather(squares, unique) + row_gradient * row_gradient
        squares.scatter_update(tf.IndexedSlices(state, unique))
        update = ROW_LR * row_gradient / (tf.sqrt(state) + 1e-8)
        table.scatter_sub(tf.IndexedSlices(update, unique))
        for variable, gradient in zip([*weights, *biases], dense_gradients, strict=True):
            variable.assign_sub(DENSE_LR * gradient)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    first = coordinator.schedule(step, (iterator,))
    coordinator.join()
    steps = len(clicks.label) // BATCH
    started = time.perf_counter()
    last = first
    for _ in range(steps):
        last = coordinator.schedule(step, (iterator,))
    coordinator.join()
    seconds = time.perf_counter() - started
    return {"peer": "tensorflow", "rate": steps * BATCH / seconds, "steps": steps, "loss": float(last.fetch())}


def main() -> None:
    """Start the two servers, train, print, end everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clicks", type=Path)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    cluster = {"worker": [free_address()], "ps": [free_address()]}
    servers = [spawn.Process(target=serve, args=(cluster, job), daemon=True) for job in cluster]
    for server in servers:
        server.start()
    try:
        print(json.dumps(train(arguments.clicks, cluster)), flush=True)
    finally:
        for server in servers:
            server.kill()
    os._exit(0)  # the coordinator's threads do not end by themselves


if __name__ == "__main__":
    main()
