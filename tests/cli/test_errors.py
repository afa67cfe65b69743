"""Which words and which exit code an error gets."""

from __future__ import annotations

import errno

import pytest

from embershard.cli.errors import EXIT_BAD_INPUT, EXIT_FAILURE, UsageError, describe, exit_code
from embershard.embedding.errors import UnknownTableError
from embershard.feature_map.errors import ConfigError


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("run.yaml: $.a: unknown key"), EXIT_BAD_INPUT, "run.yaml: $.a: unknown key"),
        (ValueError("expected one table, got two"), EXIT_BAD_INPUT, "expected one table, got two"),
        (UsageError("no"), EXIT_BAD_INPUT, "no"),
        (UnknownTableError("expected one of ['a'], got 'b'"), EXIT_BAD_INPUT, "expected one of ['a'], got 'b'"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.csv"), EXIT_BAD_INPUT, "No such file: a.csv"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), EXIT_FAILURE, "No space left on device: x"),
    ],
)
def test_known_errors_keep_their_own_words(error: Exception, code: int, words: str) -> None:
    assert exit_code(error) == code
    assert describe(error) == words


def test_a_defect_is_called_unexpected_and_says_where() -> None:
    def fail() -> None:
        raise ValueError("shapes differ")

    with pytest.raises(ValueError, match="shapes differ") as caught:
        fail()
    assert exit_code(caught.value) == EXIT_FAILURE
    assert describe(caught.value).startswith("unexpected ValueError: shapes differ (")
    assert "test_errors.py" in describe(caught.value)


def test_notes_say_where_a_known_error_arose() -> None:
    error = UsageError("expected a label in [0, 1], got 7")
    error.__notes__ = ["in batch 2 of rows 1 to 100 of file 'a.parquet'"]  # what add_note makes from Python 3.11 on
    assert describe(error) == "expected a label in [0, 1], got 7; in batch 2 of rows 1 to 100 of file 'a.parquet'"


class OutOfMemoryError(RuntimeError):
    """As torch calls it on a device."""


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (
            RuntimeError("can't allocate memory: you tried to allocate 4000 bytes. Error code 12"),
            " for 4000 bytes more",
        ),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0)"), " for 20.00 MiB more"),
        (MemoryError("Unable to allocate 7.45 GiB for an array with shape (10,)"), " for 7.45 GiB more"),
        (MemoryError("std::bad_alloc"), ""),
        (MemoryError(), ""),
    ],
)
def test_memory_that_there_is_not_is_told_in_one_line(error: Exception, size: str) -> None:
    said = describe(error)
    assert said.startswith(f"expected memory{size}, got none (")
    assert "model.hidden" in said
    assert exit_code(error) == EXIT_FAILURE
