"""What a table is: column blocks, initializers, optimizers, admission, eviction. Frozen, compared whole."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_DIM = 4096
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]{0,127}$"


class _Policy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# --- initializers: pure functions of (seed, key space, key, column), DESIGN of rows in docs/keys.md -------------------


class Zeros(_Policy):
    """Every weight starts at 0."""

    kind: Literal["zeros"] = "zeros"


class Constant(_Policy):
    """Every weight starts at `value`."""

    kind: Literal["constant"] = "constant"
    value: float = 0.0


class Uniform(_Policy):
    """Uniform on [low, high)."""

    kind: Literal["uniform"] = "uniform"
    low: float = -0.01
    high: float = 0.01

    @model_validator(mode="after")
    def _check(self) -> Uniform:
        if not self.low < self.high:
            raise ValueError(f"expected low < high, got low {self.low}, high {self.high}")
        return self


class Normal(_Policy):
    """Gaussian of mean `mean`, deviation `std`."""

    kind: Literal["normal"] = "normal"
    mean: float = 0.0
    std: float = Field(default=0.01, gt=0)


class TruncatedNormal(_Policy):
    """Gaussian of mean `mean`, deviation `std`, redrawn outside two deviations."""

    kind: Literal["truncated_normal"] = "truncated_normal"
    mean: float = 0.0
    std: float = Field(default=0.01, gt=0)


Initializer = Annotated[Zeros | Constant | Uniform | Normal | TruncatedNormal, Field(discriminator="kind")]


# --- optimizers -------------------------------------------------------------------------------------------------------


class _Optimizer(_Policy):
    """What every row optimizer shares.

    lr:           learning rate; a push multiplies it by its `lr_scale`.
    weight_decay: on touched rows only. `l2` adds weight_decay·w to the gradient; `decoupled` scales w by
                  1 − lr·weight_decay.
    catch_up:     when a row is touched again, first scale w by 1 − lr·weight_decay for each step it was not touched in.
    clip_value:   gradient components are clipped to ±clip_value; clip_norm: the row's gradient norm to clip_norm.
    max_norm:     the row's weights are scaled down to this norm after the step.
    gradient:     `mean`: as torch gives it for a mean loss; `sum`: multiplied by the push's examples.
    """

    lr: float = Field(gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    weight_decay_mode: Literal["none", "l2", "decoupled"] = "none"
    catch_up: bool = False
    clip_value: float | None = Field(default=None, gt=0)
    clip_norm: float | None = Field(default=None, gt=0)
    max_norm: float | None = Field(default=None, gt=0)
    gradient: Literal["mean", "sum"] = "mean"

    @model_validator(mode="after")
    def _check_decay(self) -> _Optimizer:
        if self.weight_decay > 0 and self.weight_decay_mode == "none":
            raise ValueError("expected weight_decay_mode l2 or decoupled with weight_decay > 0, got none")
        if self.catch_up and self.weight_decay_mode == "none":
            raise ValueError("expected weight_decay_mode l2 or decoupled with catch_up, got none")
        return self


def _sum_beside_an_accumulator(data: object) -> object:
    """`gradient` is `sum` unless given where the accumulator starts above 0: it is on the scale of single examples."""
    if isinstance(data, dict) and data.get("initial_accumulator") and "gradient" not in data:
        return {**data, "gradient": "sum"}
    return data


class Sgd(_Optimizer):
    """w −= lr·g."""

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.01, gt=0)


class Momentum(_Optimizer):
    """m = β·m + g; w −= lr·m (Nesterov: w −= lr·(g + β·m)); torch.optim.SGD's form."""

    kind: Literal["momentum"] = "momentum"
    lr: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False


