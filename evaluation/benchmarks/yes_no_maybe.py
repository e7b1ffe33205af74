"""Questions decided by the literature: PubMedQA as three different tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from medagent.errors import InputError
from medagent.evaluation.benchmarks.base import FileBenchmark
from medagent.evaluation.benchmarks.rows import Row, text_field
from medagent.retrieval.passages import Passage
from medagent.types import LETTERS, Question

DECISIONS = ("yes", "no", "maybe")
_WANTED = "wanted PubMedQA's published JSON: an object from PMID to QUESTION, CONTEXTS, final_decision"
Task = Literal["without_abstract", "with_abstract", "yes_no"]


@dataclass(eq=False)
class PubMedQABenchmark(FileBenchmark):
    """PubMedQA's expert-labelled questions (arXiv 1909.06146), as one of three tasks.

    The tasks are not comparable with one another. "without_abstract": yes / no / maybe, and the abstract is to be found
    by search. MIRAGE (arXiv 2402.13178) calls this PubMedQA*. "with_abstract": yes / no / maybe with the abstract in
    the question. It is the data set's own "reasoning-required" setting. "yes_no": without abstract, and without the
    questions whose answer is maybe. It has two options.

    Rows: the published object from PMID to QUESTION, CONTEXTS, final_decision, or the hub's (pubid, question, context,
    final_decision). LONG_ANSWER is the answer's wording and is never shown or indexed. The gold passage of a question
    is its abstract.
    """

    kind, suffix = "json", ".json"

    subset: str | None = "pqa_labeled"
    split: str = "train"  # the hub's name for the labelled questions
    task: Task = "without_abstract"

    def question(self, row: Row) -> Question | None:
        pmid, text, contexts, decision = _entry(row)
        options = DECISIONS[:2] if self.task == "yes_no" else DECISIONS
        if decision not in options:
            return None
        shown = f"{' '.join(contexts)} {text}" if self.task == "with_abstract" else text
        return Question(
            id=f"pubmedqa:{pmid}",
            text=shown,
            options=options,
            answer=LETTERS[options.index(decision)],
            kind="pubmedqa",
            gold_passage_ids=() if self.task == "with_abstract" else (f"pubmed:{pmid}",),
            meta={"benchmark": f"pubmedqa ({self.task})"},
        )

    def passages(self) -> list[Passage]:
        return [_abstract(row) for row in self.rows()]


def pubmedqa_passages(source: str) -> list[Passage]:
    """The abstracts of PubMedQA: CONTEXTS only, titled by PMID, because the question would give the passage away.

    `source` is a file, or hub:DATASET for the labelled questions of a dataset on the hub.
    """
    if source.startswith("hub:"):
        return PubMedQABenchmark(hub=source.removeprefix("hub:")).passages()
    return PubMedQABenchmark(source).passages()


def _entry(row: Row) -> tuple[str, str, list[str], str]:
    """PMID, question, abstract's sections, decision of a row in either layout."""
    data: dict[str, Any] = row.data
    nested = data.get("context")
    contexts = data.get("CONTEXTS") or (nested.get("contexts") if isinstance(nested, dict) else None)
    decision = data.get("final_decision")
    if decision not in DECISIONS or not isinstance(contexts, list) or not any(contexts):
        raise InputError(f"{row.where}: found the fields {sorted(data)} and the decision {decision!r}; {_WANTED}.")
    return (
        text_field(row, "pubid", "id"),
        text_field(row, "QUESTION", "question"),
        [str(text) for text in contexts if text],
        str(decision),
    )


def _abstract(row: Row) -> Passage:
    pmid, _, contexts, _ = _entry(row)
    year = row.data.get("YEAR")
    return Passage(
        f"pubmed:{pmid}", f"PMID {pmid}", " ".join(contexts), f"PubMed abstract {pmid}" + (f" ({year})" if year else "")
    )
