"""Questions decided by the literature: PubMedQA (three different tasks) and BioASQ's yes/no questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from evaluation.benchmarks.base import FileBenchmark
from evaluation.benchmarks.rows import Row, text_field
from medagent.errors import InputError
from medagent.types import LETTERS, Question
from retrieval.passages import Passage

DECISIONS = ("yes", "no", "maybe")
_WANTED = "wanted PubMedQA's published JSON: an object from PMID to QUESTION, CONTEXTS, final_decision"
Task = Literal["without_abstract", "with_abstract", "yes_no"]


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

    def __init__(
        self,
        path: str | None = None,
        hub: str | None = None,
        subset: str | None = "pqa_labeled",
        split: str = "train",
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        limit_seed: int = 0,
        task: Task = "without_abstract",
    ) -> None:
        """The hub keeps its labelled questions in a split named "train"."""
        super().__init__(path, hub, subset, split, start, stop, limit, limit_seed)
        self._task = task

    def question(self, row: Row) -> Question | None:
        """See `FileBenchmark.question`."""
        pmid, text, contexts, decision = _entry(row)
        options = DECISIONS[:2] if self._task == "yes_no" else DECISIONS
        if decision not in options:
            return None
        shown = f"{' '.join(contexts)} {text}" if self._task == "with_abstract" else text
        return Question(
            id=f"pubmedqa:{pmid}",
            text=shown,
            options=options,
            answer=LETTERS[options.index(decision)],
            kind="pubmedqa",
            gold_passage_ids=() if self._task == "with_abstract" else (f"pubmed:{pmid}",),
            meta={"benchmark": f"pubmedqa ({self._task})"},
        )

    def passages(self) -> list[Passage]:
        """See `FileBenchmark.passages`."""
        return [_abstract(row) for row in self.rows()]


class BioASQBenchmark(FileBenchmark):
    """The yes/no questions of BioASQ's task B (BMC Bioinformatics 2015, 16:138).

    They come from a file NAME_golden.json or a folder of them. `exact_answer` is a text or a list of one, in any case.
    The gold passages of a question are its documents. The benchmark carries the snippets that experts marked in them.
    """

    kind, suffix, folders = "json", "_golden.json", True

    def question(self, row: Row) -> Question | None:
        """See `FileBenchmark.question`."""
        if text_field(row, "type", "_type").lower() != "yesno":
            return None
        answer = row.data.get("exact_answer")
        answer = answer[0] if isinstance(answer, list) and answer else answer
        decision = str(answer).strip().strip(".").lower()
        if decision not in DECISIONS[:2]:
            raise InputError(f"{row.where}: found the exact answer {answer!r}, wanted yes or no.")
        marked = [_document(snippet.get("document", "")) for snippet in _snippets(row)]
        return Question(
            id=f"bioasq:{text_field(row, 'id')}",
            text=text_field(row, "body"),
            options=DECISIONS[:2],
            answer=LETTERS[DECISIONS.index(decision)],
            kind="yesno",
            gold_passage_ids=tuple(dict.fromkeys(filter(None, marked))),
            meta={"benchmark": "bioasq", "gold": "any"},
        )

    def passages(self) -> list[Passage]:
        """See `FileBenchmark.passages`."""
        texts: dict[str, dict[str, None]] = {}
        for row in self.rows():
            for snippet in _snippets(row):
                if (name := _document(snippet.get("document", ""))) and str(snippet.get("text", "")).strip():
                    texts.setdefault(name, {})[str(snippet["text"]).strip()] = None
        return [
            Passage(
                name,
                f"PMID {name.removeprefix('pubmed:')}",
                " ".join(parts),
                f"PubMed abstract {name.removeprefix('pubmed:')} (snippets)",
            )
            for name, parts in texts.items()
        ]


def pubmedqa_passages(source: str) -> list[Passage]:
    """The abstracts of PubMedQA: CONTEXTS only, titled by PMID, because the question would give the passage away.

    `source` is a file, or hub:DATASET for the labelled questions of a dataset on the hub.
    """
    if source.startswith("hub:"):
        return PubMedQABenchmark(hub=source.removeprefix("hub:")).passages()
    return PubMedQABenchmark(source).passages()


def bioasq_passages(path: Path) -> list[Passage]:
    """The documents of BioASQ's golden files, as far as experts marked them: snippets joined per document."""
    return BioASQBenchmark(str(path)).passages()


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


def _snippets(row: Row) -> list[dict[str, Any]]:
    found = row.data.get("snippets") or []
    if not isinstance(found, list) or not all(isinstance(snippet, dict) for snippet in found):
        raise InputError(
            f"{row.where}: found snippets {str(found)[:60]!r}, wanted a list of objects with 'text' and 'document'."
        )
    return found


def _document(address: str) -> str:
    """The id pubmed:PMID of a document's address, empty for an address outside PubMed."""
    number = str(address).rstrip("/").rpartition("/")[2]
    return f"pubmed:{number}" if number.isdigit() else ""
