"""The labels of tests/data: how many of each kind there are, and that each says what its kind wants."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

from tests.support import ROOT


def labels(name: str) -> list[dict[str, Any]]:
    with gzip.open(ROOT / "tests" / "data" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_sixty_queries_of_a_librarian_are_graded() -> None:
    queries = labels("librarian")
    kinds = Counter(query["kind"] for query in queries)
    assert kinds == {"accents": 10, "spelling": 10, "forms": 8, "drugs": 8, "synonyms": 8, "typos": 8, "absent": 8}
    for query in queries:
        grades = set(query["relevant"].values())
        assert grades <= {1, 2}, query
        assert (2 in grades) == (query["kind"] != "absent"), query


def test_every_verdict_has_what_its_kind_wants() -> None:
    wanted = {"right": "answer", "misspelt": "meant"}
    counts = {"verdicts_starter": (100, 100, 100, 60), "verdicts_medquad": (175, 35, 20, 40)}
    for name, (right, misspelt, made_up, removed) in counts.items():
        rows = labels(name)
        kinds = {"right": right, "misspelt": misspelt, "made_up": made_up, "removed": removed}
        assert Counter(row["kind"] for row in rows) == kinds
        assert not [row for row in rows if wanted.get(row["kind"], "question") not in row]
        assert name == "verdicts_starter" or all(isinstance(row["right"], bool) for row in rows)


def test_follow_ups_come_with_the_question_alone() -> None:
    rows = labels("follow_ups")
    assert len(rows) == 40
    assert all({"first", "follow_up", "alone", "answer"} == set(row) for row in rows)
