"""Files that appear whole or not at all; errors of writing say which file it was."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from embershard.datasets.whole_file import naming_file, whole_file


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old", encoding="utf-8")
    with whole_file(path) as partial:
        partial.write_text("new", encoding="utf-8")
        assert partial.suffix == ".csv"
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old", encoding="utf-8")

    def fill_the_disk(partial: Path) -> None:
        partial.write_text("half", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught, whole_file(path) as partial:
        fill_the_disk(partial)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_only_file_system_is_told_of_the_file_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to remove a file even where there is none."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(OSError, match="Read-only") as caught, whole_file(tmp_path / "a.csv") as partial:
        partial.write_text("", encoding="utf-8")
    assert caught.value.filename == str(tmp_path / "a.csv")


def test_a_folder_that_is_not_there_is_told_of_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.csv"
    with pytest.raises(FileNotFoundError) as caught, whole_file(path) as partial:
        partial.write_text("", encoding="utf-8")
    assert caught.value.filename == str(path)


def test_errors_that_name_another_file_or_are_none_of_writing_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, naming_file("a"):
        (tmp_path / "b").read_text(encoding="utf-8")
    assert caught.value.filename == str(tmp_path / "b")
    with pytest.raises(BrokenPipeError) as broken, naming_file("a"):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert broken.value.filename is None
