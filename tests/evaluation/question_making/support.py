"""A small corpus of facts, and what the tests of made questions share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from medagent.evaluation.question_making.candidates import Candidate
from medagent.evaluation.question_making.drafts import Draft, Rule, Source
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
        "Costello syndrome",
        "This condition is inherited in an autosomal dominant pattern, which means one copy suffices.",
    ),
    ("COPD", "The most common cause of COPD is cigarette smoking. Coughing mornings trouble smokers over many years."),
    ("Carcinoid", "Carcinoid syndrome is usually treated with octreotide or lanreotide. Both lessen flushing quickly."),
    (
        "The Skin",
        "The outermost layer of the skin is called the epidermis. Hair follicles reach below it in most places.",
    ),
    (
        "Lymphoma",
        "When a person with AIDS has non-Hodgkin lymphoma, it is called AIDS-related lymphoma by oncologists.",
    ),
    ("Brain", "The hypothalamus controls body temperature, thirst and the release of eight pituitary hormones."),
    (
        "Waardenburg syndrome",
        "About 20 percent of people with Waardenburg syndrome have severe hearing loss in one ear.",
    ),
    (
        "Kidney",
        "Each kidney contains eight renal lobes of equal size. Nephrons inside them filter plasma day and night.",
    ),
    ("Lentigo", "Lentigo maligna melanoma (LMM) is a type of skin cancer that usually develops in older adults."),
    (
        "Fish-eye disease",
        "Fish-eye disease, also called partial LCAT deficiency, is a disorder that clouds the corneas.",
    ),
    (
        "Netherton syndrome",
        "Netherton syndrome affects approximately 1 in 200,000 newborns. It damages their skin barrier.",
    ),
    ("Pancreas", "The pancreas lies behind the stomach and in front of the spine. Islets inside it make insulin."),
    ("Nerves", "Pain begins in nerve cells called nociceptors that transmit pain signals to the spinal cord."),
    ("Canavan disease", "Symptoms of Canavan disease usually appear in the first six months of life and worsen fast."),
)
PASSAGES = [Passage.make(title, text, "Primer", id=f"f{number}") for number, (title, text) in enumerate(FACTS)]


def counted(passages: Iterable[Passage] = PASSAGES) -> CorpusStatistics:
    return CorpusStatistics.of(passages)


def drafts(rule: Rule, sentence: str, *, title: str = "", before: str = "", statistics: CorpusStatistics | None = None):
    """(question, answers) of a rule."""
    source = Source(sentence, title, statistics or counted(), before)
    return [(draft.question, draft.answers) for draft in rule(source)]


def draft(question: str, *answers: str, sentence: str = "", kind="name", family: str = "name") -> Draft:
    return Draft(kind, family, question, answers, sentence)


def candidate(question: str, *answers: str, family: str = "gene", hits: Sequence[str] = ("p",)) -> Candidate:
    return Candidate("name", family, question, answers, "A sentence.", "Title", "Primer", "", ("p",), tuple(hits))


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
