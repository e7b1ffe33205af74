"""The list of seeded mistakes (`python -m tests.training.mutations`) still fits the code.

Trying them takes minutes and is done by hand.
"""

from __future__ import annotations

from tests.support import ROOT
from tests.training.mutations import MUTATIONS, SUITES


def test_a_seeded_mistake_fits_exactly_one_place() -> None:
    wrong = []
    for mutation in MUTATIONS:
        path = ROOT / mutation.file
        found = path.read_text(encoding="utf-8").count(mutation.right) if path.is_file() else "no file"
        if found != 1 or mutation.wrong == mutation.right or mutation.suite not in SUITES:
            wrong.append(f"{mutation.what}: {mutation.file} has its text {found} times")
    assert not wrong, "\n".join(wrong)


def test_every_mistake_has_a_name_of_its_own() -> None:
    names = [mutation.what for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


def test_the_tests_that_must_catch_mistakes_are_there() -> None:
    assert [name for names in SUITES.values() for name in names if not (ROOT / name).is_file()] == []
