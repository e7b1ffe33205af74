"""The list of seeded mistakes (`python -m tests.training.mutations`) still fits the code.

Trying them takes minutes and is done by hand.
"""

from __future__ import annotations

import pytest

from tests.support import ROOT
from tests.training.mutations import MUTATIONS, SUITES, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_seeded_mistake_fits_exactly_one_place(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.right) == 1
    assert mutation.wrong != mutation.right
    assert mutation.suite in SUITES


def test_every_mistake_has_a_name_of_its_own() -> None:
    names = [mutation.what for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


def test_the_tests_that_must_catch_mistakes_are_there() -> None:
    assert [name for names in SUITES.values() for name in names if not (ROOT / name).is_file()] == []
