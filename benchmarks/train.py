"""Training DeepFM from Parquet, beside the same net with its embeddings a constant tensor (the dense-only ceiling)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from pydantic import Field
from torch import nn

from ..datasets import ClickLog
from ..datasets.synthetic import SyntheticClicks, write_synthetic_clicks
from ..embedding.store import EmbeddingStore
from ..embedding.table_config import Adagrad
from ..feature_map import Categorical, FeatureMap, Numeric
from ..models.config import DeepFMConfig, OptimizerConfig, TrainConfig
from ..models.model_factory import build_embeddings, build_model
from ..models.prefetch_pipeline import prefetch
from ..models.trainer import Trainer
from ..ps_server.wire_values import WireDtype
from .measurement import BenchOptions, Measurement, interleaved_rates
from .open_store import open_store

FEATURES, NUMERICS = 26, 13
UNIT_ROWS = 65_536


class Options(BenchOptions):
    """batches: a round's, rounded up to whole work units.   rounds: turns of each side, after one to warm up.

    shards: processes that hold the rows (0: the training process itself).   wire: how rows and gradients travel.
    shared_memory: through memory that worker and shards map; if not, all bytes go through Unix sockets.
    pipeline_depth: None measures 0 (synchronous) and 1, whose rows lag one batch behind: faster, and less exact.
    ids: of the largest feature; all 26 together have about 2.7 times as many.   data: folder to keep the click log in.
    """

    batches: int = Field(default=48, ge=1)
    rounds: int = Field(default=5, ge=1)
    batch_size: int = Field(default=4096, ge=1)
    dim: int = Field(default=16, ge=1)
    hidden: tuple[int, ...] = (256, 128)
    ids: int = Field(default=738_000, ge=8)
    pipeline_depth: int | None = Field(default=None, ge=0)
    torch_threads: int | None = None
    table_threads: int = Field(default=2, ge=1)
    shards: int = Field(default=0, ge=0)
    wire: WireDtype = "float32"
    shared_memory: bool = True
    data: Path | None = None


def run(options: Options) -> Iterator[Measurement]:
    """Examples a second of training with rows that grow, and of the dense part alone, turn by turn.

    Reading, hashing, de-duplication, the rows' creation and update, and the last push are inside the timed part."""
    if options.quick:
        options = options.model_copy(update={"batches": 4, "rounds": 2, "batch_size": 1024, "ids": 10_000})
    if options.torch_threads is not None:
        torch.set_num_threads(options.torch_threads)
    unit_rows = min(UNIT_ROWS, options.batches * options.batch_size)
    units = max(1, round(options.batches * options.batch_size / unit_rows))
    clicks = click_log_shape(rows=units * unit_rows * (options.rounds + 1), ids=options.ids)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        target = (options.data or Path(folder)) / f"clicks-{clicks.rows}-{clicks.max_ids}.parquet"
        path = target if target.exists() else write_synthetic_clicks(target, clicks)
        depths = (0, 1) if options.pipeline_depth is None else (options.pipeline_depth,)
        jobs = {
            depth: TrainingJob(
                path,
                options,
                units,
                stack.enter_context(open_store(options.shards, options.table_threads, options.wire)),
                depth,
            )
            for depth in depths
        }
        ceiling = DenseCeiling(options)
        batches = units * (unit_rows // options.batch_size)
        work: dict[str, Callable[[], object]] = {f"depth {depth}": job.round for depth, job in jobs.items()}
        work["dense"] = lambda: ceiling.steps(batches)
        rates = interleaved_rates(work, dict.fromkeys(work, float(units * unit_rows)), rounds=options.rounds)
        rows = {depth: sum(stats.rows for stats in job.store.stats().values()) for depth, job in jobs.items()}
    for depth in depths:
        yield Measurement(
            workload="train",
            rate=rates[f"depth {depth}"],
            unit="examples/s",
            reference="dense-only ceiling",
            reference_rate=rates["dense"],
            details={
                "model": "deepfm",
                "features": FEATURES,
                "dim": options.dim,
                "batch_size": options.batch_size,
                "pipeline_depth": depth,
                "shards": options.shards,
                "wire": options.wire if options.shards else None,
                "shared_memory": options.shared_memory if options.shards else None,
                "rows": rows[depth],
                "threads": torch.get_num_threads(),
                "table_threads": options.table_threads,
            },
        )


def click_log_shape(rows: int, ids: int) -> SyntheticClicks:
    """13 numbers and 26 power-law id columns of 7 … `ids` distinct ids, a planted factorization machine."""
    return SyntheticClicks(
        rows=rows,
        features=FEATURES,
        min_ids=7,
        max_ids=ids,
        skew=5.0,
        numerics=NUMERICS,
        rank=4,
        linear_std=0.196,
        factor_std=0.192,
        base_logit=-1.3,
    )


def feature_map() -> FeatureMap:
    """All columns of the click log: ids as they are, numbers through log1p."""
    return FeatureMap(
        [
            *(Categorical(name=f"c{number + 1}") for number in range(FEATURES)),
            *(Numeric(name=f"n{number + 1}", transform=("log1p",)) for number in range(NUMERICS)),
        ],
        label="label",
    )


class TrainingJob:
    """The whole job, some work units a round; the tables keep growing."""

    def __init__(self, path: Path, options: Options, units: int, store: EmbeddingStore, depth: int) -> None:
        self.store = store
        self._features = feature_map()
        self._options, self._units, self._next, self._depth = options, units, 0, depth
        unit_rows = min(UNIT_ROWS, options.batches * options.batch_size)
        self._log = ClickLog(path, unit_rows=unit_rows, run=1)
        model = DeepFMConfig(dim=options.dim, hidden=options.hidden)
        optimizer = OptimizerConfig(rows=Adagrad(lr=0.02))
        self._embeddings = build_embeddings(model, optimizer, self._features, self.store, device="cpu")
        config = TrainConfig(batch_size=options.batch_size)
        self._trainer = Trainer(build_model(model, self._features), self._embeddings, config, optimizer)

    def round(self) -> None:
        """Train the next work units; all pushes are applied at the end."""
        units = self._log.units(0)[self._next : self._next + self._units]
        self._next += self._units
        stream = self._log.batches(self._features, self._options.batch_size, epoch=0, units=units, prefetch=0)
        for batch, inputs in prefetch(stream, self._embeddings, self._depth, synchronous_steps=0):
            self._trainer.step(batch, inputs).item()


class DenseCeiling:
    """The same net in plain torch; the embeddings are a constant tensor that wants its gradient."""

    def __init__(self, options: Options) -> None:
        size, dim = options.batch_size, options.dim
        layers: list[nn.Module] = []
        width = FEATURES * dim + NUMERICS
        for hidden in options.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        self._mlp = nn.Sequential(*layers, nn.Linear(width, 1))
        self._optimizer = torch.optim.Adam(self._mlp.parameters(), lr=1e-3)
        self._loss = nn.BCEWithLogitsLoss()
        self._dense, self._label = torch.rand(size, NUMERICS), (torch.rand(size) < 0.3).float()
        self._embeddings = torch.rand(size, FEATURES, dim) * 0.01

    def steps(self, count: int) -> None:
        """Train `count` batches."""
        for _ in range(count):
            fields = self._embeddings.clone().requires_grad_()
            self._optimizer.zero_grad()
            second_order = 0.5 * (fields.sum(1) ** 2 - (fields**2).sum(1)).sum(1)
            logit = second_order + self._mlp(torch.cat([fields.flatten(1), self._dense], 1)).squeeze(1)
            loss = self._loss(logit, self._label)
            loss.backward()
            self._optimizer.step()
