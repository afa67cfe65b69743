"""Our shard beside TensorFlow's and Paddle's parameter servers: the same training job on the same click log, in turns.

Each system: one server process, one worker, DeepFM of 26 × 16 with an MLP 256-128 at batch 4,096. Ours reads Parquet,
hashes and grows its tables inside the timed part, at pipeline depth 0 (rows as fresh as those of TensorFlow's worker)
and 1 (the default). TensorFlow's tables are static and its ids are numbered in advance, untimed. The peers live in
environments of their own, named by their interpreters; a peer that is not named is left out:

    tensorflow: Python 3.11, tensorflow-cpu==2.16.2 tf-keras==2.16.0 "pyarrow<20" "numpy<2"
    paddle:     Python 3.10, paddlepaddle==2.6.2 protobuf==3.20.3 "numpy<2" setuptools pyarrow

    python benchmarks/peers/parameter_servers.py --tensorflow …/bin/python --paddle …/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from click_columns import DENSE_COLUMNS, ID_COLUMNS

UNIT_ROWS = 65_536
BATCH, DIM, HIDDEN = 4096, 16, (256, 128)
DEPTHS = (0, 1)
PART_SECONDS = 600
HERE = Path(__file__).parent


def write_clicks(source: Path | None, target: Path, rows: int) -> None:
    """The first `rows` rows of a click log with the benchmark's columns, or of a made one, as one Parquet file."""
    names = ["label", *DENSE_COLUMNS, *ID_COLUMNS]
    if source is not None:
        table = pq.read_table(source, columns=names).slice(0, rows)
        if table.num_rows != rows:
            raise SystemExit(f"expected at least {rows} rows, got {table.num_rows} (file {source})")
    else:
        from embershard.benchmarks.train import click_log_shape

        made = pa.concat_tables(click_log_shape(rows=rows, ids=738_000).tables())
        own_names = [name.replace("I", "n").replace("C", "c") for name in names]
        table = made.select(own_names).rename_columns(names)
    pq.write_table(table, target, row_group_size=UNIT_ROWS)


def train_ours(path: Path, depth: int) -> dict[str, Any]:
    """Examples a second over the file against one shard process, after one step that is not timed."""
    import embershard as es
    from embershard.benchmarks.shard_processes import running_shards
    from embershard.models.config import DeepFMConfig
    from embershard.models.model_factory import build_embeddings, build_model

    features = es.FeatureMap(
        [
            *(es.Categorical(name=name) for name in ID_COLUMNS),
            *(es.Numeric(name=name, transform=("log1p",)) for name in DENSE_COLUMNS),
        ],
        label="label",
    )
    config = DeepFMConfig(dim=DIM, hidden=HIDDEN)
    optimizer = es.OptimizerConfig(rows=es.Adagrad(lr=0.02))
    with running_shards(1, threads=2) as addresses, es.connect(addresses) as store:
        embeddings = build_embeddings(config, optimizer, features, store, device="cpu")
        model = build_model(config, features)
        trainer = es.Trainer(model, embeddings, es.TrainConfig(batch_size=BATCH), optimizer)
        log = es.ClickLog(path, unit_rows=UNIT_ROWS, run=1)
        examples, started = 0, 0.0
        for batch, inputs in es.prefetch(log.batches(features, BATCH, epoch=0, prefetch=0), embeddings, depth):
            loss = trainer.step(batch, inputs).item()
            if started:
                examples += len(batch)
            else:
                started = time.perf_counter()
        # The last pushes are applied when the loop is left.
        seconds = time.perf_counter() - started
        rows = sum(table.rows for table in store.stats().values())
    return {"rate": examples / seconds, "rows": rows, "loss": loss}


def run_part(command: list[str | Path]) -> dict[str, Any]:
    """The JSON object that a part prints last, from a process of its own."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PART_SECONDS, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def compare(arguments: argparse.Namespace, clicks: Path) -> list[dict[str, Any]]:
    """One entry a peer and pipeline depth: median rates of the rounds, and their ratio."""
    parts: dict[str, list[str | Path]] = {
        f"depth {depth}": [sys.executable, __file__, "--part", str(depth), "--clicks", clicks] for depth in DEPTHS
    }
    peers = {"tensorflow": arguments.tensorflow, "paddle": arguments.paddle}
    for peer, python in peers.items():
        if python is not None:
            parts[peer] = [python, HERE / f"{peer}_server.py", clicks]
    rates: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(arguments.rounds):
        for name, command in parts.items():
            rates[name].append(float(run_part(command)["rate"]))
            print(f"round {turn + 1} {name}: {rates[name][-1]:,.0f} examples/s", file=sys.stderr)
    return [
        {
            "workload": "train_1_shard",
            "pipeline_depth": depth,
            "examples": arguments.rows,
            "rounds": arguments.rounds,
            "rate": median(rates[f"depth {depth}"]),
            "unit": "examples/s",
            "reference": f"{peer} parameter server",
            "reference_rate": median(rates[peer]),
            "ratio": median(rates[f"depth {depth}"]) / median(rates[peer]),
        }
        for peer in peers
        if peer in rates
        for depth in DEPTHS
    ]


def main() -> None:
    """Print one JSON list, as `embershard bench --json` does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", metavar="PYTHON", help="interpreter that has TensorFlow")
    parser.add_argument("--paddle", metavar="PYTHON", help="interpreter that has Paddle")
    parser.add_argument("--clicks", type=Path, help="Parquet with label, I1 … I13, C1 … C26; made if not given")
    parser.add_argument("--rows", type=int, default=6 * UNIT_ROWS, help="rows trained a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", type=int, choices=DEPTHS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        print(json.dumps(train_ours(arguments.clicks, arguments.part)))
        return
    if arguments.tensorflow is None and arguments.paddle is None:
        parser.error("expected --tensorflow or --paddle, got neither")
    with tempfile.TemporaryDirectory() as folder:
        clicks = Path(folder) / "clicks.parquet"
        write_clicks(arguments.clicks, clicks, arguments.rows)
        print(json.dumps(compare(arguments, clicks), indent=2))


if __name__ == "__main__":
    main()
