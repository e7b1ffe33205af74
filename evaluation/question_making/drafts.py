"""A question before it is checked, and the sentence that it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.evaluation.question_making.text import is_term, without_brackets

DraftKind = Literal["definition", "cause", "treatment", "number", "name"]
_THIS = re.compile(
    r"^(?:This|The) (?:rare |genetic |inherited )?(?:condition|disorder|disease|syndrome)(?= (?:is|has|affects|occurs|"
    r"can)\b)"
)


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


@dataclass(frozen=True)
class Source:
    """A sentence as a rule sees it: with its passage's title, the index's statistics and the sentence before it."""

    sentence: str
    title: str
    statistics: CorpusStatistics
    before: str = ""

    @property
    def text(self) -> str:
        """The sentence without its full stop, with "This condition" replaced by the title.

        That is done only where the index says elsewhere that the title is a disease or the like.
        """
        plain = self.sentence.rstrip(". ")
        if self.title.lower() in self.statistics.topics and is_term(self.title, longest=8):
            return _THIS.sub(lambda _: self.title[:1].upper() + self.title[1:], plain)
        return plain

    def inside(self, phrase: str) -> str:
        """A phrase as it stands inside a sentence."""
        return self.statistics.inside(phrase)


Rule = Callable[[Source], Iterator[Draft]]


def named(phrase: str) -> tuple[str, tuple[str, ...]]:
    """A phrase without brackets, and the other name that the bracket gives, where it gives one.

    >>> named("lentigo maligna melanoma (LMM)")
    ('lentigo maligna melanoma', ('LMM',))
    """
    plain = without_brackets(phrase)
    inner = re.findall(r"\(([^()]*)\)", phrase)
    other = re.sub(r"^(?:also called|also known as|or)\s+", "", inner[0]) if len(inner) == 1 else ""
    return plain, (other,) if other and is_term(other) and other.lower() != plain.lower() else ()


def sentence_case(text: str) -> str:
    """The text with a capital first."""
    return text[:1].upper() + text[1:]
