"""Questions from an index: sentences to drafts, drafts to checked candidates, candidates to a selection.

The passages are read twice, as a stream: once for the index's statistics, once for the questions. Finished stretches
are kept in a file beside the output, so an interrupted run goes on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from medagent.errors import InputError
from medagent.evaluation.question_making.candidates import Candidate, CandidateFile
from medagent.evaluation.question_making.checks import Checks
from medagent.evaluation.question_making.drafts import Draft
from medagent.evaluation.question_making.rules import drafts_of
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever

STRETCH = 512  # passages between two marks
RULES_VERSION = 1  # raise it with every change of rules or checks: what an older version found is then made again
Progress = Callable[[str, int, int, int], None]  # stage, done, total (passages), questions so far
Rewrite = Callable[[Sequence[tuple[Draft, Passage]]], list[Draft | None]]


class SearchedIndex(Retriever, Protocol):
    """An index that can be searched and read, as `HybridRetriever`."""

    @property
    def passages(self) -> Sequence[Passage]:
        """All passages, in row order."""
        ...


def no_progress(stage: str, done: int, total: int, questions: int) -> None:
    """Show nothing."""


@dataclass
class Found:
    """The candidates of an index, how many drafts there were, and how many were dropped for which reason."""

    candidates: list[Candidate]
    statistics: CorpusStatistics
    drafts: int
    dropped: Counter[str] = field(default_factory=Counter)


DRAFTS = "drafts"


def find_candidates(
    index: SearchedIndex,
    statistics: CorpusStatistics,
    file: CandidateFile,
    *,
    top_k: int,
    rewrite: Rewrite | None = None,
    progress: Progress = no_progress,
) -> Found:
    """Draft and check the questions of all passages that `file` lacks; `rewrite` may word the drafts anew."""
    if top_k < 1:
        raise InputError(f"--top_k {top_k}: wanted at least 1.")
    checks, passages = Checks(statistics), index.passages
    total = len(passages)
    while file.done < total:
        stretch = passages[file.done : file.done + STRETCH]
        counts: Counter[str] = Counter()
        pairs = [(draft, passage) for passage in stretch for draft in drafts_of(passage, statistics)]
        counts[DRAFTS] = len(pairs)
        kept = [
            (draft, passage) for draft, passage in pairs if not _dropped(checks.before_search(draft, passage), counts)
        ]
        fresh: dict[str, tuple[Draft, Passage]] = {}
        for draft, passage in kept:
            if draft.question in file.asked or draft.question in fresh:
                counts[REPEATED_SENTENCE] += 1
            else:
                fresh[draft.question] = draft, passage
        pairs = list(fresh.values())
        if rewrite is not None:
            pairs = _rewritten(pairs, rewrite, checks, counts)
        found = _searched(index, pairs, checks, counts, top_k)
        file.add(found, done=file.done + len(stretch), counts=counts, asked=list(fresh))
        progress("questions", file.done, total, len(file.candidates))
    dropped = Counter({reason: number for reason, number in file.counts.items() if reason != DRAFTS})
    return Found(file.candidates, statistics, file.counts[DRAFTS], dropped)


REPEATED_SENTENCE = "the same question was made before"
NOT_WRITTEN = "the writer gave no question"


def _dropped(reason: str, counts: Counter[str]) -> bool:
    if reason:
        counts[reason] += 1
    return bool(reason)


def _rewritten(
    pairs: Sequence[tuple[Draft, Passage]], rewrite: Rewrite, checks: Checks, counts: Counter[str]
) -> list[tuple[Draft, Passage]]:
    """The drafts as the writer words them; those that it fails, or that the checks then refuse, are counted."""
    written = []
    for draft, (_, passage) in zip(rewrite(pairs), pairs, strict=True):
        if draft is None:
            counts[NOT_WRITTEN] += 1
        elif not _dropped(checks.before_search(draft, passage), counts):
            written.append((draft, passage))
    return written


def _searched(
    index: Retriever, pairs: Sequence[tuple[Draft, Passage]], checks: Checks, counts: Counter[str], top_k: int
) -> list[Candidate]:
    hits = index.search([draft.question for draft, _ in pairs], top_k=top_k) if pairs else []
    found = []
    for (draft, passage), some in zip(pairs, hits, strict=True):
        finding = checks.after_search(draft, passage, some)
        if _dropped(finding.reason, counts):
            continue
        own_first = sorted(finding.gold_ids, key=lambda id_: id_ != passage.id)
        found.append(
            Candidate(
                draft.kind,
                draft.family,
                draft.question,
                draft.answers,
                draft.sentence,
                passage.title,
                passage.source,
                passage.licence,
                tuple(own_first),
                finding.hit_ids,
            )
        )
    return found


def count_index(index: SearchedIndex, statistics: CorpusStatistics, progress: Progress = no_progress) -> None:
    """Fill the statistics from an index's passages."""
    passages = iter(index.passages)
    total = len(index.passages)
    while stretch := list(islice(passages, STRETCH)):
        for passage in stretch:
            statistics.add(passage)
        progress("counting", statistics.passages, total, 0)


def candidate_path(out: Path) -> Path:
    """The file of candidates beside an output."""
    return out.with_name(out.name + ".part")
