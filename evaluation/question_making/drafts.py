"""A question before it is checked, and the question that passed the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from medagent.retrieval.passages import Passage


@dataclass(frozen=True)
class Draft:
    """A question, its right answers (the first as its sentence has it), and the sentence.

    `family` names what the answer is, such as "gene" or "disorder".
    """

    kind: Literal["definition", "name"]
    family: str
    question: str
    answers: tuple[str, ...]
    sentence: str


# Yields each draft with its passage, in the order of the passages: `rules.rule_drafts`, or another one.
Maker = Callable[[Iterable[Passage]], Iterator[tuple[Draft, Passage]]]


@dataclass(frozen=True)
class Candidate(Draft):
    """A draft that passed the checks, with its passage's origin.

    `gold_ids` are passages with the sentence, the draft's own first.
    """

    title: str
    source: str
    licence: str
    gold_ids: tuple[str, ...]
