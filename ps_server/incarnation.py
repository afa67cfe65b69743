"""The incarnation of a shard: 64 bits that stand for its rows, new where they start empty."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from pathlib import Path
from typing import Literal

from .push_log_files import DiskFolder
from .push_log_writer import NO_ROOM

INCARNATION_FILE = "incarnation.json"


def incarnation_of(folder: Path | None, durability: Literal["none", "log", "fsync"]) -> int:
    """What clients know the shard's rows by; kept beside the push log.

    `log` promises nothing after the machine itself went down, so another boot is another incarnation: one that follows
    from the one before, so that a full disk does not keep a shard from starting, nor gives it another one each time.
    Raises: OSError where there is none yet and it cannot be written."""
    if folder is None or durability == "none":
        return _fresh()
    boot = _boot() if durability == "log" else ""
    known = _read(folder / INCARNATION_FILE)
    if known is not None and known[1] == boot:
        return known[0]
    incarnation = _fresh() if known is None else _following(known[0], boot)
    data = json.dumps({"incarnation": incarnation, "boot": boot}).encode()
    try:
        DiskFolder(folder).replace(INCARNATION_FILE, data)
    except OSError as error:
        if known is None or error.errno not in NO_ROOM:
            raise
    return incarnation


def _fresh() -> int:
    return secrets.randbits(63) | 1


def _following(incarnation: int, boot: str) -> int:
    digest = hashlib.blake2b(f"{incarnation} {boot}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 | 1


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _read(path: Path) -> tuple[int, str] | None:
    """Incarnation and boot, or None where the file is not there or not whole: nobody knows the rows by it then."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return int(known["incarnation"]), str(known["boot"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
