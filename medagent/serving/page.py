"""The page, and what only the page uses: examples, the quiz of its study mode, and reports of wrong answers.

A reported answer becomes a JSON line; with its `answer` filled in, it is a question for training or evaluation.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Response
from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from medagent.errors import ConfigError
from medagent.evidence.answers import nearest_sentence
from medagent.evidence.reading import Asked, words_of
from medagent.evidence.support import content_words
from medagent.files import append_private
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.controls import corpus_of
from medagent.retrieval.passages import Hit
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.serving.openai_form import MAX_CHARACTERS
from medagent.types import LETTERS, Question

PAGE = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_EXAMPLES = 6
MAX_SOURCES, OFFERED_SOURCES = 4, 100


class Example(BaseModel):
    """A question that the page offers."""

    question: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
    options: Annotated[list[str], Field(max_length=len(LETTERS))] = []


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


def add_page(
    app: FastAPI,
    *,
    name: str,
    examples: Sequence[Example],
    corpus: Callable[[], dict[str, Any] | None],
    feedback: bool,
    quiz: bool,
) -> None:
    """Serve the page at "/", its files under "/page/", and the description of the agent that it reads."""
    files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES}

    def file(which: str) -> Response:
        if which not in files:
            raise HTTPException(404, "there is no such file.")
        return Response(files[which], media_type=TYPES[Path(which).suffix])

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        return file("index.html")

    @app.get("/page/{which}", include_in_schema=False)
    async def page(which: str) -> Response:
        return file(which)

    @app.get("/v1/agent")
    async def agent() -> dict[str, Any]:
        """The agent's name, limits and examples, what its corpus covers, whether it takes reports and has a quiz."""
        return {
            "name": name,
            "max_characters": MAX_CHARACTERS,
            "max_options": len(LETTERS),
            "examples": [example.model_dump() for example in examples],
            "feedback": feedback,
            "quiz": quiz,
            "corpus": await asyncio.to_thread(corpus),
            "notice": NOT_ADVICE,
        }


LOOKED_AT, SHOWN = 10, 2  # passages that are searched for evidence, and those shown
MAX_ITEMS = 500
Row = TypeVar("Row", bound=BaseModel)


class QuizItem(Example):
    """A question of the quiz; `answer` is the letter of the right option."""

    options: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2, max_length=len(LETTERS))]
    answer: Annotated[str, Field(pattern=r"^[A-J]$")]

    @model_validator(mode="after")
    def _has_its_answer(self) -> QuizItem:
        if LETTERS.index(self.answer) >= len(self.options):
            raise ValueError(f"the answer is {self.answer}, and there are {len(self.options)} options")
        return self


_FILES: dict[type[BaseModel], tuple[str, int, str]] = {  # what a file is called, rows that are read, a row
    Example: ("examples", MAX_EXAMPLES, '{"question": "What treats gout?", "options": []}'),
    QuizItem: ("quiz", MAX_ITEMS, '{"question": "What treats gout?", "options": ["rest", "ice"], "answer": "B"}'),
}


class Try(BaseModel):
    """The letter that somebody chose."""

    choice: Annotated[str, Field(pattern=r"^[A-J]$")]


def read_rows(kind: type[Row], path: Path) -> list[Row]:
    """The first rows of a JSON-lines file: examples, or questions of the quiz. Raises `ConfigError`."""
    name, most, example = _FILES[kind]
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [kind.model_validate_json(line) for line in lines[:most]]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(f"{name} {path}: cannot be read ({error}). Give JSON lines such as {example}.") from error


def add_quiz(app: FastAPI, items: Sequence[QuizItem], search: Callable[[str, int], Awaitable[list[Hit]]]) -> None:
    """Serve the questions without their answers, and judge tries."""

    @app.get("/v1/quiz")
    async def questions() -> dict[str, Any]:
        """The questions of the quiz, without what is right."""
        found = [{"id": at, "question": item.question, "options": item.options} for at, item in enumerate(items)]
        return {"questions": found, "notice": NOT_ADVICE}

    @app.post("/v1/quiz/{number}")
    async def judged(number: int, body: Try) -> dict[str, Any]:
        """Whether a try is right, what is right, and the passages of the corpus that say so."""
        if not 0 <= number < len(items):
            raise HTTPException(404, "there is no such question.")
        item = items[number]
        text = item.options[LETTERS.index(item.answer)]
        hits = await search(f"{item.question} {text}", LOOKED_AT)
        return {
            "right": body.choice == item.answer,
            "answer": item.answer,
            "text": text,
            "evidence": evidence_of(item, text, hits),
        }


def evidence_of(item: QuizItem, text: str, hits: Sequence[Hit]) -> list[dict[str, Any]]:
    """The passages that contain the right option, those on the question's subject first, with the sentence."""
    asked = Asked.of(Question("quiz", item.question))
    wanted = content_words(text)
    stating = [hit.passage for hit in hits if wanted and wanted <= content_words(hit.passage.indexed_text)]
    stating.sort(key=lambda passage: -asked.share_in(words_of(passage)))
    return [
        {"passage": passage.to_json(), "sentence": list(nearest_sentence(passage.text, text))}
        for passage in stating[:SHOWN]
    ]


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
                "said": found["answer"],
                "turns": found["turns"],
            }
            append_private(self.path, json.dumps(line, ensure_ascii=False) + "\n")
            return True
