"""The page: a few files, read once, and the agent's description that they ask for. It loads nothing from elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Response
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from medagent.errors import ConfigError
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.tools import Toolbox
from medagent.serving.openai_form import MAX_CHARACTERS
from medagent.types import LETTERS

PAGE = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_EXAMPLES = 6
MOST_SOURCES, OFFERED_SOURCES = 4, 100


class Example(BaseModel):
    """A question that the page offers."""

    question: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
    options: Annotated[list[str], Field(max_length=len(LETTERS))] = []


def read_examples(path: Path) -> list[Example]:
    """The first six questions of a JSON-lines file ("question", and "options" where there are any)."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [Example.model_validate_json(line) for line in lines[:MAX_EXAMPLES]]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(
            f"examples {path}: cannot be read ({error}). Give JSON lines such as "
            f"{json.dumps({'question': 'What treats gout?', 'options': []})}."
        ) from error


def corpus_of(retriever: Retriever) -> dict[str, Any] | None:
    """What an index of this process holds: passages, the largest sources, years. None of what is elsewhere.

    `sources` are for a sentence, `names` for a search that is limited to one.
    """
    while isinstance(retriever, Toolbox):
        retriever = retriever.retriever
    if not isinstance(retriever, HybridRetriever):
        return None
    names, years = retriever.sources(limit=OFFERED_SOURCES), retriever.years()
    return {
        "passages": len(retriever) if retriever.where.empty else len(retriever.rows_matching(retriever.where)),
        "names": names,
        "sources": names[:MOST_SOURCES],
        "more_sources": max(0, retriever.num_sources() - MOST_SOURCES),
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
        """The agent's name, its limits, examples, what its corpus covers, whether it takes reports and has a quiz."""
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
