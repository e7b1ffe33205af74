"""Benchmarks turn published files into questions; each knows what its letters mean and where its evidence lies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from medagent.errors import ConfigError, InputError
from medagent.records import LETTERS, Question
from medagent.starter.world import Split, World
from retrieval.passages import Passage

DECISIONS = ("yes", "no", "maybe")


class Benchmark(Protocol):
    """Anything that yields questions."""

    def questions(self) -> list[Question]:
        """All questions, in a fixed order."""
        ...


class StarterBenchmark:
    """The packaged starter world: questions on the conditions of one split."""

    def __init__(self, split: Split = "test", limit_per_kind: int | None = None) -> None:
        """`limit_per_kind` keeps so many one-hop and so many two-hop questions (of a fixed shuffled order)."""
        self._split, self._limit = split, limit_per_kind

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`."""
        return World.load().questions(self._split, limit_per_kind=self._limit)


class JsonlBenchmark:
    """Your own questions: JSON lines with `question`, `answer`, and for multiple choice `options`.

    `options` is a list, or an object from letter to text; `answer` is then the letter or the option's text. Optional: `id`, `kind`,
    `gold_passage_ids`.
    """

    def __init__(self, path: str, limit: int | None = None) -> None:
        self._path, self._limit = Path(path), limit

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`."""
        questions = []
        for number, line in enumerate(_read_text(self._path).splitlines(), start=1):
            if line.strip():
                questions.append(self._question(line, number))
        if not questions:
            raise InputError(f"{self._path}: holds no question; wanted JSON lines with 'question' and 'answer'.")
        repeated = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
        if repeated:
            raise InputError(f"{self._path}: the id {repeated[0]!r} occurs twice; give each question its own, or none.")
        return questions[: self._limit]

    def _question(self, line: str, number: int) -> Question:
        where = f"{self._path}, line {number}"
        try:
            row = json.loads(line)
            text, answer = str(row["question"]), str(row["answer"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(
                f"{where}: found {line[:80]!r} ({error!r}); wanted a JSON object with 'question' and 'answer'."
            ) from error
        options = row.get("options", [])
        if isinstance(options, dict):
            letters = sorted(options)
            if letters != list(LETTERS[: len(letters)]) or answer not in letters:
                raise InputError(
                    f"{where}: found options {letters} and answer {answer!r}; wanted letters from A without a gap, and one "
                    "of them as the answer."
                )
            options, answer = [options[letter] for letter in letters], LETTERS[letters.index(answer)]
        elif str(answer) in [str(option) for option in options]:
            answer = LETTERS[[str(option) for option in options].index(answer)]
        if len(options) > len(LETTERS):
            raise InputError(f"{where}: found {len(options)} options, wanted at most {len(LETTERS)}.")
        if options and answer not in LETTERS[: len(options)]:
            raise InputError(f"{where}: the answer {answer!r} is neither an option's letter nor one of {options}.")
        return Question(
            id=str(row.get("id", f"{self._path.stem}:{number}")),
            text=text,
            options=tuple(map(str, options)),
            answer=answer,
            kind=str(row.get("kind", "all")),
            gold_passage_ids=tuple(map(str, row.get("gold_passage_ids", ()))),
        )


class PubMedQABenchmark:
    """PubMedQA's expert-labelled questions (arXiv 1909.06146), yes / no / maybe, the abstract to be found by search.

    `path` is the published file: an object from PMID to QUESTION, CONTEXTS, final_decision (and LONG_ANSWER, which is the answer's wording
    and is therefore never indexed). The gold passage of a question is its abstract.
    """

    def __init__(self, path: str, start: int = 0, stop: int | None = None) -> None:
        """Questions `start` to `stop` of the file's order, so that training and evaluation can take disjoint parts."""
        self._path, self._range = Path(path), slice(start, stop)

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`."""
        rows = list(_read_pubmedqa(self._path).items())[self._range]
        if not rows:
            raise ConfigError(f"{self._path}: no question in the range {self._range.start} to {self._range.stop}.")
        return [
            Question(
                id=f"pubmedqa:{pmid}",
                text=row["QUESTION"],
                options=DECISIONS,
                answer=LETTERS[DECISIONS.index(row["final_decision"])],
                kind="pubmedqa",
                gold_passage_ids=(f"pubmed:{pmid}",),
            )
            for pmid, row in rows
        ]


def pubmedqa_passages(path: Path) -> list[Passage]:
    """The abstracts of a PubMedQA file: CONTEXTS only, titled by PMID (the question would give the passage away)."""
    return [
        Passage(
            id=f"pubmed:{pmid}",
            title=f"PMID {pmid}",
            text=" ".join(row["CONTEXTS"]),
            source=f"PubMed abstract {pmid}" + (f" ({row['YEAR']})" if row.get("YEAR") else ""),
        )
        for pmid, row in _read_pubmedqa(path).items()
    ]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path in the configuration.") from error


def _read_pubmedqa(path: Path) -> dict[str, dict[str, Any]]:
    wanted = "wanted PubMedQA's published JSON: an object from PMID to QUESTION, CONTEXTS, final_decision"
    try:
        rows = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON ({error}); {wanted}.") from error
    if not isinstance(rows, dict) or not rows:
        raise InputError(f"{path}: found a {type(rows).__name__}; {wanted}.")
    for pmid, row in rows.items():
        if row.get("final_decision") not in DECISIONS or "QUESTION" not in row or "CONTEXTS" not in row:
            raise InputError(f"{path}: the entry {pmid} lacks a field; {wanted}.")
    return rows


def count_kinds(questions: Sequence[Question]) -> dict[str, int]:
    """Kind -> number of questions."""
    kinds: dict[str, int] = {}
    for question in questions:
        kinds[question.kind] = kinds.get(question.kind, 0) + 1
    return kinds
