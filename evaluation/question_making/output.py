"""Questions as the custom benchmark reads them, and samples that a person labels."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.benchmarks.rows import Notes, read_rows
from medagent.evaluation.question_making.drafts import Candidate
from medagent.evaluation.question_making.options import Choice
from medagent.evaluation.statistics import Accuracy

LABELS = ("well_formed", "answered")


def question_row(item: Candidate | Choice) -> dict[str, Any]:
    """A line of `JsonlBenchmark`.

    The id depends on question and answer alone. `meta` keeps the source, its licence where it is known, the passage's
    title and the sentence.
    """
    candidate = item.candidate if isinstance(item, Choice) else item
    made = hashlib.sha256(f"{candidate.question}\n{candidate.answers[0]}".encode()).hexdigest()[:12]
    row: dict[str, Any] = {"id": f"made:{made}", "question": candidate.question}
    if isinstance(item, Choice):
        row |= {"options": list(item.options), "answer": item.letter}
    else:
        row["answer"] = list(candidate.answers) if len(candidate.answers) > 1 else candidate.answers[0]
    meta = {
        "family": candidate.family,
        "source": candidate.source,
        "licence": candidate.licence,
        "title": candidate.title,
        "sentence": candidate.sentence,
    }
    return {
        **row,
        "kind": candidate.kind,
        "gold_passage_ids": list(candidate.gold_ids),
        "meta": {name: text for name, text in meta.items() if text},
    }


def lines_of(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def sample_rows(
    rows: Sequence[dict[str, Any]], size: int, *, seed: int, text_of: Callable[[str], str]
) -> list[dict[str, Any]]:
    """A seeded sample with passages, and with empty labels for a person to fill with true or false.

    `well_formed`: the question is grammatical, complete and clear without the passage, and asks for one thing.
    `answered`: the passage says that the answer is right.
    """
    drawn = random.Random(seed).sample(list(rows), min(size, len(rows)))
    return [
        {
            "id": row["id"],
            "question": row["question"],
            **({"options": row["options"]} if "options" in row else {}),
            "answer": row["answer"],
            "passage_id": row["gold_passage_ids"][0],
            "passage": text_of(row["gold_passage_ids"][0]),
            **dict.fromkeys(LABELS),
        }
        for row in drawn
    ]


@dataclass(frozen=True)
class Ratings:
    """How many of the labelled questions are well-formed, answered by their passage, and both; and how many have none.

    Shares come with 95% Wilson intervals.
    """

    well_formed: Accuracy
    answered: Accuracy
    both: Accuracy
    unlabelled: int


def read_ratings(path: Path) -> Ratings:
    """The shares in a file of labels. Raises `InputError` for a label that is not true, false or null."""
    notes: Notes = Notes()
    labelled: list[tuple[bool, bool]] = []
    unlabelled = 0
    for row in read_rows(path, kind="jsonl", notes=notes):
        found = [row.data.get(name) for name in LABELS]
        if any(
            label not in (True, False, None) or (isinstance(label, int) and not isinstance(label, bool))
            for label in found
        ):
            raise InputError(f"{row.where}: found the labels {found}, wanted true, false or null for each.")
        if None in found:
            unlabelled += 1
        else:
            labelled.append((bool(found[0]), bool(found[1])))
    total = len(labelled)
    return Ratings(
        Accuracy.of(sum(formed for formed, _ in labelled), total),
        Accuracy.of(sum(answered for _, answered in labelled), total),
        Accuracy.of(sum(formed and answered for formed, answered in labelled), total),
        unlabelled,
    )
