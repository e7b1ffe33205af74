"""The packaged starter world, your own questions, and open questions with several right answers."""

import re
from functools import cache
from pathlib import Path

from medagent.answer_forms import FORM_HINTS, written
from medagent.errors import InputError
from medagent.evaluation.benchmarks.base import FileBenchmark, by_letter, choices
from medagent.evaluation.benchmarks.rows import Notes, Row, text_field
from medagent.evaluation.grading.numbers import Bounds, gold_quantity
from medagent.retrieval.passages import Passage
from medagent.starter.world import Split, World
from medagent.types import Question


class StarterBenchmark:
    """The packaged starter world: questions on the conditions of one split."""

    def __init__(self, split: Split = "test", limit_per_kind: int | None = None, skip_per_kind: int = 0) -> None:
        """Skips, then limits one-hop and two-hop questions each, in a fixed shuffled order."""
        self._split, self._limit, self._skip = split, limit_per_kind, skip_per_kind

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`."""
        return list(_questions(self._split, self._limit, self._skip))

    def passages(self) -> list[Passage]:
        """The starter corpus."""
        return World.load().passages()


@cache  # training asks for them several times
def _questions(split: Split, limit: int | None, skip: int) -> tuple[Question, ...]:
    return tuple(World.load().questions(split, limit_per_kind=limit, skip_per_kind=skip))


OPEN_FORMS = ("ranked", "list", "number")
_FIELDS = set("id question options answer answer_idx kind gold_passage_ids meta form lower upper tolerance".split())


class JsonlBenchmark(FileBenchmark):
    """Your own questions: JSON lines with `question`, `answer`, and for multiple choice `options`.

    `options` is a list, or an object from letter to text. `answer` is then the letter or the option's text, and
    `answer_idx` is always the letter. Several right options, as a list or as "A, C", have the form "select_all": an
    answer must name all of them and no other. For open questions `answer` is the right text, or a list of texts that
    are all right. With the `form` "ranked" up to five answers are taken, the best first. With the `form` "list"
    `answer` is the list of all entries, each a text or a list of synonyms. With the `form` "number" it is a number with
    its unit, if it has one. `lower` and `upper` bound the right numbers in that unit, or `tolerance` (a number, or as
    "5%") says how far off they may be. Optional fields are `id`, `kind` (groups the report), `gold_passage_ids` and
    `meta` (an object of texts).
    """

    def question(self, row: Row) -> Question:
        unknown = sorted(row.data.keys() - _FIELDS)
        if unknown:
            remedy = "Put fields of your own into 'meta'"
            raise row.wrong(f"the field {unknown[0]!r}", f"some of {', '.join(sorted(_FIELDS))}. {remedy}")
        form, options = row.data.get("form") or "text", row.data.get("options") or []
        if form not in FORM_HINTS or bool(options) < (form == "select_all") or (options and form in OPEN_FORMS):
            only = "with options only select_all, which needs them"
            raise row.wrong(f"the form {form!r}", f"one of {', '.join(FORM_HINTS)}; {only}")
        items = _entries(row) if form == "list" else ()
        texts: tuple[str, ...] = ()
        if options:
            texts, letters = _own_choices(row, options, self.notes)
            answers = [", ".join(letters)]
            form = "select_all" if len(letters) > 1 else form
        else:
            answers = [written([item[0] for item in items])] if items else _answers(row, "answer")
        bounds = _bounds(row, answers, form)
        gold, meta = row.data.get("gold_passage_ids") or (), row.data.get("meta") or {}
        if not isinstance(gold, list | tuple) or not isinstance(meta, dict):
            raise row.wrong(f"gold_passage_ids {gold!r} and meta {meta!r}", "a list and an object")
        stem, question = Path(self.path).stem if self.path else str(self.hub), text_field(row, "question")
        name, kind = str(row.data.get("id") or f"{stem}:{row.number}"), str(row.data.get("kind") or "all")
        own, aliases = {str(key): str(value) for key, value in meta.items()}, tuple(answers[1:])
        passages = tuple(map(str, gold))
        return Question(name, question, texts, answers[0], kind, passages, own, aliases, form, items, bounds)


class OpenQABenchmark(FileBenchmark):
    """Open questions as Search-R1 uses them (arXiv 2503.09516), from files in FlashRAG's layout.

    Those are NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultihopQA, MuSiQue and Bamboogle. Rows have id, question and
    golden_answers, all of which are right. `data_source` groups the report.
    """

    def question(self, row: Row) -> Question:
        first, *others = _answers(row, "golden_answers")
        name, kind = str(row.data.get("id") or f"open:{row.number}"), str(row.data.get("data_source") or "open")
        meta = {"benchmark": "open"}
        return Question(name, text_field(row, "question"), (), first, kind, meta=meta, aliases=tuple(others))


def _answers(row: Row, name: str) -> list[str]:
    """One text or a list of texts, all right."""
    value = row.data.get(name)
    texts = [str(item).strip() for item in value] if isinstance(value, list) else [text_field(row, name)]
    nested = isinstance(value, list) and any(isinstance(item, type(None) | list | dict) for item in value)
    if nested or not texts or not all(texts):
        raise row.wrong(f"{name} {value!r}", "a text or a list of texts, none of them empty")
    return texts


def _entries(row: Row) -> tuple[tuple[str, ...], ...]:
    """The entries of a list, each with its synonyms: texts, or lists of texts."""
    value = row.data.get("answer")
    items = [each if isinstance(each, list) else [each] for each in value] if isinstance(value, list) else []
    if not items or not all(item and all(isinstance(each, str) and each.strip() for each in item) for item in items):
        raise row.wrong(f"the answer {value!r}", "a list of entries, each a text or a list of synonyms")
    return tuple(tuple(each.strip() for each in item) for item in items)


def _own_choices(row: Row, found: object, notes: Notes) -> tuple[tuple[str, ...], list[str]]:
    """Options and the right letters, in order. An answer that is a letter and an option's text is the letter."""
    options = by_letter(row, found)
    if any(option is None or isinstance(option, list | dict) for option in options.values()):
        raise row.wrong(f"the options {options}", "texts")
    letters = dict.fromkeys(options)  # in their order

    def named(field: str) -> list[str]:
        answers = _answers(row, field)
        parts = re.split(r"\s*[,;]\s*", answers[0])
        several = len(answers) == 1 and set(parts) <= letters.keys() and answers[0] not in map(str, options.values())
        chosen = set[str]()
        for answer in parts if several else answers:
            by_text = [letter for letter, text in options.items() if field == "answer" and str(text).strip() == answer]
            if answer in options and by_text not in ([], [answer]):
                notes["answers that are a letter and the text of another option, read as the letter"] += 1
            if answer not in options and len(by_text) != 1:
                what = "several of them" if by_text else "neither an option's letter nor one of them"
                raise InputError(f"{row.where}: found the {field} {answer!r} and the options {options}: it is {what}.")
            chosen.add(answer if answer in options else by_text[0])
        return sorted(chosen)

    if "answer_idx" not in row.data:
        right = named("answer")
    else:
        right = named("answer_idx")
        texts = [str(options[letter]).strip() for letter in right]
        if "answer" in row.data and sorted(_answers(row, "answer")) != sorted(texts) and named("answer") != right:
            told = f"found answer_idx {right} and the answer {row.data['answer']!r}"
            raise InputError(f"{row.where}: {told}: they differ.")
    return choices(row, options, right[0], notes)[0], right


def _bounds(row: Row, answers: list[str], form: str) -> Bounds | None:
    """The least and the largest right number of the form "number", in the answer's unit."""
    given = {name: row.data[name] for name in ("lower", "upper", "tolerance") if row.data.get(name) is not None}
    if form != "number":
        if given:
            raise row.wrong(f"{given} with the form {form!r}", "the form 'number'")
        return None
    quantities = [gold_quantity(answer) for answer in answers]
    if None in quantities:
        known = "one number, with none or a known unit, such as 500 mg or 5.5 mmol/l"
        remedy = "Leave another unit out, and name it in the question"
        raise row.wrong(f"the answer {answers[quantities.index(None)]!r}", f"{known}. {remedy}")
    if not given:
        return None
    value, share = quantities[0].value if quantities[0] else 0.0, str(given.get("tolerance", 0)).strip()
    try:
        bounds = {name: float(given[name]) for name in ("lower", "upper") if name in given}
        off = abs(value) * float(share[:-1]) / 100 if share.endswith("%") else float(share)
    except (TypeError, ValueError):
        bounds, off = {}, -1.0
    low, high = (value - off, value + off) if "tolerance" in given else (bounds.get("lower"), bounds.get("upper"))
    fits = (low is None or low <= value) and (high is None or value <= high)
    if not fits or off < 0 or len(answers) > 1 or (bounds and "tolerance" in given):
        wanted = "'lower' and 'upper' around one answer, or a 'tolerance' such as 5 or '5%'"
        raise row.wrong(f"{given} with the answer {row.data['answer']!r}", wanted)
    return low, high
