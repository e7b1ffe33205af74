"""The command that makes questions from an index: `medagent questions make`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def questions_make(
    index: str,
    out: str = "questions.jsonl",
    top_k: int = 10,
    per_answer: int = 50,
    limit: int = 0,
    seed: int = 0,
) -> None:
    """Make questions from the definitions and abbreviations in an index, by rules, without a model.

    Writes the format of --benchmark jsonl, with the gold passages. Prints how many drafts were dropped and why.

    Args:
        index: Folder of the index.
        out: File of the questions.
        top_k: Search with the question as query must find its passage among this many.
        per_answer: Most questions with one answer.
        limit: Most questions, drawn by the seed; 0 takes all.
        seed: Seed of the order.
    """
    from medagent.cli.questions import make_with_progress
    from medagent.evaluation.question_making.making import Making

    make_with_progress(index, Path(out), Making(top_k, per_answer, limit, seed))


QUESTION_COMMANDS: dict[str, Any] = {
    "_help": "Make questions from an index.",
    "make": questions_make,
}
