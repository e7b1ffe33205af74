"""Makes questions from an index, whose passages are read twice: for its statistics, and for drafts to check."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.contamination import contamination
from medagent.evaluation.question_making.checks import Candidate, Checks
from medagent.evaluation.question_making.rules import Draft, rule_drafts
from medagent.evaluation.question_making.selection import select
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.evaluation.question_making.writer import Writer
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question

BATCH = 64  # passages whose drafts are made and searched together
REPEATED = "the same question was made before"
CONTAMINATED = "near-duplicate of a test question"
# Yields each draft, or why there is none, with its passage, in the order of the passages.
Maker = Callable[[Iterable[Passage]], Iterator[tuple[Draft | str, Passage]]]
Progress = Callable[[str, int, int], None]  # stage, done, total (passages)


@dataclass(frozen=True)
class Making:
    """Settings of question making; see `medagent questions make`."""

    top_k: int = 10
    per_answer: int = 50
    limit: int = 0
    seed: int = 0
    passages: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range, before anything is read."""
        if self.top_k < 1 or self.per_answer < 1 or min(self.limit, self.passages) < 0:
            raise InputError(
                f"questions: found --top_k {self.top_k}, --per_answer {self.per_answer}, --limit {self.limit} and "
                f"--passages {self.passages}, wanted at least 1 for the first two and at least 0 for the others."
            )


@dataclass
class Found:
    """Questions that passed the checks, the number of drafts, and how many were dropped for each reason."""

    candidates: list[Candidate] = field(default_factory=list)
    drafts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def make_questions(
    index: HybridRetriever,
    making: Making,
    progress: Progress = lambda stage, done, total: None,
    *,
    writer: Writer | None = None,
    tests: Sequence[Question] = (),
) -> Found:
    """Make questions by a writer, or else by rules. None nearly repeats a question of `tests`."""
    analyser = Analyser(index.manifest.settings.analyser)
    statistics = CorpusStatistics(analyser)
    count_index(index, statistics, progress)
    maker = writer.drafts if writer else partial(rule_drafts, statistics=statistics)
    passages = index.passages.drawn(making.passages, making.seed) if making.passages else index.passages
    checks, last_check = Checks(statistics), writer.reasons if writer else None
    found = find_candidates(
        index, maker, checks, top_k=making.top_k, progress=progress, passages=passages, last_check=last_check
    )
    clean = uncontaminated(found.candidates, tests)
    repeated = Counter({CONTAMINATED: len(found.candidates) - len(clean)})
    chosen, dropped = select(
        clean, seed=making.seed, per_answer=making.per_answer, limit=making.limit, analyser=analyser
    )
    return Found(chosen, found.drafts, dropped + repeated + found.dropped)


def uncontaminated(candidates: Sequence[Candidate], tests: Sequence[Question]) -> list[Candidate]:
    """The candidates without those that a test question nearly repeats."""
    left = {str(at): each for at, each in enumerate(candidates)}
    # A test question names the closest text alone: the next one comes to light without that.
    while named := contamination(tests, ((at, each.question) for at, each in left.items())).near_duplicates:
        left = {at: each for at, each in left.items() if at not in {pair.train_id for pair in named}}
    return list(left.values())


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
    passages: Sequence[Passage] | None = None,
    last_check: Callable[[Sequence[tuple[Candidate, Passage]]], Sequence[str]] | None = None,
) -> Found:
    """Make and check the questions of passages, by default all. Search must find a question's passage among `top_k`.

    `last_check` says why each of the candidates left is dropped; an empty text keeps it.
    """
    found, asked, passages = Found(), set[str](), index.passages if passages is None else passages
    total = len(passages)
    for start in range(0, total, BATCH):
        pairs: list[tuple[Draft, Passage]] = []
        for draft, passage in maker(passages[start : start + BATCH]):
            found.drafts += 1
            if isinstance(draft, str):
                found.dropped[draft] += 1
            elif reason := checks.before_search(draft, passage) or (REPEATED if draft.question in asked else ""):
                found.dropped[reason] += 1
            else:
                asked.add(draft.question)
                pairs.append((draft, passage))
        results = index.search([draft.question for draft, _ in pairs], top_k=top_k) if pairs else []
        checked: list[tuple[Candidate, Passage]] = []
        for (draft, passage), hits in zip(pairs, results, strict=True):
            candidate = checks.after_search(draft, passage, hits)
            if isinstance(candidate, str):
                found.dropped[candidate] += 1
            else:
                checked.append((candidate, passage))
        reasons = last_check(checked) if last_check else [""] * len(checked)
        found.candidates += [each for (each, _), reason in zip(checked, reasons, strict=True) if not reason]
        found.dropped.update(filter(None, reasons))
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
