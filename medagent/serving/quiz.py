"""Study mode: one multiple-choice question at a time, the evidence after the try.

The questions come from a file, with their right letters. What is right is never taken from the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from medagent.errors import ConfigError
from medagent.evidence.answers import nearest_sentence
from medagent.evidence.reading import Asked, words_of
from medagent.evidence.support import content_words
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.passages import Hit
from medagent.types import LETTERS, Question

LOOKED_AT, SHOWN = 10, 2  # passages that are searched for evidence, and those shown
MOST_ITEMS = 500


class QuizItem(BaseModel):
    """A question of the quiz; `answer` is the letter of the right option."""

    question: Annotated[str, Field(min_length=1, max_length=8_000)]
    options: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2, max_length=len(LETTERS))]
    answer: Annotated[str, Field(pattern=r"^[A-J]$")]

    @model_validator(mode="after")
    def _has_its_answer(self) -> QuizItem:
        if LETTERS.index(self.answer) >= len(self.options):
            raise ValueError(f"the answer is {self.answer}, and there are {len(self.options)} options")
        return self


class Try(BaseModel):
    """What somebody chose."""

    choice: Annotated[str, Field(pattern=r"^[A-J]$")]


def read_quiz(path: Path) -> list[QuizItem]:
    """The questions of a JSON-lines file with `question`, `options` and `answer`, 500 at most.

    Raises:
        ConfigError: a line cannot be read, or names no option.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [QuizItem.model_validate_json(line) for line in lines[:MOST_ITEMS]]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(
            f"quiz {path}: cannot be read ({error}). Give JSON lines with question, options, and the letter of the "
            "right one as answer."
        ) from error


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
