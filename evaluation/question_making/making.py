"""Makes questions from an index, whose passages are read twice: for its statistics, and for drafts to check."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.question_making.checks import Candidate, Checks
from medagent.evaluation.question_making.rules import Draft, rule_drafts
from medagent.evaluation.question_making.selection import select
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever

BATCH = 512  # passages whose drafts are searched together
REPEATED = "the same question was made before"
# Yields each draft with its passage, in the order of the passages: `rules.rule_drafts`, or another one.
Maker = Callable[[Iterable[Passage]], Iterator[tuple[Draft, Passage]]]
Progress = Callable[[str, int, int], None]  # stage, done, total (passages)


@dataclass(frozen=True)
class Making:
    """Settings of question making; see `medagent questions make`."""

    top_k: int = 10
    per_answer: int = 50
    limit: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range, before anything is read."""
        if self.top_k < 1 or self.per_answer < 1 or self.limit < 0:
            raise InputError(
                f"questions: found --top_k {self.top_k}, --per_answer {self.per_answer} and --limit {self.limit}, "
                "wanted at least 1 for the first two and at least 0 for the last."
            )


@dataclass
class Found:
    """Questions that passed the checks, the number of drafts, and how many were dropped for each reason."""

    candidates: list[Candidate] = field(default_factory=list)
    drafts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def make_questions(
    index: HybridRetriever, making: Making, progress: Progress = lambda stage, done, total: None
) -> Found:
    """Make questions by rules."""
    analyser = Analyser(index.manifest.settings.analyser)
    statistics = CorpusStatistics(analyser)
    count_index(index, statistics, progress)
    maker = partial(rule_drafts, statistics=statistics)
    found = find_candidates(index, maker, Checks(statistics), top_k=making.top_k, progress=progress)
    chosen, dropped = select(
        found.candidates, seed=making.seed, per_answer=making.per_answer, limit=making.limit, analyser=analyser
    )
    return Found(chosen, found.drafts, dropped + found.dropped)


def count_index(
    index: HybridRetriever, statistics: CorpusStatistics, progress: Progress = lambda stage, done, total: None
) -> None:
    """Fill the statistics from an index's passages."""
    total = len(index.passages)
    for passage in index.passages:
        statistics.add(passage)
        if statistics.passages % BATCH == 0 or statistics.passages == total:
            progress("counting", statistics.passages, total)


def find_candidates(
    index: HybridRetriever,
    maker: Maker,
    checks: Checks,
    *,
    top_k: int,
    progress: Progress = lambda stage, done, total: None,
) -> Found:
    """Make and check the questions of all passages. Search must find a question's passage among `top_k`."""
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
        results = index.search([draft.question for draft, _ in pairs], top_k=top_k) if pairs else []
        for (draft, passage), hits in zip(pairs, results, strict=True):
            checked = checks.after_search(draft, passage, hits)
            if isinstance(checked, str):
                found.dropped[checked] += 1
            else:
                found.candidates.append(checked)
        progress("questions", min(start + BATCH, total), total)
    return found


def question_row(candidate: Candidate) -> dict[str, Any]:
    """A line of `JsonlBenchmark`.

    The id depends on question and answer alone. `meta` keeps the source, its licence where it is known, the passage's
    title and the sentence.
    """
    right, *others = candidate.answers
    made = hashlib.sha256(f"{candidate.question}\n{right}".encode()).hexdigest()[:12]
    meta = {name: getattr(candidate, name) for name in ("family", "source", "licence", "title", "sentence")}
    return {
        "id": f"made:{made}",
        "question": candidate.question,
        "answer": [right, *others] if others else right,
        "kind": candidate.kind,
        "gold_passage_ids": list(candidate.gold_ids),
        "meta": {name: text for name, text in meta.items() if text},
    }
