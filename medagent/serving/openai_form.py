"""OpenAI's chat completions, as far as an agent supports them: messages in, completions and errors out."""

import json
import re
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from medagent.evidence.emergencies import Emergencies
from medagent.evidence.extracts import ALSO
from medagent.retrieval.chunking import kind_line
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.filters import Filter
from medagent.retrieval.mcp_server import WHERE
from medagent.retrieval.passages import replace_surrogates
from medagent.serving.client_utility_prompts import utility_answer, without_talk
from medagent.serving.errors import ServiceError
from medagent.untrusted_text import is_blank

MAX_CHARACTERS, MAX_EARLIER = 8_000, 12  # characters of a question; earlier ones that may complete it
MAX_NAMED = 20  # unused fields of a request that its answer names
MAX_HISTORY = 3  # messages that may tell of an emergency
_MARKUP = re.compile(r"([\\`*|~_$<>])")
_AT_LINE = re.compile(r"^(?=[#=+-])|^\d+(?=[.)])", re.MULTILINE)  # headings, lists
# Text that programs turn into links by themselves, and brackets that link. A joiner, which is not seen, breaks them.
_LINKED = re.compile(
    r"(?<=[a-z])(?=://)|(?<=/)(?=/)|(?<=[\w-])(?=\.[a-z]{2,})|(?<=\bwww)(?=\.)|(?=@)|(?<=\])(?=[(:\[])|(?<=\[)(?=\^)",
    re.IGNORECASE,
)
_JOINER = "\u2060"
_CITATION = re.compile(r"(\[\d{1,3}\])")
_UNSEEN = frozenset({"Cc", "Cf"})  # of Unicode's categories: they turn text around, or hide it
TEXT_PARTS = ("text", "input_text", "output_text")
SHAPES = (
    "guided_json guided_choice guided_regex guided_grammar structured_outputs grammar json_schema format text audio "
    "top_logprobs background conversation prompt"
).split()


def _a_filter(text: str) -> str:
    try:
        return str(Filter.parse(text))
    except RetrievalError as error:
        raise PydanticCustomError("filter", "{why}", {"why": str(error)}) from error


WhereText = Annotated[str, Field(max_length=2000, description=WHERE), AfterValidator(_a_filter)]


class MessagePart(BaseModel):
    """A part of a message's content; only text is read."""

    type: Annotated[str, Field(max_length=200)]
    text: str = ""


