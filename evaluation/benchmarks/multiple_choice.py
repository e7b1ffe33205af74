"""Multiple-choice examinations: MedQA, MedMCQA, MMLU's medical subjects, MedXpertQA."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from medagent.errors import InputError
from medagent.evaluation.benchmarks.base import FileBenchmark, by_letter, choices
from medagent.evaluation.benchmarks.rows import Row, text_field
from medagent.types import LETTERS, Question

MEDICAL = "anatomy clinical_knowledge college_biology college_medicine medical_genetics professional_medicine".split()


class MedQABenchmark(FileBenchmark):
    """MedQA-USMLE (arXiv 2009.13081), 4 or 5 options.

    The number changes the task, so it is recorded in `meta["num_options"]`.

    Rows: question, options (letter -> text, or a list of {key, value}), answer_idx, answer, meta_info (the
    examination's step).
    """

    def question(self, row: Row) -> Question:
        options, answer = choices(row, _lettered(row, "key", "value"), text_field(row, "answer_idx"), self.notes)
        wording = str(row.data.get("answer", "")).strip()
        if wording and wording != options[LETTERS.index(answer)]:
            right = f"the text of option {answer}, {options[LETTERS.index(answer)]!r}"
            raise InputError(f"{row.where}: the answer {wording!r} is not {right}.")
        # An id from file and line, for files whose rows have none.
        name = str(row.data.get("id") or f"medqa:{Path(row.where.split(',')[0]).stem}:{row.number}")
        kind = str(row.data.get("meta_info") or "").strip() or "medqa"
        meta = {"benchmark": "medqa", "num_options": str(len(options))}
        return Question(name, text_field(row, "question", "sent1"), options, answer, kind, meta=meta)


@dataclass(eq=False)
class MedMCQABenchmark(FileBenchmark):
    """MedMCQA (arXiv 2203.14371).

    Rows: id, question, opa to opd, cop, subject_name, choice_type. `cop`, the right option, counts from 1 in the
    published files and from 0 on the hub; `cop_from` "auto" goes by that. Rows of choice_type "multi" are graded as the
    others are, with one gold option. The type is kept in `meta`. `exp` explains the answer and is never used.
    """

    suffix = ".json"

    split: str = "validation"
    cop_from: Literal["auto", "zero", "one"] = "auto"
    choice_type: Literal["all", "single", "multi"] = "all"
    cops: set[int] = field(default_factory=set, init=False)

    def questions(self) -> list[Question]:
        """See `FileBenchmark.questions`. Without any `cop` of 0 the file may count otherwise, which a note says."""
        self.cops.clear()
        found = super().questions()
        if 0 not in self.cops and self.cop_from != "one":
            said = "so cop is counted from 1 (from 0: --cop_from zero)"
            if not self._counts_from_one:
                said = "though cop is counted from 0 (from 1: --cop_from one)"
            self.notes[f"questions, none with a cop of 0, {said}"] = len(found)
        return found

    @property
    def _counts_from_one(self) -> bool:
        return self.cop_from == "one" or (self.cop_from == "auto" and self.path is not None)

    def question(self, row: Row) -> Question | None:
        right = row.data.get("cop")
        first = int(self._counts_from_one)
        missing = [name for name in ("opa", "opb", "opc", "opd") if row.data.get(name) is None]
        if missing:
            raise row.wrong(f"no {missing[0]!r}", "the options opa to opd")
        if not isinstance(right, int) or isinstance(right, bool) or not 0 <= right - first < 4:
            known = "Published files count from 1, the hub's rows from 0. The hub's test rows have no answer"
            wanted = f"a number from {first} to {first + 3}. {known}. Give --cop_from zero or one"
            raise row.wrong(f"cop {right!r}", wanted)
        self.cops.add(right)
        found = {LETTERS[number]: row.data[f"op{LETTERS[number].lower()}"] for number in range(4)}
        options, answer = choices(row, found, LETTERS[right - first], self.notes)
        if self.choice_type not in ("all", row.data.get("choice_type")):
            return None
        meta = {"benchmark": "medmcqa", **_texts(row, choice_type="choice_type", topic="topic_name")}
        kind = str(row.data.get("subject_name") or "medmcqa")
        return Question(text_field(row, "id"), text_field(row, "question"), options, answer, kind, meta=meta)


class MMLUBenchmark(FileBenchmark):
    """MMLU's medical subjects (arXiv 2009.03300): CSV files SUBJECT_test.csv without a header, or the hub's rows.

    A folder reads the six medical subjects that it holds.
    """

    kind, suffix, folders = "csv", "_test.csv", True

    def files(self) -> list[Path]:
        files = super().files()
        medical = [file for file in files if _subject(file) in MEDICAL]
        return medical if medical and Path(self.path or "").is_dir() else files

    def question(self, row: Row) -> Question:
        if "cells" not in row.data:  # the hub's rows
            right, texts = row.data.get("answer"), row.data.get("choices")
            subject = str(row.data.get("subject") or self.subset or "mmlu")
            if not isinstance(right, int) or not isinstance(texts, list) or not 0 <= right < len(LETTERS):
                raise row.wrong(f"answer {right!r}", "the number of one of the choices, from 0")
            question, letter = text_field(row, "question"), LETTERS[right]
        else:
            cells = row.data["cells"]
            if len(cells) != 6 or not cells[0].strip():
                raise row.wrong(f"{len(cells)} cells", "6: question, four options, letter")
            question, *texts, letter = (cell.strip() for cell in cells)
            subject = _subject(Path(row.where.split(", line ")[0]))
        options, answer = choices(row, by_letter(row, list(texts)), letter, self.notes)
        name = f"mmlu:{subject}:{row.number}"
        return Question(name, question, options, answer, subject, meta={"benchmark": "mmlu"})


class MedXpertQABenchmark(FileBenchmark):
    """MedXpertQA (arXiv 2501.18362), Text (ten options) and, without its images, MM (five).

    Rows: id, question, options (letter -> text, or a list of {letter, content}), label, medical_task, body_system,
    question_type. The question repeats its options after "Answer Choices:". That part is removed, so the options stand
    once, in the project's form.
    """

    def question(self, row: Row) -> Question:
        options, answer = choices(row, _lettered(row, "letter", "content"), text_field(row, "label"), self.notes)
        text = re.split(r"\s*Answer Choices:\s*\(A\)", text_field(row, "question"), maxsplit=1)[0]
        meta = {"benchmark": "medxpertqa", **_texts(row, body_system="body_system", question_type="question_type")}
        kind = str(row.data.get("medical_task") or "medxpertqa")
        return Question(text_field(row, "id"), text, options, answer, kind, meta=meta)


def _texts(row: Row, **fields: str) -> dict[str, str]:
    """Fields of a row as texts under other names; empty where it has none."""
    return {name: str(row.data.get(field) or "") for name, field in fields.items()}


def _lettered(row: Row, letter: str, text: str) -> dict[str, object]:
    """The options as an object from letter to text. Some sources list them as objects with these two fields."""
    found = row.data.get("options")
    if isinstance(found, list):
        found = {str(item.get(letter)): item.get(text) for item in found if isinstance(item, dict)}
    if not isinstance(found, dict):
        raise row.wrong("no options", "an object from letter to text")
    return found


def _subject(file: Path) -> str:
    return file.name.removesuffix(".csv").removesuffix("_test").removesuffix("_dev").removesuffix("_val")
