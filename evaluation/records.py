"""Rollouts as JSON lines that a person can read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.grading import grade
from medagent.records import Rollout


def readable(rollout: Rollout) -> dict[str, Any]:
    """A rollout as plain data: the question, each turn with what it retrieved, the grade."""
    result = grade(rollout)
    return {
        "question": rollout.question.text,
        "options": dict(zip(rollout.question.letters, rollout.question.options, strict=True)),
        "gold": rollout.question.answer,
        "kind": rollout.question.kind,
        "turns": [
            {
                "text": turn.text,
                "query": turn.query,
                "passages": [
                    {"id": hit.passage.id, "title": hit.passage.title, "text": hit.passage.text, "score": hit.score}
                    for hit in turn.hits
                ],
            }
            for turn in rollout.turns
        ],
        "answer": rollout.answer,
        "letter": result.letter,
        "verdict": result.verdict.value,
        "cited": list(result.cited),
        "reward": rollout.reward,
        "stop_reason": rollout.stop_reason.value,
        "iteration": rollout.iteration,
        "question_id": rollout.question.id,
        "sample": rollout.sample,
    }


def write_records(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts as JSON lines, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(
        "".join(json.dumps(readable(rollout), ensure_ascii=False) + "\n" for rollout in rollouts), encoding="utf-8"
    )
    os.replace(part, path)
