"""Types of the native extension; each part is documented where Python wraps it."""

import numpy as np
import numpy.typing as npt

# --- batch helpers (batch_rows.py) ---

def deduplicate(
    keys: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    table_of: npt.NDArray[np.int32],
    unique: npt.NDArray[np.uint64],
    inverse: npt.NDArray[np.int32],
    occurrences: npt.NDArray[np.uint32],
    splits: npt.NDArray[np.int64],
) -> int: ...
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
