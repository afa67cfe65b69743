"""Incarnations: the same rows keep theirs, rows that may be lost get another one, and a full disk changes neither."""

import errno

import pytest

from embershard.ps_server import incarnation
from embershard.ps_server.incarnation import INCARNATION_FILE, incarnation_of
from embershard.ps_server.push_log_files import DiskFolder


def boot(monkeypatch, name):
    monkeypatch.setattr(incarnation, "_boot", lambda: name)


class FullDisk(DiskFolder):
    """A folder without room."""

    def replace(self, name, data):
        raise OSError(errno.ENOSPC, "No space left on device", self.path(name))


def test_rows_in_memory_are_others_at_each_start_and_nothing_is_written(tmp_path):
    assert incarnation_of(tmp_path, "none") != incarnation_of(tmp_path, "none")
    assert list(tmp_path.iterdir()) == []


def test_logged_rows_outlive_the_process_and_synced_ones_the_machine(tmp_path, monkeypatch):
    for durability, is_kept in (("log", False), ("fsync", True)):
        folder = tmp_path / durability
        boot(monkeypatch, "first")
        first = incarnation_of(folder, durability)
        assert incarnation_of(folder, durability) == first
        boot(monkeypatch, "second")
        second = incarnation_of(folder, durability)
        assert (second == first) == is_kept
        assert incarnation_of(folder, durability) == second


def test_full_disk_after_a_boot_gives_every_start_the_same_new_incarnation(tmp_path, monkeypatch):
    boot(monkeypatch, "first")
    first = incarnation_of(tmp_path, "log")
    boot(monkeypatch, "second")
    with monkeypatch.context() as patch:
        patch.setattr(incarnation, "DiskFolder", FullDisk)
        second = incarnation_of(tmp_path, "log")
        assert second == incarnation_of(tmp_path, "log") != first
    assert incarnation_of(tmp_path, "log") == second
    assert incarnation_of(tmp_path, "log") == second


def test_first_start_on_a_full_disk_is_refused_and_a_half_written_file_counts_as_none(tmp_path, monkeypatch):
    (tmp_path / INCARNATION_FILE).write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(incarnation, "DiskFolder", FullDisk)
        with pytest.raises(OSError, match=f"No space left on device.*{INCARNATION_FILE}"):
            incarnation_of(tmp_path, "log")
    assert incarnation_of(tmp_path, "log") == incarnation_of(tmp_path, "log")
