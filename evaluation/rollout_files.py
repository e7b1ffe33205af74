"""Rollouts as readable JSON lines, and back again. Tokens are left out: those belong to training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medagent.answer_forms import FORM_HINTS
from medagent.evaluation.grading.grade import grade
from medagent.files import write_whole
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn


def readable(rollout: Rollout) -> dict[str, Any]:
    """A rollout as plain data: the question, each turn with what it retrieved, the grade."""
    result, question = grade(rollout), rollout.question
    return {
        "question": question.text,
        "options": dict(zip(question.letters, question.options, strict=True)),
        "gold": question.answer,
        "aliases": list(question.aliases),
        **_form(question),
        "kind": question.kind,
        "gold_passage_ids": list(question.gold_passage_ids),
        "meta": dict(question.meta),
        "turns": [
            {
                "text": turn.text,
                "query": turn.query,
                "passages": [
                    {
                        **hit.passage.to_json(),
                        "title": hit.passage.title,
                        "source": hit.passage.source,
                        "score": hit.score,
                    }
                    for hit in turn.hits
                ],
                "tokens": len(turn.token_ids) - turn.forced_prefix,
            }
            for turn in rollout.turns
        ],
        "answer": rollout.answer,
        "letter": result.letter,
        "lenient_letter": result.lenient_letter,
        "verdict": result.verdict.value,
        "cited": list(result.cited),
        "reward": rollout.reward,
        "stop_reason": rollout.stop_reason.value,
        "policy_version": rollout.policy_version,
        "question_id": question.id,
        "sample": rollout.sample,
    }


def _form(question: Question) -> dict[str, Any]:
    """The form of an open answer where it is not one text, and the items of a list."""
    form = {"form": question.form} if question.form != "text" else {}
    return form | ({"items": [list(item) for item in question.items]} if question.items else {})


def rollout_from(row: Mapping[str, Any]) -> Rollout:
    """The rollout of a readable row: all that grading, summaries and reports need.

    Tokens and log-probs are not in it. Raises `ValueError` for a form of answer that is none.
    """
    form = row.get("form", "text")
    if form not in FORM_HINTS:
        raise ValueError(f"form: found {form!r}, wanted one of {', '.join(FORM_HINTS)}")
    question = Question(
        id=row["question_id"],
        text=row["question"],
        options=tuple(row["options"].values()),
        answer=row["gold"],
        kind=row["kind"],
        gold_passage_ids=tuple(row["gold_passage_ids"]),
        meta=row["meta"],
        aliases=tuple(row["aliases"]),
        form=form,
        items=tuple(map(tuple, row.get("items", ()))),
    )
    turns = [
        Turn(
            (),
            (),
            turn["text"],
            query=turn["query"],
            hits=tuple(
                Hit(Passage.from_json({k: v for k, v in hit.items() if k != "score"}), hit["score"])
                for hit in turn["passages"]
            ),
        )
        for turn in row["turns"]
    ]
    if turns and row["answer"] is not None:
        turns[-1] = Turn((), (), turns[-1].text, answer=row["answer"])
    return Rollout(
        question,
        (),
        tuple(turns),
        StopReason(row["stop_reason"]),
        policy_version=row["policy_version"],
        sample=row["sample"],
        reward=row["reward"],
        success=row["verdict"] == "correct",
    )


def write_records(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts as JSON lines, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(readable(rollout), ensure_ascii=False) + "\n" for rollout in rollouts))
