"""Types of the native extension; each part is documented where Python wraps it."""

import numpy as np
import numpy.typing as npt

# --- batch helpers (batch_rows.py) ---

def set_batch_threads(threads: int) -> None: ...
def use_openmp(gomp_parallel: int) -> None: ...
def batch_threads() -> int: ...
def deduplicate(
    keys: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    table_of: npt.NDArray[np.int32],
    unique: npt.NDArray[np.uint64],
    inverse: npt.NDArray[np.int32],
    occurrences: npt.NDArray[np.uint32],
    splits: npt.NDArray[np.int64],
) -> int: ...
def count_clicks(
    inverse: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    features: npt.NDArray[np.int64],
    clicked: npt.NDArray[np.bool_],
    clicks: npt.NDArray[np.uint32],
) -> None: ...
def pool_rows(
    rows: npt.NDArray[np.float32],
    row_start: int,
    first_column: int,
    dim: int,
    inverse: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32] | None,
    fields: npt.NDArray[np.int64],
    out: npt.NDArray[np.float32],
) -> None: ...
def sum_row_gradients(
    rows: npt.NDArray[np.float32],
    row_start: int,
    first_column: int,
    dim: int,
    inverse: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32] | None,
    fields: npt.NDArray[np.int64],
    gradient: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None: ...
def pool_interaction(
    rows: npt.NDArray[np.float32],
    row_start: int,
    first_column: int,
    dim: int,
    linear_column: int,
    inverse: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32] | None,
    fields: npt.NDArray[np.int64],
    out: npt.NDArray[np.float32],
    first_order: npt.NDArray[np.float32],
    second_order: npt.NDArray[np.float32],
    factor_sums: npt.NDArray[np.float32],
) -> None: ...
def sum_interaction_gradients(
    rows: npt.NDArray[np.float32],
    row_start: int,
    first_column: int,
    dim: int,
    linear_column: int,
    inverse: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32] | None,
    fields: npt.NDArray[np.int64],
    pooled: npt.NDArray[np.float32],
    factor_sums: npt.NDArray[np.float32],
    gradient: npt.NDArray[np.float32] | None,
    first_order_gradient: npt.NDArray[np.float32] | None,
    second_order_gradient: npt.NDArray[np.float32] | None,
    out: npt.NDArray[np.float32],
) -> None: ...

# --- table group (native_table_group.py) ---

Keys = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]
Splits = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_] | None
PartRows = tuple[
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint8],
    npt.NDArray[np.float32],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint64],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint32],
]

def kernel_sets() -> list[str]: ...

class BlockSpec:
    def __init__(self) -> None: ...
    dim: int
    state_width: int
    initializer: int
    low: float
    span: float
    below_high: float
    mean: float
    std: float
    optimizer: int
    lr: float
    decay_mode: int
    weight_decay: float
    catch_up: bool
    clip_value: float
    clip_norm: float
    max_norm: float
    sum_gradients: bool
    eps: float
    initial_accumulator: float
    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    beta1_exact: float
    beta2_exact: float
    nesterov: bool
    corrects_by_row: bool
    l1: float
    l2: float
    beta: float

class TableSpec:
    def __init__(self, row_type: int, stream_base: int, blocks: list[BlockSpec]) -> None: ...
    admission: int
    admission_count: int
    counter_limit: int
    admission_probability: float
    row_limit: int
    capacity_order: int
    ttl_seconds: int
    min_l2: float
    min_score: float
    show_weight: float
    click_weight: float
    half_life_seconds: int
    trainable: bool
    unknown_table: int
    def give_vectors(self, keys: Keys, vectors: npt.NDArray[np.float32]) -> None: ...

class UpdateStep:
    def __init__(self, examples: int, step: int, now: int, lr_scale: float, unit: int, batch: int) -> None: ...

class PreparedKeys: ...

class TableGroup:
    def __init__(self, tablet_bits: int, threads: int, kernels: str) -> None: ...
    def add_table(self, spec: TableSpec) -> int: ...
    def drop_table(self, table: int) -> None: ...
    def lookup(
        self, tables: Ids, keys: Keys, splits: Splits, absent: int, type: int, out: npt.NDArray[np.float32 | np.uint16]
    ) -> None: ...
    def apply_gradients(
        self,
        tables: Ids,
        keys: Keys,
        splits: Splits,
        type: int,
        gradients: npt.NDArray[np.float32 | np.uint16],
        occurrences: npt.NDArray[np.uint32],
        step: UpdateStep,
        mask: Mask,
        clicks: npt.NDArray[np.uint32] | None,
        prepared: PreparedKeys | None = None,
    ) -> tuple[list[tuple[int, int, int, int, int, int]], list[list[int]]]: ...
    def prepare(self, tables: Ids, keys: Keys, splits: Splits, occurrences: npt.NDArray[np.uint32]) -> PreparedKeys: ...
    def assign(
        self,
        tables: Ids,
        keys: Keys,
        splits: Splits,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None,
        if_absent: bool,
        now: int,
        mask: Mask,
    ) -> int: ...
    def erase(self, tables: Ids, keys: Keys, splits: Splits, mask: Mask) -> int: ...
    def expire(
        self, tables: list[int], now: int, max_rows: int, removes: bool, mask: Mask, cursor: tuple[int, int, int]
    ) -> tuple[list[Keys], tuple[int, int, int]]: ...
    def snapshot(
        self, tablet: int, tables: list[int], since: int | None
    ) -> tuple[int, int, int, bool, list[PartRows]]: ...
    def import_tablet(
        self,
        tablet: int,
        tables: list[tuple[object, ...]],
        version: int,
        push_count: int,
        erased_since: int,
        is_whole: bool,
    ) -> None: ...
    def drop_tablet(self, tablet: int) -> None: ...
    def cut(self, tablet: int) -> int: ...
    def version(self, tablet: int) -> int: ...
    def push_counts(self) -> npt.NDArray[np.uint64]: ...
    def stats(self, table: int) -> tuple[npt.NDArray[np.int64], int, int, int, int, int, int, int]: ...

def unset_bytes(size: int) -> tuple[bytes, npt.NDArray[np.uint8]]: ...
def widen(type: str, bits: npt.NDArray[np.uint16], out: npt.NDArray[np.float32]) -> None: ...
def narrow(type: str, values: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None: ...
