"""Questions that the literature decides: PubMedQA as three different tasks, and BioASQ's task B.

BioASQ has factoid, list and yes/no questions with the snippets that experts marked in PubMed's abstracts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, get_args

from medagent.answer_forms import written
from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks.base import FileBenchmark
from medagent.evaluation.benchmarks.rows import Row, text_field
from medagent.retrieval.passages import Passage, replace_surrogates
from medagent.types import LETTERS, Question

BioASQType = Literal["factoid", "list", "yes_no"]
TYPES: tuple[BioASQType, ...] = get_args(BioASQType)
_OF_FILES: Mapping[str, BioASQType] = {"factoid": "factoid", "list": "list", "yesno": "yes_no"}
_YES_NO = ("yes", "no")
DECISIONS = ("yes", "no", "maybe")
_WANTED = "wanted PubMedQA's published JSON: an object from PMID to QUESTION, CONTEXTS, final_decision"
Task = Literal["without_abstract", "with_abstract", "yes_no"]


@dataclass(eq=False)
class BioASQBenchmark(FileBenchmark):
    """The questions of BioASQ's task B that have an exact answer (BMC Bioinformatics 2015, 16:138).

    `path` is a golden file, a folder of NAME_golden.json, or a pattern such as data/bioasq/[789]B*.json. A question
    that several files hold is taken once.

    A factoid question takes up to five answers, the best first. All synonyms of its exact answer are right. A list
    question takes all entries, each by any of its synonyms. `exact_answer` may be nested lists of synonyms, a list of
    texts, or one text. Summary questions, and those without an exact answer, are left out.

    The gold passages of a question are its snippets, which the benchmark carries. `most_words` leaves out factoid and
    list questions whose every answer has more words.
    """

    kind, suffix, folders, repeats = "json", "_golden.json", True, True

    types: Sequence[BioASQType] = TYPES
    most_words: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.types or not set(self.types) <= set(TYPES):
            raise ConfigError(f"BioASQBenchmark.types: found {list(self.types)}, wanted some of {', '.join(TYPES)}.")
        if (most := self.most_words) is not None and most < 1:
            raise ConfigError(f"BioASQBenchmark.most_words: found {most}, wanted 1 or more, or null for any.")

    def question(self, row: Row) -> Question | None:
        kind = _OF_FILES.get(text_field(row, "type", "_type").lower())
        if kind is None or kind not in self.types:
            return None
        if kind == "yes_no":
            return self._question(row, kind, options=_YES_NO, answer=LETTERS[_YES_NO.index(_decision(row))])
        items = _items(row, synonyms=kind == "factoid")
        if not items:
            self.notes["questions without an exact answer, left out"] += 1
            return None
        texts = [text for item in items for text in item]
        if self.most_words is not None and min(len(text.split()) for text in texts) > self.most_words:
            self.notes[f"questions whose every answer has over {self.most_words} words, left out"] += 1
            return None
        if kind == "factoid":
            return self._question(row, kind, answer=texts[0], aliases=tuple(texts[1:]), form="ranked")
        return self._question(row, kind, answer=written([item[0] for item in items]), items=items, form="list")

    @staticmethod
    def _question(row: Row, kind: BioASQType, **answer: Any) -> Question:
        name, text = f"bioasq:{text_field(row, 'id')}", text_field(row, "body")
        gold = tuple(dict.fromkeys(passage.id for passage in _row_passages(row, {})))
        return Question(name, text, kind=kind, gold_passage_ids=gold, meta={"benchmark": "bioasq"}, **answer)

    def passages(self) -> list[Passage]:
        """The snippets of all questions of the files, each text of a document once."""
        rows = list(self.rows())
        titles = _titles(rows)
        return list({passage.id: passage for row in rows for passage in _row_passages(row, titles)}.values())


def bioasq_passages(path: str) -> list[Passage]:
    """The snippets in a golden file, a folder of them or a pattern of names, each text once.

    Ids are pubmed:PMID#HASH, with 16 hex digits of the SHA-256 of the text. The title is the document's where a snippet
    tells it. `source` is the document's address.
    """
    passages = BioASQBenchmark(path).passages()
    return list({passage.text: passage for passage in reversed(passages)}.values())[::-1]


def _decision(row: Row) -> str:
    answer = row.data.get("exact_answer")
    answer = answer[0] if isinstance(answer, list) and answer else answer
    decision = str(answer).strip().strip(".").lower()
    if decision not in _YES_NO:
        raise row.wrong(f"the exact answer {answer!r}", "yes or no")
    return decision


def _items(row: Row, *, synonyms: bool) -> tuple[tuple[str, ...], ...]:
    """The right entries, each with its synonyms. With `synonyms` a flat list is one entry."""
    found = row.data.get("exact_answer")
    outer = found if isinstance(found, list) else [] if found is None else [found]
    nested = [each if isinstance(each, list) else [each] for each in outer]
    texts = [text for item in nested for text in item]
    if not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in texts):
        raise row.wrong(f"the exact answer {found!r}", "a text, a list of texts, or a list of lists of synonyms")
    if synonyms:
        nested = [texts]
    plain = [tuple(dict.fromkeys(" ".join(str(text).split()) for text in item if str(text).strip())) for item in nested]
    return tuple(item for item in plain if item)


def _row_passages(row: Row, titles: Mapping[str, str]) -> Iterator[Passage]:
    """The snippets of a row that lie in PubMed and say something."""
    for snippet in _snippets(row):
        address, text = str(snippet.get("document", "")), _snippet_text(snippet)
        document = _document(address)
        if document and text:
            title, digest = titles.get(document, ""), sha256(text.encode()).hexdigest()[:16]
            title = "" if title == text else title
            yield Passage(f"{document}#{digest}", title, text, source=address, document=document)


def _titles(rows: Sequence[Row]) -> dict[str, str]:
    """The title of each document of which experts marked the title from its beginning: the longest such snippet."""
    titles: dict[str, str] = {}
    for row in rows:
        for snippet in _snippets(row):
            whole = snippet.get("beginSection") == snippet.get("endSection") == "title"
            if whole and snippet.get("offsetInBeginSection") == 0:
                name, text = _document(str(snippet.get("document", ""))), _snippet_text(snippet)
                titles[name] = max(titles.get(name, ""), text, key=len)
    return titles


def _snippet_text(snippet: Mapping[str, Any]) -> str:
    return replace_surrogates(" ".join(str(snippet.get("text") or "").split()))


def _snippets(row: Row) -> list[dict[str, Any]]:
    found = row.data.get("snippets") or []
    if not isinstance(found, list) or not all(isinstance(snippet, dict) for snippet in found):
        raise row.wrong(f"snippets {str(found)[:60]!r}", "a list of objects with 'text' and 'document'")
    return found


def _document(address: str) -> str:
    """The id pubmed:PMID of a document's address, empty for an address outside PubMed."""
    number = address.rstrip("/").rpartition("/")[2]
    return f"pubmed:{number}" if number.isdigit() else ""


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
        abstract = f"{' '.join(contexts)} " if self.task == "with_abstract" else ""
        gold = () if abstract else (f"pubmed:{pmid}",)
        answer, meta = LETTERS[options.index(decision)], {"benchmark": f"pubmedqa ({self.task})"}
        return Question(f"pubmedqa:{pmid}", abstract + text, options, answer, "pubmedqa", gold, meta)

    def passages(self) -> list[Passage]:
        return [_abstract(row) for row in self.rows()]


