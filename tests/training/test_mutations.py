"""The list of seeded mistakes (`python -m tests.training.mutations`) still fits the code.

Trying them takes minutes and is done by hand.
"""

from __future__ import annotations

import pytest

from tests.support import ROOT
from tests.training.mutations import MUTATIONS, TESTS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_seeded_mistake_fits_exactly_one_place(mutation: Mutation) -> None:
    text = (ROOT / "training" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.right) == 1
    assert mutation.wrong != mutation.right


def test_the_tests_that_must_catch_mistakes_are_there() -> None:
    assert [name for name in TESTS if not (ROOT / name).is_file()] == []