class Adagrad(_Optimizer):
    """a += g²; w −= lr·g / (√a + eps). Duchi 2011, eps outside the root as FBGEMM and torch."""

    kind: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=0.02, gt=0)
    eps: float = Field(default=1e-8, ge=0)
    initial_accumulator: float = Field(default=0.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_gradient(cls, data: object) -> object:
        return _sum_beside_an_accumulator(data)


class RowwiseAdagrad(_Optimizer):
    """a += mean(g²) over the block; w −= lr·g / (√a + eps). FBGEMM exact_rowwise_adagrad."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    lr: float = Field(default=0.02, gt=0)
    eps: float = Field(default=1e-8, ge=0)
    initial_accumulator: float = Field(default=0.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _fill_gradient(cls, data: object) -> object:
        return _sum_beside_an_accumulator(data)


class Adam(_Optimizer):
    """Lazy Adam on touched rows, in the order of Kingma 2015 §2 (last paragraph), as torch.optim.SparseAdam.

    bias_correction: by the number of steps of the row itself, or by the request's step (torch's rule).
    """

    kind: Literal["adam"] = "adam"
    lr: float = Field(default=1e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, ge=0)
    bias_correction: Literal["row", "request"] = "row"


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov 2019); the decay is on by default."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: float = Field(default=0.01, ge=0)
    weight_decay_mode: Literal["none", "l2", "decoupled"] = "decoupled"


class RowwiseAdam(_Optimizer):
    """Adam with one second moment a block: v from mean(g²). FBGEMM partial_rowwise_adam."""

    kind: Literal["rowwise_adam"] = "rowwise_adam"
    lr: float = Field(default=1e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, ge=0)
    bias_correction: Literal["row", "request"] = "row"


class Rmsprop(_Optimizer):
    """v = α·v + (1 − α)·g²; w −= lr·g / (√v + eps). torch.optim.RMSprop's form, touched rows only."""

    kind: Literal["rmsprop"] = "rmsprop"
    lr: float = Field(default=1e-3, gt=0)
    alpha: float = Field(default=0.99, ge=0, lt=1)
    eps: float = Field(default=1e-8, ge=0)


class Ftrl(_Optimizer):
    """FTRL-Proximal (McMahan 2013, alg. 1) with l1, l2, β; a new row starts at z with w(z) its initial weight."""

    kind: Literal["ftrl"] = "ftrl"
    lr: float = Field(default=0.05, gt=0)
    l1: float = Field(default=0.0, ge=0)
    l2: float = Field(default=0.0, ge=0)
    beta: float = Field(default=1.0, ge=0)
    gradient: Literal["mean", "sum"] = "sum"


Optimizer = Annotated[
    Sgd | Momentum | Adagrad | RowwiseAdagrad | Adam | AdamW | RowwiseAdam | Rmsprop | Ftrl,
    Field(discriminator="kind"),
]


# --- admission and eviction -------------------------------------------------------------------------------------------


class AlwaysAdmit(_Policy):
    """A key gets its row at its first push."""

    kind: Literal["always"] = "always"


class MinCount(_Policy):
    """A key gets its row when it has occurred `count` times; its row's `count` includes the times before.

    counter_capacity: keys that are counted at most, shared out over the tablets. A full tablet halves all its counters
                      and forgets those at 0; keys that still find no room are not counted in that push.
    """

    kind: Literal["min_count"] = "min_count"
    count: int = Field(ge=1)
    counter_capacity: int = Field(default=1 << 22, ge=1)


class Probability(_Policy):
    """Each occurrence admits the key with probability `p`: c occurrences in a push with 1 − (1 − p)^c.

    Decided by a hash of (seed, key space, key, unit, batch): the same again on a replay, another throw in each batch.
    """

    kind: Literal["probability"] = "probability"
    p: float = Field(gt=0, le=1)


Admission = Annotated[AlwaysAdmit | MinCount | Probability, Field(discriminator="kind")]


class Ttl(_Policy):
    """Rows last touched `ttl_seconds` ago or earlier (by the pushes' own clock) leave at `evict`."""

    kind: Literal["ttl"] = "ttl"
    ttl_seconds: int = Field(ge=1)


class Capacity(_Policy):
    """At most `capacity_rows` rows, shared out over the tablets; a push into a full tablet makes room.

    The rows that leave are those the push does not touch, the least recently touched (lru) or least counted (lfu)
    first, ties by key; an eighth of the tablet's share at once. New keys that still find no room are refused.
    """

    kind: Literal["capacity"] = "capacity"
    capacity_rows: int = Field(ge=1)
    order: Literal["lru", "lfu"] = "lru"


class MinL2(_Policy):
    """Rows whose weight norm is below `min_l2` leave at `evict`."""

    kind: Literal["min_l2"] = "min_l2"
    min_l2: float = Field(gt=0)


