"""The packaged starter world, your own questions, and open questions with several right answers."""

from __future__ import annotations

from pathlib import Path

from medagent.answer_forms import FORM_HINTS, written
from medagent.errors import InputError
from medagent.evaluation.benchmarks.base import FileBenchmark, choices
from medagent.evaluation.benchmarks.rows import Notes, Row, text_field
from medagent.retrieval.passages import Passage
from medagent.starter.world import Split, World
from medagent.types import LETTERS, Question


class StarterBenchmark:
    """The packaged starter world: questions on the conditions of one split."""

    def __init__(self, split: Split = "test", limit_per_kind: int | None = None, skip_per_kind: int = 0) -> None:
        """Skips, then limits one-hop and two-hop questions each, in a fixed shuffled order."""
        self._split, self._limit, self._skip = split, limit_per_kind, skip_per_kind

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`."""
        return World.load().questions(self._split, limit_per_kind=self._limit, skip_per_kind=self._skip)

    def passages(self) -> list[Passage]:
        """The starter corpus."""
        return World.load().passages()


_FIELDS = frozenset(("id", "question", "options", "answer", "kind", "gold_passage_ids", "meta", "form"))


class JsonlBenchmark(FileBenchmark):
    """Your own questions: JSON lines with `question`, `answer`, and for multiple choice `options`.

    `options` is a list, or an object from letter to text. `answer` is then the letter or the option's text. For open
    questions `answer` is the right text, or a list of texts that are all right. With the `form` "ranked" up to five
    answers are taken, the best first. With the `form` "list" `answer` is the list of all entries, each a text or a list
    of synonyms. Optional fields are `id`, `kind` (groups the report), `gold_passage_ids` and `meta` (an object of
    texts).
    """

    def question(self, row: Row) -> Question:
        """See `FileBenchmark.question`."""
        unknown = sorted(row.data.keys() - _FIELDS)
        if unknown:
            raise InputError(
                f"{row.where}: found the field {unknown[0]!r}, wanted some of {', '.join(sorted(_FIELDS))}. Put "
                "fields of your own into 'meta'."
            )
        form = row.data.get("form") or "text"
        if form not in FORM_HINTS or (row.data.get("options") and form != "text"):
            raise InputError(
                f"{row.where}: found the form {form!r}, wanted one of {', '.join(FORM_HINTS)}, and none with options."
            )
        items = _entries(row) if form == "list" else ()
        answers = [written([item[0] for item in items])] if items else _answers(row, "answer")
        options = row.data.get("options") or []
        if not isinstance(options, list | dict):
            raise InputError(f"{row.where}: found options {options!r}, wanted a list or an object from letter to text.")
        if len(options) > len(LETTERS):
            raise InputError(f"{row.where}: found {len(options)} options, wanted at most {len(LETTERS)}.")
        if options and len(answers) > 1:
            raise InputError(
                f"{row.where}: found the answers {answers}, wanted one: several right ones are for open questions."
            )
        if options:
            texts, answer = _own_choices(row, options, answers[0], self.notes)
            answers = [answer]
        else:
            texts = ()
        gold, meta = row.data.get("gold_passage_ids") or (), row.data.get("meta") or {}
        if not isinstance(gold, list | tuple) or not isinstance(meta, dict):
            raise InputError(
                f"{row.where}: found gold_passage_ids {gold!r} and meta {meta!r}, wanted a list and an object."
            )
        number = row.where.rpartition(" ")[2]
        stem = Path(self.path).stem if self.path else str(self.hub)
        return Question(
            id=str(row.data.get("id") or f"{stem}:{number}"),
            text=text_field(row, "question"),
            options=texts,
            answer=answers[0],
            aliases=tuple(answers[1:]),
            kind=str(row.data.get("kind") or "all"),
            gold_passage_ids=tuple(map(str, gold)),
            meta={str(name): str(value) for name, value in meta.items()},
            form=form,
            items=items,
        )


class OpenQABenchmark(FileBenchmark):
    """Open questions as Search-R1 uses them (arXiv 2503.09516), from files in FlashRAG's layout.

    Those are NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultihopQA, MuSiQue and Bamboogle. Rows have id, question and
    golden_answers, all of which are right. `data_source` groups the report.
    """

    def question(self, row: Row) -> Question:
        """See `FileBenchmark.question`."""
        first, *others = _answers(row, "golden_answers")
        return Question(
            id=str(row.data.get("id") or f"open:{row.where.rpartition(' ')[2]}"),
            text=text_field(row, "question"),
            answer=first,
            aliases=tuple(others),
            kind=str(row.data.get("data_source") or "open"),
            meta={"benchmark": "open"},
        )


def _answers(row: Row, name: str) -> list[str]:
    """One text or a list of texts, all right."""
    value = row.data.get(name)
    texts = [str(item).strip() for item in value] if isinstance(value, list) else [text_field(row, name)]
    nested = isinstance(value, list) and any(isinstance(item, type(None) | list | dict) for item in value)
    if nested or not texts or not all(texts):
        raise InputError(f"{row.where}: found {name} {value!r}, wanted a text or a list of texts, none of them empty.")
    return texts


def _entries(row: Row) -> tuple[tuple[str, ...], ...]:
    """The entries of a list, each with its synonyms: texts, or lists of texts."""
    value = row.data.get("answer")
    items = [each if isinstance(each, list) else [each] for each in value] if isinstance(value, list) else []
    if not items or not all(item and all(isinstance(each, str) and each.strip() for each in item) for item in items):
        raise InputError(
            f"{row.where}: found the answer {value!r}, wanted a list of entries, each a text or a list of synonyms."
        )
    return tuple(tuple(each.strip() for each in item) for item in items)


def _own_choices(
    row: Row, options: list[object] | dict[str, object], answer: str, notes: Notes
) -> tuple[tuple[str, ...], str]:
    """Options and the gold letter. The answer is a letter or an option's text, and must not be both."""
    if isinstance(options, list):
        options = dict(zip(LETTERS, options, strict=False))
    if any(option is None or isinstance(option, list | dict) for option in options.values()):
        raise InputError(f"{row.where}: found the options {options}, wanted texts.")
    by_text = [letter for letter, option in options.items() if str(option).strip() == answer]
    if answer in options and by_text and by_text != [answer]:
        raise InputError(
            f"{row.where}: the answer {answer!r} is a letter and the text of option {by_text[0]}. Give the letter, "
            "and other texts."
        )
    if answer not in options and len(by_text) != 1:
        found = "several of them" if by_text else "neither an option's letter nor one of them"
        raise InputError(f"{row.where}: found the answer {answer!r} and the options {options}: it is {found}.")
    return choices(row, options, answer if answer in options else by_text[0], notes)
