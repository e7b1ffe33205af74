"""The labels of a sample that was read by hand: docs/questions.md says the shares that they give.

The facts come from MedQuAD and OpenStax Anatomy and Physiology, both CC BY 4.0; each line names its source.
"""

from __future__ import annotations

import json
from pathlib import Path

from medagent.evaluation.statistics import Accuracy
from tests.support import ROOT

LABELS = Path(__file__).parent / "labels.jsonl"


def test_the_page_says_what_the_labels_give() -> None:
    rows = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    both = Accuracy.of(sum(row["well_formed"] and row["answered"] for row in rows), len(rows))
    assert both.n == len({row["id"] for row in rows}) == 38
    assert all(row["question"].endswith("?") and row["answer"] and row["source"] for row in rows)
    page = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    wanted = f"{100 * both.accuracy:.0f} [{both.ci_low:.0%}, {both.ci_high:.0%}]"
    assert f"| well-formed and answered, of 38 read one by one | {wanted} |" in page
