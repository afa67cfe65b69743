"""Accuracy and speed of DeepFM at several pipeline depths and wire types, seed by seed on one click log."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from ..datasets import ClickLog
from ..datasets.synthetic import write_synthetic_clicks
from ..embedding.table_config import Adagrad
from ..feature_map import Categorical, FeatureMap, Numeric
from ..models.config import SYNCHRONOUS_STEPS, DeepFMConfig, OptimizerConfig, TrainConfig
from ..models.model_factory import build_embeddings, build_model
from ..models.train_result import TrainResult
from ..models.trainer import Trainer
from ..ps_server.wire_values import WireDtype
from .measurement import BenchOptions, Measurement
from .open_store import open_store
from .train import click_log_shape

TRAIN_SHARE = 0.9
WARM_UP_BATCHES = 32
"""Trained and forgotten first, so that the first setting is not the one that starts torch's threads."""


class Options(BenchOptions):
    """clicks: a Parquet file of `label`, integer columns `c…` (ids) and other columns (numbers through log1p); its
            last tenth evaluates. None makes one of `rows` rows, the largest feature of about `ids` ids.
    shards: processes that hold the rows (0: the training process itself, where no wire is).
    synchronous_steps: as in `prefetch`; 0 shows what depth costs without them.
    seeds:  of initial weights and of the order of rows; each setting is trained once with each, for one epoch.
    """

    clicks: Path | None = None
    rows: int = Field(default=1_000_000, ge=100)
    ids: int = Field(default=738_000, ge=8)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    depths: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    wires: tuple[WireDtype, ...] = Field(default=("float32", "bfloat16"), min_length=1)
    shards: int = Field(default=1, ge=0)
    synchronous_steps: int = Field(default=SYNCHRONOUS_STEPS, ge=0)
    batch_size: int = Field(default=4096, ge=1)
    dim: int = Field(default=16, ge=1)
    hidden: tuple[int, ...] = (256, 128)
    torch_threads: int | None = None
    table_threads: int = Field(default=2, ge=1)


@dataclass(frozen=True, slots=True)
class Setting:
    """What two runs of one seed differ in."""

    depth: int
    wire: WireDtype

    def __str__(self) -> str:
        return f"depth {self.depth}, {self.wire}"


def run(options: Options) -> Iterator[Measurement]:
    """Median examples a second and AUC of each setting, beside the first one (depth 0, float32 unless asked otherwise).

    All settings are trained with one seed before the next seed, so that a slow moment hits them alike."""
    if options.quick:
        options = options.model_copy(update={"rows": 6_000, "ids": 500, "seeds": (0,), "batch_size": 256})
    settings = [Setting(depth, wire) for wire in options.wires for depth in options.depths]
    results: dict[Setting, list[TrainResult]] = {setting: [] for setting in settings}
    clicks = read_clicks(options)
    train(options, clicks.slice(0, WARM_UP_BATCHES * options.batch_size), settings[0], options.seeds[0])
    for seed in options.seeds:
        for setting in settings:
            results[setting].append(train(options, clicks, setting, seed))
    reference = results[settings[0]]
    reference_auc = statistics.fmean(result.auc for result in reference)
    for setting in settings:
        found = results[setting]
        auc = statistics.fmean(result.auc for result in found)
        yield Measurement(
            workload="staleness",
            rate=statistics.median(result.examples_per_second for result in found),
            unit="examples/s",
            reference=str(settings[0]),
            reference_rate=statistics.median(result.examples_per_second for result in reference),
            details={
                "pipeline_depth": setting.depth,
                "wire": setting.wire if options.shards else None,
                "shards": options.shards,
                "synchronous_steps": options.synchronous_steps,
                "auc": auc,
                "auc_difference": auc - reference_auc,
                "auc_by_seed": " ".join(f"{result.auc:.4f}" for result in found),
                "steps": found[0].steps,
                "rows": found[0].rows,
            },
        )


def read_clicks(options: Options) -> pa.Table:
    """The click log, in memory."""
    if options.clicks is not None:
        return pq.read_table(options.clicks)
    with tempfile.TemporaryDirectory() as folder:
        shape = click_log_shape(rows=options.rows, ids=options.ids)
        return pq.read_table(write_synthetic_clicks(Path(folder) / "clicks.parquet", shape)).drop(["true_probability"])


def feature_map(schema: pa.Schema) -> FeatureMap:
    """Integer columns whose names start with c as ids, all other columns but the label through log1p."""
    names = [name for name in schema.names if name != "label"]
    ids = [name for name in names if name[0] in "cC" and pa.types.is_integer(schema.field(name).type)]
    numbers = [name for name in names if name not in ids]
    return FeatureMap(
        [
            *(Categorical(name=name) for name in ids),
            *(Numeric(name=name, transform=("log1p",)) for name in numbers),
        ],
        label="label",
    )


def train(options: Options, clicks: pa.Table, setting: Setting, seed: int) -> TrainResult:
    """One epoch over the first nine tenths in fresh rows, evaluated on the rest."""
    features = feature_map(clicks.schema)
    model = DeepFMConfig(dim=options.dim, hidden=options.hidden)
    optimizer = OptimizerConfig(rows=Adagrad(lr=0.02))
    config = TrainConfig(
        batch_size=options.batch_size,
        pipeline_depth=setting.depth,
        synchronous_steps=options.synchronous_steps,
        seed=seed,
        threads=options.torch_threads,
    )
    cut = int(len(clicks) * TRAIN_SHARE)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(options.shards, options.table_threads, setting.wire))
        embeddings = build_embeddings(model, optimizer, features, store, seed=seed, device="cpu")
        trainer = Trainer(build_model(model, features, seed=seed), embeddings, config, optimizer)
        return trainer.fit(
            ClickLog.from_table(clicks.slice(0, cut), run=1), ClickLog.from_table(clicks.slice(cut), run=1)
        )
