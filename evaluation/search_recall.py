"""The recall of the agent's searches, beside that of the question as its own query.

DeepRetrieval (arXiv 2503.00223) measures a query by recall@k: the share of the relevant texts among the first k
results. Here k is the number of distinct passages that all searches of a rollout showed. The question as a query gets
as many, so a higher recall comes from better queries, not from more passages. A rollout without a search has recall 0,
and is compared with one search for the question: else an agent that never searches would lose nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from medagent.evaluation.statistics import Estimate
from medagent.retrieval.controls import NoRetriever, corpus_of
from medagent.retrieval.passages import Passage, document_of, names_found, text_key
from medagent.retrieval.retriever import Retriever
from medagent.types import Question, Rollout

BATCH = 256  # questions per call of the retriever
RECALLS: dict[str, str] = {  # in the order of a report
    "passages": "gold passages, recall at k",
    "question_passages": "gold passages, the question as query",
    "passages_gain": "gold passages, searches less question",
    "documents": "gold documents, recall at k",
    "question_documents": "gold documents, the question as query",
    "documents_gain": "gold documents, searches less question",
}


@dataclass(frozen=True)
class SearchRecall:
    """Recall of one rollout.

    `shown` counts the distinct passages that its searches showed. `passages` and `documents` are the shares of the gold
    passages, and of their documents, among them. `question_...` are those of the question as its own query.
    """

    shown: int
    passages: float
    documents: float
    question_passages: float
    question_documents: float


def question_rankings(retriever: Retriever, questions: Iterable[Question], *, most: int) -> dict[str, list[Passage]]:
    """By id of each question with gold passages, the first `most` passages that search finds for its text."""
    searched = corpus_of(retriever)
    if isinstance(searched, NoRetriever):
        return {}
    known = [question for question in questions if question.gold_passage_ids]
    found: dict[str, list[Passage]] = {}
    for start in range(0, len(known), BATCH):
        some = known[start : start + BATCH]
        results = searched.search([question.text for question in some], top_k=most)
        found |= {q.id: [hit.passage for hit in hits] for q, hits in zip(some, results, strict=True)}
    return found


def recall_of(rollout: Rollout, ranking: Sequence[Passage], *, top_k: int) -> SearchRecall:
    """The recall of a rollout whose question names gold passages. `ranking` is the question's own, best first.

    `top_k` passages are what one search shows.

    A gold passage counts as shown when a passage of its id was, or, where the id ends in the hash of its text, one of
    its text. A gold document that the index has cut counts when one of its parts was shown.
    """
    gold = rollout.question.gold_passage_ids
    shown = list({hit.passage.id: hit.passage for hit in rollout.hits}.values())
    own = list({passage.id: passage for passage in ranking}.values())[: len(shown) or top_k]
    return SearchRecall(len(shown), *_shares(gold, shown), *_shares(gold, own))


def _shares(gold: Sequence[str], shown: Sequence[Passage]) -> tuple[float, float]:
    """The shares of the gold passages and of their documents among the passages shown."""
    wanted = {text_key(name): name for name in gold}.values()
    documents = {document_of(name) for name in gold}
    held_documents = {passage.document or document_of(passage.id) for passage in shown}
    return len(names_found(wanted, shown)) / len(wanted), len(documents & held_documents) / len(documents)


def report_recall(recalls: Sequence[SearchRecall]) -> dict[str, Any] | None:
    """The mean number of passages `shown`, and an estimate by each name of `RECALLS`; None of nothing.

    The gains are means of agent minus question, rollout by rollout.
    """
    if not recalls:
        return None
    values = {name: [getattr(each, name) for each in recalls] for name in RECALLS if not name.endswith("_gain")}
    for name in ("passages", "documents"):
        pairs = zip(values[name], values[f"question_{name}"], strict=True)
        values[f"{name}_gain"] = [own - asked for own, asked in pairs]
    shown = sum(each.shown for each in recalls) / len(recalls)
    return {"shown": shown, **{name: Estimate.mean(found) for name, found in values.items()}}