def pubmedqa_passages(source: str) -> list[Passage]:
    """The abstracts of PubMedQA: CONTEXTS only, titled by PMID, because the question would give the passage away.

    `source` is a file, or hub:DATASET for the labelled questions of a dataset on the hub.
    """
    hub = source.removeprefix("hub:")
    return (PubMedQABenchmark(source) if hub == source else PubMedQABenchmark(hub=hub)).passages()


def _entry(row: Row) -> tuple[str, str, list[str], str]:
    """PMID, question, abstract's sections, decision of a row in either layout."""
    nested, decision = row.data.get("context"), row.data.get("final_decision")
    contexts = row.data.get("CONTEXTS") or (nested.get("contexts") if isinstance(nested, dict) else None)
    if decision not in DECISIONS or not isinstance(contexts, list) or not any(contexts):
        raise InputError(f"{row.where}: found the fields {sorted(row.data)} and the decision {decision!r}; {_WANTED}.")
    pmid, asked = text_field(row, "pubid", "id"), text_field(row, "QUESTION", "question")
    return pmid, asked, [str(text) for text in contexts if text], str(decision)


def _abstract(row: Row) -> Passage:
    pmid, _, contexts, _ = _entry(row)
    source = f"PubMed abstract {pmid}" + (f" ({year})" if (year := row.data.get("YEAR")) else "")
    return Passage(f"pubmed:{pmid}", f"PMID {pmid}", " ".join(contexts), source)
