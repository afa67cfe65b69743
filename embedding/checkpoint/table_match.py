"""Which differences between a checkpoint's table and a store's table matter."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import CheckpointMismatchError
from ..optimizers import state_columns
from ..table_config import TableConfig


def check_layout(saved: TableConfig, present: TableConfig, where: str) -> None:
    """Raises: CheckpointMismatchError naming table and field, where saved rows would not mean the same in `present`."""
    pairs: list[tuple[str, object, object]] = [
        ("key_space", saved.key_space, present.key_space),
        ("dim", saved.dim, present.dim),
        ("dtype", saved.dtype, present.dtype),
        ("blocks", [block.name for block in saved.blocks], [block.name for block in present.blocks]),
    ]
    for index, (old, new) in enumerate(zip(saved.blocks, present.blocks, strict=False)):
        pairs.append((f"blocks[{index}].dim", old.dim, new.dim))
        pairs.append((f"blocks[{index}].optimizer state", dict(state_columns(old)), dict(state_columns(new))))
    for field, expected, got in pairs:
        if expected != got:
            raise CheckpointMismatchError(
                f"expected {field} {expected} as in {where}, got {got} (table {saved.name!r})"
            )


def changed_settings(saved: TableConfig, present: TableConfig) -> Iterator[str]:
    """Lines naming each setting that differs: rows keep what they are, the new setting counts from now on."""
    yield from (f"{saved.name}: {line}" for line in _differences("", saved.model_dump(), present.model_dump()))


def _differences(path: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(key for key in new if key not in old)]:
            yield from _differences(f"{path}.{name}" if path else str(name), old.get(name), new.get(name))
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif old != new:
        yield f"{path} {old} -> {new}"
