"""The body of POST /v1/answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from medagent.serving.openai_form import MAX_CHARACTERS, MOST_BEFORE, WhereText
from medagent.types import LETTERS
from medagent.untrusted_text import is_blank

Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class AnswerRequest(BaseModel):
    """The body of POST /v1/answers. With `options` the question is multiple choice.

    `earlier` questions of the conversation complete one that leaves something unsaid ("How is it treated?"). Of long
    conversations the last few count. `where` says which passages may be found, see `medagent.retrieval.filters`.
    """

    model_config = ConfigDict(extra="forbid")  # a misspelt filter would filter nothing

    question: Text
    options: Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=len(LETTERS))] = []
    earlier: Annotated[list[str], Field(max_length=1000)] = []
    where: WhereText | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    @field_validator("question", "options")
    @classmethod
    def _not_blank(cls, value: str | list[str]) -> str | list[str]:
        if any(is_blank(text) for text in ([value] if isinstance(value, str) else value)):
            raise PydanticCustomError("blank", "wanted text that is not blank")
        return value

    @field_validator("earlier")
    @classmethod
    def _last_few(cls, value: list[str]) -> list[str]:
        return [text for text in value if len(text) <= MAX_CHARACTERS and not is_blank(text)][-MOST_BEFORE:]
