"""Which differences between a checkpoint's table and a store's table matter."""

from __future__ import annotations

from collections.abc import Iterator

from ..config_differences import differences
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
    for path, old, new in differences(saved.model_dump(), present.model_dump()):
        yield f"{saved.name}: {path} {old} -> {new}"
