"""Makes questions from an index: passages to drafts, drafts to checked candidates, candidates to rows of a file.

The passages are read twice, as a stream: once for the index's statistics, once for the questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from medagent.errors import InputError
from medagent.evaluation.question_making.checks import Checks
from medagent.evaluation.question_making.drafts import Candidate, Draft, Maker
from medagent.evaluation.question_making.options import with_options
from medagent.evaluation.question_making.output import question_row, sample_rows
from medagent.evaluation.question_making.rules import RuleMaker
from medagent.evaluation.question_making.selection import select
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever
from medagent.types import LETTERS, Question

BATCH = 512  # passages whose drafts are searched together
REPEATED = "the same question was made before"
Progress = Callable[[str, int, int], None]  # stage, done, total (passages)


def no_progress(stage: str, done: int, total: int) -> None:
    """Show nothing."""


class SearchedIndex(Retriever, Protocol):
    """An index that can be searched and read, as `HybridRetriever`."""

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages, in row order."""
        ...

    def passage(self, id: str) -> Passage | None:
        """The passage of an id."""
        ...


@dataclass(frozen=True)
class Making:
    """Settings of question making; see `medagent questions make`."""

    top_k: int = 10
    per_answer: int = 50
    options: int = 0
    limit: int = 0
    sample: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range, before anything is read."""
        if self.top_k < 1 or self.per_answer < 1 or min(self.limit, self.sample) < 0:
            raise InputError(
                f"questions: found --top_k {self.top_k}, --per_answer {self.per_answer}, --limit {self.limit} and "
                f"--sample {self.sample}, wanted at least 1 for the first two and at least 0 for the others."
            )
        if self.options and not 2 <= self.options <= len(LETTERS):
            raise InputError(f"--options {self.options}: wanted 0 for open questions, or 2 to {len(LETTERS)}.")


@dataclass(frozen=True)
class Made:
    """Questions as rows of `JsonlBenchmark`, a sample of them to label, and how many drafts were dropped and why."""

    rows: list[dict[str, Any]]
    sample: list[dict[str, Any]]
    drafts: int
    dropped: Counter[str]


def make_questions(
    index: SearchedIndex,
    analyser: Analyser,
    making: Making,
    *,
    without: Sequence[Question] = (),
    progress: Progress = no_progress,
) -> Made:
    """Make questions by rules. Those that repeat one of `without`, the questions of benchmarks, are dropped."""
    statistics = CorpusStatistics(analyser)
    count_index(index, statistics, progress)
    found = find_candidates(index, RuleMaker(statistics), Checks(statistics), top_k=making.top_k, progress=progress)
    chosen, dropped = select(
        found.candidates,
        seed=making.seed,
        per_answer=making.per_answer,
        limit=making.limit,
        without=without,
        analyser=analyser,
    )

    def texts_of(ids: Sequence[str]) -> str:
        passages = [index.passage(id_) for id_ in ids]
        return "\n".join(passage.indexed_text for passage in passages if passage is not None)

    rows = [question_row(each) for each in chosen]
    if making.options:
        choices, without_options = with_options(
            chosen, making.options, statistics=statistics, texts_of=texts_of, seed=making.seed
        )
        dropped += without_options
        rows = [question_row(each) for each in choices]
    sample = sample_rows(rows, making.sample, seed=making.seed, text_of=lambda id_: texts_of([id_]))
    return Made(rows, sample, found.drafts, dropped + found.dropped)


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
