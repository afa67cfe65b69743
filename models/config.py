"""The `model`, `optimizer` and `train` sections of a run: frozen, checked once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from ..embedding.table_config import MAX_DIM, Adagrad, ColumnBlock, Initializer, Optimizer, Uniform, Zeros
from .table_options import TableOptions

MAX_WIDTH = 1 << 24
"""Of a hidden layer. Two such layers are beyond any memory, and still within what a tensor's size can say."""
SYNCHRONOUS_STEPS = 50
"""First steps of a model that see every push before them; docs/decisions/0003-synchronous-start.md says why."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


# --- optimizer --------------------------------------------------------------------------------------------------------


class DenseAdam(_Config):
    """torch.optim.Adam, or AdamW with `decoupled` weight decay."""

    kind: Literal["adam"] = "adam"
    lr: float = Field(default=1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    decoupled: bool = False


class DenseAdagrad(_Config):
    """torch.optim.Adagrad."""

    kind: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=1e-2, gt=0)
    eps: float = Field(default=1e-10, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class DenseSgd(_Config):
    """torch.optim.SGD."""

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=1e-2, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


DenseOptimizer = Annotated[DenseAdam | DenseAdagrad | DenseSgd, Field(discriminator="kind")]


class OptimizerConfig(_Config):
    """How rows and dense parameters are trained.

    rows: of every column block that `blocks` does not name.   dense: of the model's own parameters.
    """

    rows: Optimizer = Adagrad()
    blocks: dict[str, Optimizer] = Field(default_factory=dict)
    dense: DenseOptimizer = DenseAdam()

    def block(self, name: str, dim: int, initializer: Initializer) -> ColumnBlock:
        """A column block with its optimizer."""
        return ColumnBlock(name=name, dim=dim, initializer=initializer, optimizer=self.blocks.get(name, self.rows))


# --- model ------------------------------------------------------------------------------------------------------------


class _Model(_Config):
    """What every model has.

    tables: admission, eviction, dtype, seed … of the embedding tables.
    added:  features that came after training had begun, a group for each time: their tables start from zeros, their
            columns are a block of their own in the model's first layer. A resume fills it (docs/feature_growth.md).
    """

    tables: TableOptions = TableOptions()
    added: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()


class LogisticRegressionConfig(_Model):
    """Logistic regression: a weight a key (block `linear`), a weight a dense column, a bias."""

    kind: Literal["lr"] = "lr"

    def blocks(self, optimizer: OptimizerConfig) -> tuple[ColumnBlock, ...]:
        """Column blocks of each table."""
        return (optimizer.block("linear", 1, Zeros()),)


class FactorizationMachineConfig(_Model):
    """Factorization machine (Rendle 2010): blocks `linear` and `factors`.

    dim: factors a key.   initializer: of the factors; the linear weights start at zero.
    """

    kind: Literal["fm"] = "fm"
    dim: int = Field(default=16, ge=1, le=MAX_DIM - 1)
    initializer: Initializer = Uniform()

    def blocks(self, optimizer: OptimizerConfig) -> tuple[ColumnBlock, ...]:
        """Column blocks of each table."""
        return (optimizer.block("linear", 1, Zeros()), optimizer.block("factors", self.dim, self.initializer))


class DeepFMConfig(FactorizationMachineConfig):
    """DeepFM (Guo 2017): a factorization machine and an MLP over the same factors and the dense floats.

    hidden: widths of the MLP's hidden layers.   dropout: after each of them.
    """

    kind: Literal["deepfm"] = "deepfm"  # type: ignore[assignment]
    hidden: tuple[Annotated[int, Field(ge=1, le=MAX_WIDTH)], ...] = (256, 128)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class CustomModelConfig(_Model):
    """Your own torch model.

    class:   package.module:Name; called with the feature map and `options`, gives a module whose forward takes
             (EmbeddingOutput, dense (B, W)) and gives logits (B,).
    dim:     width of the one column block `weights`, unless `blocks` are given: name → dim.
    """

    kind: Literal["custom"] = "custom"
    class_: str = Field(alias="class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
    options: dict[str, Any] = Field(default_factory=dict)
    dim: int = Field(default=16, ge=1, le=MAX_DIM)
    block_dims: dict[str, Annotated[int, Field(ge=1, le=MAX_DIM)]] = Field(default_factory=dict, alias="blocks")
    initializer: Initializer = Uniform()

    def blocks(self, optimizer: OptimizerConfig) -> tuple[ColumnBlock, ...]:
        """Column blocks of each table."""
        dims = self.block_dims or {"weights": self.dim}
        return tuple(optimizer.block(name, dim, self.initializer) for name, dim in dims.items())


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("kind", "custom" if "class" in value else "deepfm"))
    return str(getattr(value, "kind", "deepfm"))


ModelConfig = Annotated[
    Annotated[LogisticRegressionConfig, Tag("lr")]
    | Annotated[FactorizationMachineConfig, Tag("fm")]
    | Annotated[DeepFMConfig, Tag("deepfm")]
    | Annotated[CustomModelConfig, Tag("custom")],
    Discriminator(_kind),
]
"""The model section, by `kind`: lr, fm, deepfm (the default) or custom (the default where `class` is given)."""


# --- train ------------------------------------------------------------------------------------------------------------


class EarlyStop(_Config):
    """Stop when `metric` has not improved by `min_delta` for `patience` evaluations in a row."""

    metric: Literal["auc", "logloss"] = "auc"
    patience: int = Field(default=2, ge=1)
    min_delta: float = Field(default=0.0, ge=0)


class TrainConfig(_Config):
    """One training run.

    max_steps:      stop after so many batches, counted over resumes; None: after `epochs`.
    pipeline_depth: how many batches the pulled rows lag behind (`prefetch`). 0 is synchronous training, and still
                    reads ahead; more hides a far store's answer time, and costs AUC where rows move fast.
    synchronous_steps: first steps of the run that are made at depth 0 whatever pipeline_depth is (`prefetch`).
    evaluate_every: steps between evaluations; None: after each epoch.
    evict_every:    steps in which each row is looked at once for eviction by age or value, a few tablets before each
                    push, from step evict_every + 1 on (docs/row_policies.md); None: all after each epoch.
    embedding_l2:   adds embedding_l2 · Σ‖e‖² / B to the loss, over the batch's pooled factors (or weights).
    clip_norm:      of all gradients of a step together, rows and dense.
    threads:        of torch and of pooling; None leaves their own choice.
    """

    batch_size: int = Field(default=1024, ge=1, lt=1 << 31)
    epochs: int = Field(default=1, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    pipeline_depth: int = Field(default=0, ge=0, le=16)
    synchronous_steps: int = Field(default=SYNCHRONOUS_STEPS, ge=0)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    shuffle: bool = True
    evaluate_every: int | None = Field(default=None, ge=1)
    evict_every: int | None = Field(default=None, ge=1)
    early_stop: EarlyStop | None = None
    embedding_l2: float = Field(default=0.0, ge=0)
    clip_norm: float | None = Field(default=None, gt=0)
    device: str = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)
