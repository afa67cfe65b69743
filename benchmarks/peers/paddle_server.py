"""Paddle's fleet parameter server on the benchmark job: one server process, one trainer process, asynchronous.

DeepFM of 26 × 16 with an MLP 256-128 at batch 4,096 over `sparse_embedding` tables that grow on the server.
Run by parameter_servers.py; the process without a role starts the two others; prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

DIM, BATCH, FIELDS, DENSE = 16, 4096, 26, 13
TRAINER_SECONDS = 560


def start_roles() -> int:
    """Exit status of the trainer; the server is killed when it ends."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(str(probe.getsockname()[1]))
    shared = {
        **os.environ,
        "POD_IP": "127.0.0.1",
        "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{ports[0]}",
        "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{ports[1]}",
        "PADDLE_TRAINERS_NUM": "1",
        "GLOG_minloglevel": "3",
    }
    command = [sys.executable, *sys.argv]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server_role = {**shared, "TRAINING_ROLE": "PSERVER", "PADDLE_PORT": ports[0]}
    trainer_role = {**shared, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0", "PADDLE_PORT": ports[1]}
    server = subprocess.Popen(command, env=server_role, **quiet)
    try:
        wait_for_port(int(ports[0]), seconds=60)
        return subprocess.run(command, env=trainer_role, timeout=TRAINER_SECONDS, check=False).returncode
    finally:
        server.kill()


def wait_for_port(port: int, seconds: float) -> None:
    """Return once something listens on the loopback port. Raises: TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"expected a server on port {port} within {seconds} s, got none")


def run_role(path: Path) -> None:
    """Serve, or train over the file and print examples a second, after one step that is not timed."""
    import numpy as np
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    fleet.init(is_collective=False)
    ids = [paddle.static.data(f"id{field}", [None, 1], "int64") for field in range(FIELDS)]
    dense = paddle.static.data("dense", [None, DENSE], "float32")
    label = paddle.static.data("label", [None, 1], "float32")
    start = paddle.ParamAttr(name="factors", initializer=paddle.nn.initializer.Uniform(-0.01, 0.01))
    vectors = paddle.stack(
        [
            paddle.reshape(paddle.static.nn.sparse_embedding(one, size=[1 << 22, DIM], param_attr=start), [-1, DIM])
            for one in ids
        ],
        axis=1,
    )
    total = vectors.sum(1)
    interactions = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1, keepdim=True)
    hidden = paddle.concat([paddle.reshape(vectors, [-1, FIELDS * DIM]), dense], 1)
    for width in (256, 128):
        hidden = paddle.static.nn.fc(hidden, width, activation="relu")
    logit = paddle.static.nn.fc(hidden, 1) + interactions
    loss = paddle.nn.functional.binary_cross_entropy_with_logits(logit, label)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    fleet.distributed_optimizer(paddle.optimizer.Adam(1e-3), strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    from click_columns import read_clicks

    clicks = read_clicks(path)
    # One table holds all fields, so a field's ids are told apart by their high bits.
    fields = [clicks.ids[:, field : field + 1] + (np.int64(field) << 42) for field in range(FIELDS)]
    program = paddle.static.default_main_program()

    def step(first: int) -> None:
        rows = slice(first, first + BATCH)
        feed = {f"id{field}": fields[field][rows] for field in range(FIELDS)}
        feed |= {"dense": clicks.dense[rows], "label": clicks.label[rows, None]}
        executor.run(program, feed=feed, fetch_list=[loss])

    rows = len(clicks.label)
    step(0)
    started = time.perf_counter()
    for first in range(0, rows, BATCH):
        step(first)
    print(json.dumps({"peer": "paddle", "rate": rows / (time.perf_counter() - started), "rows": rows}), flush=True)
    fleet.stop_worker()


def main() -> None:
    """Start the roles, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clicks", type=Path)
    arguments = parser.parse_args()
    if "TRAINING_ROLE" not in os.environ:
        raise SystemExit(start_roles())
    run_role(arguments.clicks)


if __name__ == "__main__":
    main()
