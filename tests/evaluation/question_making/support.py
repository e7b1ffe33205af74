"""A small corpus of facts, and what the tests of made questions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from medagent.evaluation.question_making.checks import Candidate
from medagent.evaluation.question_making.rules import Draft, Source
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.passages import Hit, Passage

FACTS = (
    (
        "Costello syndrome",
        "Costello syndrome is a rare disorder that affects many parts of the body and delays growth.",
    ),
    (
        "Costello syndrome",
        "Mutations in the HRAS gene cause Costello syndrome. Nearly every family studied shows them.",
    ),
    (
        "Chlorotic plague",
        "Chlorotic plague is a disease in which lichen colonies bleach the nails of wandering shepherds.",
    ),
    ("COPD", "The most common cause of COPD is cigarette smoking. Coughing mornings trouble smokers over many years."),
    (
        "The Skin",
        "Osteoclasts are bone cells that destroy old matrix. Hair follicles reach below it in most places.",
    ),
    ("Brain", "The hypothalamus controls body temperature, thirst and the release of eight pituitary hormones."),
    ("Lentigo", "Lentigo maligna melanoma (LMM) is a type of skin cancer that usually develops in older adults."),
    (
        "Fish-eye disease",
        "Fish-eye disease is a rare disorder that affects the corneas of adults. Doctors see it in few families.",
    ),
    ("Canavan disease", "Symptoms of Canavan disease usually appear in the first six months of life and worsen fast."),
)
PASSAGES = [Passage.make(title, text, "Primer", id=f"f{number}") for number, (title, text) in enumerate(FACTS)]


def counted(passages: Iterable[Passage] = PASSAGES) -> CorpusStatistics:
    statistics = CorpusStatistics()
    for passage in passages:
        statistics.add(passage)
    return statistics


def drafts(
    rule: Callable[[Source], Iterator[Draft]],
    sentence: str,
    *,
    title: str = "",
    statistics: CorpusStatistics | None = None,
):
    """(question, answers) of a rule."""
    source = Source(sentence, title, statistics or counted())
    return [(draft.question, draft.answers) for draft in rule(source)]


def draft(question: str, *answers: str, sentence: str = "", kind="name", family: str = "name") -> Draft:
    return Draft(kind, family, question, answers, sentence)


def candidate(question: str, *answers: str) -> Candidate:
    return Candidate("name", "gene", question, answers, "A sentence.", "Title", "Primer", "", ("p",))


class Searched:
    """An index that finds the passages which share most words with the query."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        self.queries += queries
        return [self._best(set(query.lower().strip("?").split()), top_k) for query in queries]

    def _best(self, words: set[str], top_k: int) -> list[Hit]:
        scored = [
            Hit(passage, float(len(words.intersection(passage.indexed_text.lower().replace(".", "").split()))))
            for passage in self.passages
        ]
        return sorted(scored, key=lambda hit: -hit.score)[:top_k]