class ChatMessage(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[MessagePart] | None = None

    @property
    def text(self) -> str:
        """The message as one text; half a character, which no answer can repeat, becomes a question mark."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content or ()]
        return replace_surrogates("\n".join(parts).strip())

    @property
    def attachments(self) -> list[str]:
        """The kinds of its parts that are no text."""
        return [] if isinstance(self.content, str) else [p.type for p in self.content or () if p.type not in TEXT_PARTS]


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions.

    Settings of sampling that an agent does not have are not used, and named in the reply's `medagent.warnings`. Fields
    that would change the shape of an answer are refused. `where` is not OpenAI's: it says which passages may be found,
    see `medagent.retrieval.filters`.
    """

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Literal[1] | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    modalities: list[str] | None = None
    where: WhereText | None = None


@dataclass(frozen=True)
class Conversation:
    """The last question of a conversation with those before it and the user's last messages, or a utility's answer."""

    question: str
    before: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    utility: str | None = None


def read_conversation(body: ChatRequest, emergencies: Emergencies) -> Conversation:
    """Read the user's last question and those before it. System messages are left out: the agent has its own.

    Raises:
        ServiceError: the request asks for something that an agent does not do, or has no question.
    """
    _refuse_shapes(body)
    said = [message for message in body.messages if message.role in ("user", "assistant") and message.text]
    system = "\n".join(each.text for each in body.messages if each.role in ("system", "developer"))
    last = body.messages[-1]
    asked = [message.text for message in said if message.role == "user"]
    if last.role == "user" and last.attachments:
        kinds = ", ".join(sorted(set(last.attachments)))
        raise ServiceError(
            f"attachments ({kinds}) are not read here. Describe in words what they show.", param="messages"
        )
    ends_with_user = bool(said) and said[-1].role == "user"
    if last.role == "system" and not ends_with_user:  # as some programs ask for a summary
        utility = utility_answer("", last.text, asked)
    else:
        utility = utility_answer(system, asked[-1] if ends_with_user else "", asked[:-1] if ends_with_user else asked)
    if utility is not None and emergencies.line_for(without_talk(last.text)) is None:
        return Conversation("", utility=utility)
    if not ends_with_user:
        raise ServiceError("the last message must be the user's, and have text.", param="messages")
    question = asked[-1]
    if is_blank(question):
        raise ServiceError("the last message has no text that can be seen.", param="messages")
    if len(question) > MAX_CHARACTERS:
        raise ServiceError(
            f"the question has {len(question):,} characters, and may have {MAX_CHARACTERS:,}.", param="messages"
        )
    before = [text for text in asked[:-1] if len(text) <= MAX_CHARACTERS][-MAX_EARLIER:]
    return Conversation(question, tuple(before), tuple(asked[-MAX_HISTORY:]))


def _refuse_shapes(body: ChatRequest) -> None:
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        raise ServiceError(
            f"the format {kind!r} is not supported: answers are text with sources.", param="response_format"
        )
    for name, value in (("tool_choice", body.tool_choice), ("function_call", body.function_call)):
        if value not in (None, "auto", "none"):
            raise ServiceError(f"{name} {value!r} is not supported: the agent calls no tools of a client.", param=name)
    for name in SHAPES:
        if (body.model_extra or {}).get(name) not in (None, False, 0, {}, "", "text"):
            raise ServiceError(f"{name} is not supported: answers are text with sources.", param=name)
    if body.logprobs:
        raise ServiceError("logprobs are not given in chat completions.", param="logprobs")
    if body.modalities and body.modalities != ["text"]:
        raise ServiceError(f"modalities {body.modalities} are not supported: answers are text.", param="modalities")


def unused(body: ChatRequest) -> list[str]:
    """What a request asks for and an agent leaves out, a sentence each. Values that change nothing are not named."""
    names = [name[:60] for name, value in (body.model_extra or {}).items() if value not in (None, False, 0, {}, [], "")]
    told = [f"not used here: {', '.join(names[:MAX_NAMED])}."] if names else []
    roles = {message.role for message in body.messages}
    told += ["system messages are not read: the agent has its own."] if roles & {"system", "developer"} else []
    return [*told, "calls and results of tools are not read."] if roles & {"tool", "function"} else told


def completion(id: str, model: str, text: str, *, finish: str, usage: dict[str, int], **extra: Any) -> dict[str, Any]:
    """A completion with extra fields."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return {**_body("chat.completion", id, model, {"message": message}, finish), "usage": usage, **extra}


def chunk(id: str, model: str, delta: dict[str, Any], *, finish: str | None = None) -> dict[str, Any]:
    """One piece of a streamed completion."""
    return _body("chat.completion.chunk", id, model, {"delta": delta}, finish)


def _body(kind: str, id: str, model: str, said: dict[str, Any], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
    return {"id": id, "object": kind, "created": int(time.time()), "model": model, "choices": [choice]}


def usage_chunk(id: str, model: str, usage: dict[str, int]) -> dict[str, Any]:
    """The last piece, if `stream_options.include_usage` asks for it."""
    return {**chunk(id, model, {}), "choices": [], "usage": usage}


def content_of(answer: dict[str, Any]) -> str:
    """The answer as Markdown, with text of the model and the corpus escaped, and its verdict and sources below."""
    return "".join(piece for piece, _ in _pieces(answer))


def citations_of(answer: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Start and end in `content_of` of each citation and quoted sentence, and its passage."""
    end = 0
    for piece, passage in _pieces(answer):
        end += len(piece)
        if passage:
            yield end - len(piece), end, passage


def _pieces(answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The pieces of `content_of`, each with the passage that it cites."""
    if answer["urgent"]:
        yield f"**{escaped(answer['urgent'])}**\n\n", None
    if answer["asked_as"]:
        yield f"*Asked as: {escaped(answer['asked_as'])}*\n\n", None
    if answer["caption"]:
        yield f"*{answer['caption']}*\n\n", None
    sources = {f"[{source['number']}]": source["passage"] for source in answer["sources"]}
    for piece in _CITATION.split(escaped(answer["text"], paragraphs=True)):
        yield piece, sources.get(piece)
    yield "\n\n", None
    if not answer["withheld"]:
        yield f"{escaped(answer['verdict']['text'])}\n\n", None
        for number, passage in sources.items():
            yield number, passage
            yield f" {escaped(source_line(passage))}  \n", None
    for title, quotes in ((answer["quoted_as"], answer["quoted"]), (ALSO, answer["also"])):
        if quotes:
            yield f"\n{title}:\n", None
        for quote in quotes:
            only = f"Only for {quote['scope']}: " if quote["scope"] else ""
            yield "\n> ", None
            yield escaped(only + quote["passage"]["text"][slice(*quote["sentence"])]), quote["passage"]
            yield f"  \n> {escaped(source_line(quote['passage']))}\n", None
    yield f"\n*{answer['notice']}*", None


def thought_of(turn: dict[str, Any]) -> str:
    """A turn as a line of `reasoning_content`, by which chat programs show progress."""
    done = [f"Searched: {escaped(turn['query'])}"] if turn["query"] is not None else []
    done += [f"Called: {escaped(called(call))}" for call in turn["calls"]]
    return "; ".join(done) + f" ({len(turn['passages']) or 'no'} new passages)\n" if done else ""


def called(call: dict[str, Any]) -> str:
    """A call of a tool in a line, with the reason why it could not be run."""
    written = f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}"
    return f"{written}: {call['error']}" if call["error"] else written


def escaped(text: str, *, paragraphs: bool = False) -> str:
    """Text that Markdown shows as it is; in one line unless it may have `paragraphs`. Citations stay as they are.

    Not every chat program decodes entities, and some read a backslash before a bracket as mathematics.
    """
    text = "".join(each for each in text if each in "\n\t" or unicodedata.category(each) not in _UNSEEN)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    plain = "\n".join(lines) if paragraphs else " ".join(line for line in lines if line)
    plain = _LINKED.sub(_JOINER, _MARKUP.sub(r"\\\1", plain))
    return _AT_LINE.sub(lambda found: f"{found[0]}\\", plain)


def source_line(passage: dict[str, Any]) -> str:
    """Where a passage is from, in a line: its heading, source, date, publication types, kind and grade, or its id."""
    named = [passage.get(name) for name in ("title", "section", "source")]
    dated = passage.get("date") or passage.get("year")
    kind = kind_line(passage.get("kind", ""), passage.get("grade", ""))
    parts = [*named, dated, *passage.get("types", ()), kind]
    return ", ".join(str(part) for part in parts if part) or str(passage["id"])


def finish_reason(answer: dict[str, Any] | None) -> str:
    """OpenAI's name for how the answer ended."""
    return "length" if answer and answer["stop_reason"].startswith("max_") else "stop"


def usage_of(answer: dict[str, Any] | None) -> dict[str, int]:
    """The tokens of an answer; none where no agent was asked."""
    return answer["usage"] if answer else dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
