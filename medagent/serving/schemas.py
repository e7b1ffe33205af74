"""The bodies and answers of /v1/answers, for FastAPI and /openapi.json. A test compares real answers with them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from medagent.evidence.kinds import EvidenceKind
from medagent.retrieval.passages import replace_surrogates
from medagent.serving.openai_form import MAX_CHARACTERS, MAX_EARLIER, WhereText
from medagent.types import LETTERS
from medagent.untrusted_text import is_blank


class ResponseShape(BaseModel):
    """Base of the shapes, which take no other fields."""

    model_config = ConfigDict(extra="forbid")


class PassageShape(ResponseShape):
    """A passage of the corpus. Unknown fields are left out."""

    id: str
    text: str
    title: str = ""
    source: str = ""
    section: str = ""
    year: int = 0
    licence: str = ""
    document: str = ""
    url: str = ""
    doi: str = ""
    pmid: str = ""
    authors: list[str] = []
    journal: str = ""
    date: str = ""
    types: list[str] = []
    keywords: list[str] = []
    language: str = ""
    notices: list[str] = []
    kind: Literal["recommendation", "boxed warning", "table", "narrative"] = "narrative"
    grade: str = ""


class SourceShape(ResponseShape):
    """A cited passage, and the span in its text, in characters, of the sentence nearest to the answer."""

    number: int
    passage: PassageShape
    sentence: tuple[int, int]


class QuoteShape(ResponseShape):
    """Sentences of a passage, as a span of its text; `scope` names the narrower subject that they are about."""

    passage: PassageShape
    sentence: tuple[int, int]
    scope: str
    sure: bool


class VerdictShape(ResponseShape):
    """The verdict on the answer, with words of the question that the passages lack, and names near a misspelt one."""

    kind: EvidenceKind
    text: str
    stated_in: list[int]
    missing: list[str]
    did_you_mean: list[str]


class AnswerShape(ResponseShape):
    """A checked answer, see docs/serving.md. If it is `withheld`, `text` says what the evidence lacks."""

    text: str
    letter: str | None
    supported: bool
    verdict: VerdictShape
    withheld: bool
    sources: list[SourceShape]
    quoted_as: str
    quoted: list[QuoteShape]
    also: list[QuoteShape]
    nearest: list[PassageShape]
    caption: str
    urgent: str | None
    asked_as: str | None
    follow_ups: list[str]
    removed_citations: int
    logprob: float | None
    stop_reason: Literal["answered", "malformed", "max_turns", "max_turn_tokens", "max_total_tokens", "refused"]
    usage: dict[str, int]
    notice: str


class AnswersShape(ResponseShape):
    """The response of POST /v1/answers.

    A turn has a `thought`, a `query`, the words of it that were `replaced`, other `calls`, and numbered `passages`.
    """

    id: str
    turns: list[dict[str, Any]]
    answer: AnswerShape


class ErrorShape(ResponseShape):
    """The body of every error, as OpenAI's API has it: `message`, `type`, `param` and `code`."""

    error: dict[str, str | None]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "the request is wrong, or too many questions wait (429)", "model": ErrorShape},
    "5XX": {"description": "the agent, its corpus or its model's server failed", "model": ErrorShape},
}


def answers_with(shape: Any) -> dict[int | str, dict[str, Any]]:
    """The answers of a call that may stream, for FastAPI's `responses`."""
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
    streamed = {"text/event-stream": {"schema": event}}
    return {**ERRORS, 200: {"description": "the answer, or its steps as events", "model": shape, "content": streamed}}


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
