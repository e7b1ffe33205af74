"""A task of one's own: open questions (no options), a reward by exact match, and a tool beside the corpus.

README.md explains it. This writes dialogues.jsonl for `medagent sft`:

    python open_qa.py
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from medagent.answer_forms import without_citations
from medagent.evaluation.open_measures import exact_match
from medagent.starter.templates import RELATIONS
from medagent.starter.world import Split, World
from medagent.types import Question, Rollout, StopReason


class OpenQuestions:
    """The dataset: facts of the starter world asked without options, and sums of doses.

    Any class with `questions()` is one.
    """

    def __init__(self, split: Split = "train", facts: int = 300, doses: int = 300) -> None:
        """`facts` and `doses`: how many of each, at most."""
        self._split, self._facts, self._doses = split, facts, doses

    def questions(self) -> list[Question]:
        """All questions, in a fixed order."""
        return [*self._about_facts(), *self._about_doses()]

    def _about_facts(self) -> list[Question]:
        known = [each for each in World.load().questions(self._split) if each.kind == "one_hop"]
        return [
            Question(
                id=f"open:{each.id}",
                text=each.text,
                answer=each.options["ABCD".index(each.answer)],
                kind="fact",
                gold_passage_ids=each.gold_passage_ids,
                meta=each.meta,
            )
            for each in known[: self._facts]
        ]

    def _about_doses(self) -> list[Question]:
        ends = {"train": (0, 1, 2, 3, 4, 5), "validation": (6,), "test": (7, 8, 9)}[self._split]  # no weight is in two
        weights = [weight for weight in range(3, 121) if weight % 10 in ends]
        pairs = [(per_kg, weight) for per_kg in (2, 5, 10, 15, 20, 25, 30, 50) for weight in weights]
        random.Random(0).shuffle(pairs)
        return [
            Question(
                id=f"dose:{per_kg}:{weight}",
                text=f"How much is {per_kg} mg per kg for {weight} kg?",
                answer=f"{per_kg * weight} mg",
                kind="dose",
                meta={"call": f"dose: {per_kg} mg {weight} kg"},
            )
            for per_kg, weight in pairs[: self._doses]
        ]


class ExactMatch:
    """The reward.

    `right` for an answer that equals a gold one (SQuAD's normalisation), `looked` for a wrong one that was looked up.
    """

    def __init__(self, right: float = 1.0, looked: float = 0.1) -> None:
        """`looked` is small: an answer that was looked up is easier to put right than a guess."""
        self._right, self._looked = right, looked

    def __call__(self, rollout: Rollout) -> Rollout:
        """The graded rollout."""
        answered = rollout.stop_reason is StopReason.ANSWERED and rollout.answer is not None
        success = answered and exact_match(without_citations(rollout.answer or ""), rollout.question.golds)
        looked = self._looked if answered and rollout.num_searches else 0.0
        return rollout.graded(self._right if success else looked, success=success)


def dose(asked: str) -> str:
    """The milligrams of a dose by weight: the tool. An example of one, not one to dose by.

    Args:
        asked: A dose per kilogram and a weight, such as 15 mg 70 kg.
    """
    found = re.fullmatch(r"(\d{1,4}) mg (\d{1,3}) kg", asked)
    if not found:
        raise ValueError("wanted a dose and a weight, such as 15 mg 70 kg")
    return f"The dose is {int(found[1]) * int(found[2])} mg."


def demonstrations(questions: list[Question]) -> Iterator[dict[str, object]]:
    """Dialogues as a person would write them: one search or call, and the answer with its source."""
    passages = {passage.id: passage for passage in World.load().passages()}
    for question in questions:
        if question.kind == "dose":
            call = question.meta["call"]
            shown = {"title": call, "text": dose(call.removeprefix("dose: "))}
        else:
            call = f"{question.meta['condition']} {RELATIONS[question.meta['relation']].key}"
            passage = passages[question.gold_passage_ids[0]]
            shown = {"title": passage.title, "text": passage.text}
        yield {
            "question": question.text,
            "turns": [
                {"text": f"<search> {call}</search>", "passages": [shown]},
                {"text": f"<answer> {question.answer} [1]</answer>"},
            ],
        }


def write(path: str, rows: Iterable[dict[str, object]]) -> None:
    """JSON lines."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    write("dialogues.jsonl", demonstrations(OpenQuestions().questions()))
