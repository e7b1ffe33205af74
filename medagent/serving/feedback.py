"""Reports of wrong answers, kept in a file on this machine: the question, what was said, and the whole rollout.

A line with an `answer` is a question for training or evaluation as it stands: `medagent evaluate --benchmark FILE`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from medagent.errors import ConfigError
from medagent.types import Question

REMEMBERED = 1_000  # answers, of which one may be reported


class Report(BaseModel):
    """The body of POST /v1/feedback: which answer, and what would be right where the reporter knows it."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    wrong: bool = True
    right_answer: Annotated[str, Field(max_length=1_000)] = ""
    note: Annotated[str, Field(max_length=4_000)] = ""


@dataclass
class Feedback:
    """Remembers the last answers, and writes those that are reported to `path`."""

    path: Path
    _answers: OrderedDict[str, dict[str, Any]] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        """Check now that the file can be written."""
        try:
            with self.path.open("a", encoding="utf-8"):
                pass
        except OSError as error:
            raise ConfigError(
                f"feedback {self.path}: cannot be written ({error.strerror}). Give a file in a folder that exists."
            ) from error

    def remember(self, id: str, question: Question, turns: list[dict[str, Any]], answer: dict[str, Any]) -> None:
        """Keep an answer for a while."""
        with self._lock:
            self._answers[id] = {
                "question": question.text,
                "options": list(question.options),
                "said": answer,
                "turns": turns,
            }
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)

    def write(self, report: Report) -> bool:
        """Append a report; false where the answer is no longer remembered."""
        with self._lock:
            found = self._answers.pop(report.id, None)  # one report of each, so that nobody fills the disk with one
            if found is None:
                return False
            line = {
                "id": report.id,
                "question": found["question"],
                "options": found["options"],
                "answer": report.right_answer,
                "wrong": report.wrong,
                "note": report.note,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "said": found["said"],
                "turns": found["turns"],
            }
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            return True
