"""Five updates of every algorithm on committed rollouts give the committed numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.golden.make import METRICS, NAMES, run_algorithm

GOLDEN = json.loads(METRICS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_five_updates_give_the_committed_numbers(name: str, tiny_base: Path, tmp_path: Path) -> None:
    rows, golden = run_algorithm(name, tiny_base, tmp_path), GOLDEN[name]
    assert len(rows) == len(golden) == 5
    for row, wanted in zip(rows, golden, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5, abs=1e-5)
