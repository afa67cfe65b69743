"""The list of mutants cannot rot: each still changes exactly one place, and names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_one_place(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert source.count(mutant.search) == 1
    assert mutant.search != mutant.replace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_names_a_test_that_exists(mutant: Mutant) -> None:
    file, _, test = mutant.killed_by.partition("::")
    first = re.split(r"::|\[", test)[0]
    assert re.search(rf"^(def |class |){first}\b", (ROOT / "tests" / file).read_text(), re.MULTILINE)


def test_names_are_distinct() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
