"""Makes questions from an index: passages to drafts, and drafts to checked candidates.

The passages are read twice, as a stream: once for the index's statistics, once for the questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from medagent.errors import InputError
from medagent.evaluation.question_making.checks import Checks
from medagent.evaluation.question_making.drafts import Candidate, Draft, Maker
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever

BATCH = 512  # passages whose drafts are searched together
REPEATED = "the same question was made before"
Progress = Callable[[str, int, int], None]  # stage, done, total (passages)


class SearchedIndex(Retriever, Protocol):
    """An index that can be searched and read, as `HybridRetriever`."""

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages, in row order."""
        ...


def no_progress(stage: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass
class Found:
    """The candidates of an index, the number of drafts, and how many were dropped for each reason."""

    candidates: list[Candidate] = field(default_factory=list)
    drafts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def count_index(index: SearchedIndex, statistics: CorpusStatistics, progress: Progress = no_progress) -> None:
    """Fill the statistics from an index's passages."""
    passages, total = iter(index.passages), len(index.passages)
    while batch := list(islice(passages, BATCH)):
        for passage in batch:
            statistics.add(passage)
        progress("counting", statistics.passages, total)


def find_candidates(
    index: SearchedIndex, maker: Maker, checks: Checks, *, top_k: int, progress: Progress = no_progress
) -> Found:
    """Make and check the questions of all passages. Search must find a question's passage among `top_k`."""
    if top_k < 1:
        raise InputError(f"--top_k {top_k}: wanted at least 1.")
    found, asked = Found(), set[str]()
    passages, total = index.passages, len(index.passages)
    for start in range(0, total, BATCH):
        pairs: list[tuple[Draft, Passage]] = []
        for draft, passage in maker(passages[start : start + BATCH]):
            found.drafts += 1
            reason = checks.before_search(draft, passage) or (REPEATED if draft.question in asked else "")
            if reason:
                found.dropped[reason] += 1
            else:
                asked.add(draft.question)
                pairs.append((draft, passage))
        _search(index, pairs, checks, top_k, found)
        progress("questions", min(start + BATCH, total), total)
    return found


def _search(index: Retriever, pairs: Sequence[tuple[Draft, Passage]], checks: Checks, top_k: int, found: Found) -> None:
    """Search with each question, and add what passes the remaining checks to `found`."""
    results = index.search([draft.question for draft, _ in pairs], top_k=top_k) if pairs else []
    for (draft, passage), hits in zip(pairs, results, strict=True):
        finding = checks.after_search(draft, passage, hits)
        if finding.reason:
            found.dropped[finding.reason] += 1
            continue
        candidate = Candidate(
            draft.kind,
            draft.family,
            draft.question,
            draft.answers,
            draft.sentence,
            passage.title,
            passage.source,
            passage.licence,
            tuple(sorted(finding.gold_ids, key=lambda id_: id_ != passage.id)),
            finding.hit_ids,
        )
        found.candidates.append(candidate)
