"""The bodies of /v1/answers, and the schemas of its answers (answers.yaml), for FastAPI and /openapi.json."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from medagent.lazy import packaged
from medagent.retrieval.passages import replace_surrogates
from medagent.serving.openai_form import MAX_CHARACTERS, MAX_EARLIER, WhereText
from medagent.types import LETTERS
from medagent.untrusted_text import is_blank

SHAPES: dict[str, Any] = packaged("medagent.serving", "answers.yaml")
JSON = "application/json"
ERROR = {JSON: {"schema": SHAPES["error"]}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "the request is wrong, or too many questions wait (429)", "content": ERROR},
    "5XX": {"description": "the agent, its corpus or its model's server failed", "content": ERROR},
}


def answers_with(schema: Mapping[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The answers of a call that may stream, for FastAPI's `responses`."""
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
    content = {JSON: {"schema": schema}, "text/event-stream": {"schema": event}}
    return {**ERRORS, 200: {"description": "the answer, or its steps as events", "content": content}}


Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class AskRequest(BaseModel):
    """The arguments of the tool `ask`. With `options` the question is multiple choice.

    `earlier` questions of the conversation complete one that leaves something unsaid ("How is it treated?"). The last
    few count. `where` says which passages may be found, see `medagent.retrieval.filters`.
    """

    model_config = ConfigDict(extra="forbid")  # a misspelt filter would filter nothing

    question: Text
    options: Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=len(LETTERS))] = []
    earlier: Annotated[list[str], Field(max_length=1000)] = []
    where: WhereText | None = None

    @field_validator("question", "options")
    @classmethod
    def _not_blank(cls, value: str | list[str]) -> str | list[str]:
        if any(is_blank(text) for text in ([value] if isinstance(value, str) else value)):
            raise PydanticCustomError("blank", "wanted text that is not blank")
        return value

    @field_validator("earlier")
    @classmethod
    def _last_few(cls, value: list[str]) -> list[str]:
        few = [text for text in value if len(text) <= MAX_CHARACTERS and not is_blank(text)][-MAX_EARLIER:]
        return [replace_surrogates(text) for text in few]


class AnswerRequest(AskRequest):
    """The body of POST /v1/answers. `AskRequest` says what the other fields mean."""

    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
