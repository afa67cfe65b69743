from typing import Any

import numpy as np
import numpy.typing as npt

MISSING_HASH: int

def mix64(value: int) -> int: ...
def unmix64(value: int) -> int: ...
def murmur3(text: bytes) -> int: ...

class Plan:
    def __init__(self, spec: dict[str, Any]) -> None: ...
    def encode(
        self, chunks: list[tuple[Any, Any]]
    ) -> tuple[
        int,
        npt.NDArray[np.uint64],
        npt.NDArray[np.int64],
        tuple[bool, ...],
        npt.NDArray[np.float32],
        npt.NDArray[np.float32] | None,
        npt.NDArray[np.float32] | None,
        npt.NDArray[np.float32] | None,
        npt.NDArray[np.uint64] | None,
        npt.NDArray[np.int64] | None,
    ]: ...