class Score(_Policy):
    """Rows whose score is below `min_score` leave at `evict`.

    score = (show_weight · (count − clicks) + click_weight · clicks) · 2^(−age / half_life_seconds), where `age` is the
    seconds since the row was last touched. `clicks` counts the occurrences in clicked examples since the row was made;
    a table keeps it (4 bytes a row) only where click_weight > 0, else every occurrence is a show without a click.
    Source: `ShowClickScore` of PaddlePaddle's CtrCommonAccessor (nonclk_coeff, click_coeff, delete_threshold), which
    lets the two counts decay by a factor a shrink instead of the score by the row's age.
    """

    kind: Literal["score"] = "score"
    min_score: float = Field(gt=0)
    half_life_seconds: int = Field(ge=1)
    show_weight: float = Field(default=1.0, ge=0)
    click_weight: float = Field(default=0.0, ge=0)


Eviction = Annotated[Ttl | Capacity | MinL2 | Score, Field(discriminator="kind")]


# --- tables -----------------------------------------------------------------------------------------------------------


class ColumnBlock(_Policy):
    """A named run of weight columns with its own initializer and optimizer."""

    name: str = Field(default="weights", pattern=NAME_PATTERN)
    dim: int = Field(ge=1, le=MAX_DIM)
    initializer: Initializer = Uniform()
    optimizer: Optimizer = Adagrad()


class TableConfig(_Policy):
    """Rows of one layout over one key space.

    key_space: namespace (salt) of the keys; the table's name unless given, and kept when the table is renamed.
    dtype:     storage of the weights; optimizer state is float32 always.
    unseen:    what evaluation and serving read for a key without a row: zeros, or a trained row of its own.
               `unknown_row` is trained by the gradients of keys that are not admitted (see `unknown_table`).
    init_from: Parquet or Arrow file of (key | id, vector) whose keys start there instead of at the initializer.
    trainable: False: pushes leave the table as it is.
    memory_limit_bytes: new keys are refused (over_limit) where a tablet's share of it is full; see policies.row_limit.
    """

    name: str = Field(pattern=NAME_PATTERN)
    key_space: str = ""
    blocks: tuple[ColumnBlock, ...] = Field(min_length=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    admission: Admission = AlwaysAdmit()
    eviction: tuple[Eviction, ...] = ()
    unseen: Literal["zeros", "unknown_row"] = "zeros"
    trainable: bool = True
    init_from: str | None = None
    memory_limit_bytes: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_key_space(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("key_space") and "name" in data:
            return {**data, "key_space": data["name"]}
        return data

    @model_validator(mode="after")
    def _check(self) -> TableConfig:
        names = [block.name for block in self.blocks]
        if len(set(names)) != len(names):
            raise ValueError(f"expected distinct block names, got {names}")
        if self.dim > MAX_DIM:
            raise ValueError(f"expected at most {MAX_DIM} weights a row, got {self.dim}")
        if self.unseen == "unknown_row" and self.admission.kind == "always":
            raise ValueError("expected admission min_count or probability with unseen unknown_row, got always")
        kinds = [policy.kind for policy in self.eviction]
        if len(set(kinds)) != len(kinds):
            raise ValueError(f"expected each eviction policy once, got {kinds}")
        return self

    @property
    def dim(self) -> int:
        """`D`: weights a row, over all blocks."""
        return sum(block.dim for block in self.blocks)

    @property
    def keeps_clicks(self) -> bool:
        """Whether rows count clicks: a score policy weighs them."""
        return any(isinstance(policy, Score) and policy.click_weight > 0 for policy in self.eviction)


def unknown_table(config: TableConfig) -> TableConfig:
    """The companion table that holds the trained unknown rows of `config`: one row a tablet, under `unknown_key`.

    One a tablet, so that a push to one tablet touches no row of another. They start at zeros.
    """
    blocks = tuple(block.model_copy(update={"initializer": Zeros()}) for block in config.blocks)
    return TableConfig(
        name=f"{config.name}/unknown",
        key_space=config.key_space,
        blocks=blocks,
        dtype=config.dtype,
        seed=config.seed,
        trainable=config.trainable,
    )


def unknown_key(tablet: int, tablet_bits: int) -> int:
    """Key of the tablet's unknown row: the first key of the tablet."""
    return tablet << (64 - tablet_bits) if tablet_bits else 0


def share(total: int, tablet: int, tablet_bits: int) -> int:
    """The tablet's share of `total`; the first tablets take the remainder."""
    return total // (1 << tablet_bits) + (tablet < total % (1 << tablet_bits))
