"""A question before it is checked, and the question that passed the checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from medagent.retrieval.passages import Passage

DraftKind = Literal["definition", "name"]


@dataclass(frozen=True)
class Draft:
    """A question, its right answers (the first as its sentence has it), and the sentence.

    `family` names what the answer is, such as "gene" or "disorder": options come from one family.
    """

    kind: DraftKind
    family: str
    question: str
    answers: tuple[str, ...]
    sentence: str


class Maker(Protocol):
    """Makes drafts from passages: `rules.RuleMaker` by rules, another one perhaps by a model."""

    def __call__(self, passages: Iterable[Passage]) -> Iterator[tuple[Draft, Passage]]:
        """Yield each draft with its passage, in the order of the passages."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A question that passed the checks, with its answers, its passage's ids, and what search found for it.

    `gold_ids` are passages with the sentence, the question's own first.
    """

    kind: str
    family: str
    question: str
    answers: tuple[str, ...]
    sentence: str
    title: str
    source: str
    licence: str
    gold_ids: tuple[str, ...]
    hit_ids: tuple[str, ...]
