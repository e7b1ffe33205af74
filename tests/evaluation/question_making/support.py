"""A small corpus of facts, and what the tests of made questions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from medagent.evaluation.question_making.checks import Checks, Draft
from medagent.retrieval.analysis import Analyser
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


def checks_of(passages: Sequence[Passage] = PASSAGES) -> Checks:
    analyser = Analyser()
    counts = Counter(token for each in passages for token in set(analyser.tokens(each.indexed_text)))
    return Checks(analyser, len(passages), counts.__getitem__)


def draft(question: str, answer: str, *, sentence: str = "A sentence.", passage: Passage = PASSAGES[1]) -> Draft:
    return Draft(question, answer, sentence, passage, (passage.id,))


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
