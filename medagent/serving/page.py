"""The page, and what only the page uses: examples, and reports of wrong answers.

A reported answer becomes a JSON line; with its `answer` filled in, it is a question for training or evaluation.
"""

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field, ValidationError

from medagent.errors import ConfigError
from medagent.files import append_private
from medagent.retrieval.controls import corpus_of
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.serving.openai_form import MAX_CHARACTERS
from medagent.types import LETTERS

PAGE = Path(__file__).parent / "static"
MAX_EXAMPLES = 6
MAX_SOURCES, OFFERED_SOURCES = 4, 100


class Example(BaseModel):
    """A question that the page offers."""

    question: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
    options: Annotated[list[str], Field(max_length=len(LETTERS))] = []


def read_examples(path: Path) -> list[Example]:
    """The first examples of a JSON-lines file. Raises `ConfigError`."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [Example.model_validate_json(line) for line in lines[:MAX_EXAMPLES]]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(
            f"examples {path}: cannot be read ({error}). Give JSON lines such as "
            '{"question": "What treats gout?", "options": []}.'
        ) from error


def described_corpus(retriever: Retriever) -> dict[str, Any] | None:
    """The passages, largest sources and years of an index in this process. None for one elsewhere."""
    corpus = corpus_of(retriever)
    if not isinstance(corpus, HybridRetriever):
        return None
    names, years = corpus.sources(limit=OFFERED_SOURCES), corpus.years()
    return {
        "passages": len(corpus) if corpus.where.empty else len(corpus.rows_matching(corpus.where)),
        "names": names,
        "sources": names[:MAX_SOURCES],
        "more_sources": max(0, corpus.num_sources() - MAX_SOURCES),
        "years": list(years) if years else None,
    }


def add_page(app: FastAPI) -> None:
    """Serve the page at "/", and its files under "/page/"."""
    app.mount("/page", StaticFiles(directory=PAGE))

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        return FileResponse(PAGE / "index.html")


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
            append_private(self.path, "")
        except OSError as error:
            raise ConfigError(
                f"feedback {self.path}: cannot be written ({error.strerror}). Give a file in a folder that exists."
            ) from error

    def keep(self, record: dict[str, Any]) -> None:
        """Keep an answer for a while."""
        with self._lock:
            self._answers[record["id"]] = record
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)

    def write(self, report: Report) -> bool:
        """Append a report; false where the answer is no longer remembered."""
        with self._lock:
            found = self._answers.get(report.id)
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
                "said": found["answer"],
                "turns": found["turns"],
            }
            append_private(self.path, json.dumps(line, ensure_ascii=False) + "\n")
            del self._answers[report.id]  # one report of each, so that nobody fills the disk with one
            return True
