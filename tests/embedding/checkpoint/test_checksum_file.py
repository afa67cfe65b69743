"""Files written beside their checksum: every byte once, in order, whatever a system call takes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from embershard.embedding.checkpoint.checksum_file import BackgroundWork
from embershard.embedding.checkpoint.storage import Directory


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("bytes_a_call", [1, 7, 1 << 30])
def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch, in_background: bool, bytes_a_call: int) -> None:
    def short_write(descriptor: int, views: list[memoryview]) -> int:
        return os.write(descriptor, b"".join(views)[:bytes_a_call])

    monkeypatch.setattr("embershard.embedding.checkpoint.checksum_file.os.writev", short_write)
    monkeypatch.setattr("embershard.embedding.checkpoint.checksum_file._GATHER_BYTES", 64)
    monkeypatch.setattr("embershard.embedding.checkpoint.checksum_file._SUM_BYTES", 100)
    monkeypatch.setattr("embershard.embedding.checkpoint.checksum_file._SYNC_BYTES", 128)
    rng = np.random.default_rng(0)
    pieces = [rng.bytes(int(size)) for size in rng.integers(0, 40, 60)]
    work = BackgroundWork() if in_background else None
    file = Directory.of(tmp_path).create("file", work)
    for piece in pieces:
        assert file.write(piece) == len(piece)
    whole = b"".join(pieces)
    assert file.tell() == len(whole)
    assert file.sha256() == hashlib.sha256(whole).hexdigest()
    if work is None:
        file.close()
    else:
        work.close(file)
        work.finish()
    assert (tmp_path / "file").read_bytes() == whole


def test_an_error_of_the_disk_in_the_background_is_raised(tmp_path: Path, monkeypatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("embershard.embedding.checkpoint.checksum_file.os.fsync", broken)
    work = BackgroundWork()
    file = Directory.of(tmp_path).create("file", work)
    file.write(b"x")
    work.close(file)
    with pytest.raises(OSError, match="Input/output error"):
        work.finish()
