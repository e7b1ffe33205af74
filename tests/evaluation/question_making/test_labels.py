"""The labels of a sample that was read by hand: docs/questions.md says the shares that they give.

The passages come from MedQuAD and OpenStax Anatomy and Physiology, both CC BY 4.0.
"""

from __future__ import annotations

import json
from pathlib import Path

from medagent.evaluation.statistics import Accuracy
from tests.support import ROOT

WRITTEN = Path(__file__).parent / "written_labels.jsonl"
NAMES = {"Qwen2.5-Coder-0.5B": "qwen2.5-coder-0.5b", "Qwen2.5-Coder-1.5B": "qwen2.5-coder-1.5b"}


def test_the_page_says_how_often_a_writer_is_right() -> None:
    """`good` was judged by reading before the checks were run, `dropped` is what they said."""
    rows = [json.loads(line) for line in WRITTEN.read_text(encoding="utf-8").splitlines()]
    page = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    for name, by in NAMES.items():
        drafts = [row for row in rows if row["by"] == by]
        kept = [row["good"] for row in drafts if not row["dropped"]]
        right = Accuracy.of(sum(kept), len(kept))
        counts = f"{len(drafts)} | {sum(row['good'] for row in drafts)} | {len(kept)}"
        wanted = f"| {name} | {counts} | {sum(kept)}: {right.accuracy:.0%} [{right.ci_low:.0%}, {right.ci_high:.0%}] |"
        assert wanted in page
    assert {row["by"] for row in rows} == set(NAMES.values())
