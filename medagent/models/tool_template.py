"""Dialogues with tools in a tokenizer's chat template, cut into what the template writes and what the messages say.

A template is rendered with marks in place of all texts of messages and all descriptions of functions. What stands
between the marks is the template's own, and the texts are encoded apart. So no text from outside can speak as anyone,
and no sampled turn is rendered again.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.call_syntax import THOUGHTS, read_turn
from medagent.errors import ConfigError
from medagent.models.chat_template import day_of, render
from medagent.tool_calls import Message, ToolCall

_MARK = '\u2063{}"\u2063'  # the quotation mark shows whether the template writes a text as JSON
_MARKS = re.compile('(\u2063\\d+\\\\?"\u2063)')
_THOUGHTS = "reasoning_content", "thinking"  # of Qwen and most others, and of gpt-oss
_CALL_ID = "call{number:05}"  # nine letters or digits, as Mistral's templates want
_KIMI_ID = "functions.{name}:{number}"  # which the template writes in place of the name
_PLAIN = re.compile(r"[\w.$-]{1,64}", re.ASCII)
_CALL_ENDS = re.compile(r"[\"'}\])]*(?:\s{0,9}(?:</[^>\n]+>|```|[}\])]))*")
_REMEDY = "Use medagent.protocol.TagProtocol with this model."


@dataclass(frozen=True)
class Slot:
    """The place of a text: of message `message`, or of a function where that is -1."""

    text: str
    message: int
    as_json: bool

    def written(self, text: str) -> str:
        """A text as the template writes it in this place, which may stand inside quotation marks of JSON."""
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.as_json else text


@dataclass(frozen=True)
class ToolTemplate:
    """A tokenizer's chat template on a day such as 2025-01-01, with the functions that it offers (JSON schemas)."""

    tokenizer: PreTrainedTokenizerBase
    date: str
    functions: Sequence[Mapping[str, Any]] = ()

    def parts(self, messages: Sequence[Message], *, turn_follows: bool = True) -> list[str | Slot]:
        """The template's own texts, and a `Slot` for each text of a message, an argument or a function.

        Raises:
            ConfigError: there is no template, or it refuses, drops or repeats one of these texts.
        """
        texts: list[tuple[str, int]] = []
        said = self._told(messages, lambda value, number: _marked(value, number, texts))
        in_messages = len(texts)
        dialogue = json.dumps([said, _marked(self.functions, -1, texts)])
        found, numbers = list[str | Slot](), list[int]()
        for part in _MARKS.split(_rendered(self.tokenizer, self._chat_template, self.date, dialogue, turn_follows)):
            if _MARKS.fullmatch(part):
                numbers.append(int(part[1:-2].rstrip("\\")))
                found.append(Slot(*texts[numbers[-1]], "\\" in part))
            elif part:
                found.append(part)
        shown = sorted(number for number in numbers if number < in_messages)
        wrong = shown != list(range(in_messages))
        if wrong or len(texts) > in_messages == len(numbers):
            does, what = "repeats" if len(shown) > in_messages else "drops", "messages" if wrong else "tools"
            raise ConfigError(f"native tool calls: the chat template {does} {what}. {_REMEDY}")
        return found

    def text(self, messages: Sequence[Message], *, turn_follows: bool = True) -> str:
        """The messages as a server renders them, which reads their texts as well.

        Raises:
            ConfigError: the template refuses them.
        """
        if not any(name in self._chat_template for name in _THOUGHTS):  # it knows no place for thoughts but the content
            messages = [replace(each, content=_thinking(each) + each.content, thought="") for each in messages]
        dialogue = json.dumps([self._told(messages, lambda value, number: value), list(self.functions)])
        return _rendered.__wrapped__(self.tokenizer, self._chat_template, self.date, dialogue, turn_follows)

    @property
    def _chat_template(self) -> str:
        return str(self.tokenizer.chat_template or "")

    def _told(self, messages: Sequence[Message], put: Callable[[Any, int], Any]) -> list[dict[str, Any]]:
        """The messages as chat templates take them; `put` replaces what each says. A turn's calls have own ids."""
        names = [str(function["function"]["name"]) for function in self.functions]
        id_of = _KIMI_ID if "<|tool_call_argument_begin|>" in self._chat_template else _CALL_ID
        told, waiting = list[dict[str, Any]](), list[str]()  # ids of calls without a result so far
        for number, message in enumerate(messages):
            name = _plain_name(message.name, names)
            made: dict[str, Any] = {"role": message.role, "content": put(message.content, number)}
            if message.role == "tool":
                made |= {"name": name, "tool_call_id": waiting.pop(0) if waiting else id_of.format(name=name, number=0)}
            if message.thought:
                made |= dict.fromkeys(_THOUGHTS, put(message.thought, number))
            if message.calls:
                called = [(_plain_name(call.name, names), put(dict(call.arguments), number)) for call in message.calls]
                waiting = [id_of.format(name=each, number=place) for place, (each, _) in enumerate(called)]
                made["tool_calls"] = [
                    {"id": id_, "type": "function", "function": {"name": each, "arguments": arguments}}
                    for id_, (each, arguments) in zip(waiting, called, strict=True)
                ]
            told.append(made)
        return told

    def read(self, text: str) -> Message:
        """A turn of the assistant as sampled, without its end."""
        return read_turn(text, self.functions, getattr(self.tokenizer, "response_template", None))

    def after_turn(self, messages: Sequence[Message]) -> tuple[str, list[str | Slot]]:
        """The text that ends a turn of the assistant, and the parts of the messages that follow it.

        After a turn that called tools there is a message for each call.
        """
        called = [each.name for each in messages if each.role == "tool"]
        before = _turn(called)
        shifted = self.parts([*before, *messages])
        last = max(at for at, part in enumerate(shifted) if isinstance(part, Slot) and 0 <= part.message < len(before))
        gap, *rest = shifted[last + 1 :]
        assert isinstance(gap, str)  # a template writes something between two messages
        end = self.turn_end(called[:1])
        if end not in gap:  # an earlier turn ends with another token than the last one
            end = self._first_added(gap) or gap.rstrip()
        after = gap.partition(end)[2]
        moved = [Slot(p.text, p.message - len(before), p.as_json) if isinstance(p, Slot) else p for p in rest]
        return end, [after, *moved] if after else list(moved)

    def opened(self) -> str:
        """The mark by which the generation prompt opens a thought, and what stands behind it; often nothing."""
        prompt = str(self.parts([Message("user", "x")])[-1])
        mark = next((start for start, _ in THOUGHTS if prompt.rstrip().endswith(start)), None)
        return prompt[prompt.rindex(mark) :] if mark else ""

    def turn_end(self, called: Sequence[str] = ()) -> str:
        """The text by which the template ends a turn, one that calls these tools; it may be several tokens.

        It is what follows the turn in any case. Where that is nothing, the beginning of the next message ends a turn.
        """
        following = [Message("tool", "x", name=name) for name in called] or [Message("user", "x")]
        alone = self._behind(_turn(called), turn_follows=False)
        gap = self._behind([*_turn(called), *following], turn_follows=True)
        common = self._common(alone, gap).rstrip()
        if called:  # the end of the call itself stands before it
            usual = self.turn_end()
            if usual in common:
                return usual
            end = max(self._added(common), key=common.rindex, default="")
            if end and not self._between_calls(called[0], end):
                return end
            gap = gap[len(common) :] if end else gap[len(_CALL_ENDS.match(gap)[0]) :]  # type: ignore[index]
            return self._first_added(gap) or gap.rstrip() or usual
        end = common or self._first_added(alone) or alone.rstrip() or gap.rstrip()
        if not end:
            raise ConfigError(f"native tool calls: the chat template writes nothing that ends a turn. {_REMEDY}")
        return end

    def turn_text(self, message: Message) -> str:
        """A turn of the assistant as the template writes it after its generation prompt, without the turn's end."""
        before = "".join(p.text if isinstance(p, Slot) else p for p in self.parts([Message("user", "x")]))
        parts = self.parts([Message("user", "x"), message], turn_follows=False)
        whole = "".join(p.written(p.text) if isinstance(p, Slot) else p for p in parts)
        text, opened = whole[_shared(before, whole) :], self.opened()
        end = self.turn_end([call.name for call in message.calls][:1])
        text = (text[: text.rindex(end)] if end in text else text).rstrip()
        closes = next((end for start, end in THOUGHTS if opened.startswith(start)), "")
        return text if not opened or closes in text else f"{opened[len(opened.rstrip()) :]}{closes}\n\n{text}"

    def _between_calls(self, name: str, end: str) -> bool:
        """Whether this stands between two calls of a turn, so that it ends none."""
        try:
            parts = self.parts(_turn([name, name]), turn_follows=False)
        except ConfigError:  # a template of one call per turn
            return False
        first, *_, last = (at for at, part in enumerate(parts) if isinstance(part, Slot) and part.message == 1)
        return any(isinstance(part, str) and end in part for part in parts[first:last])

    def _behind(self, messages: Sequence[Message], *, turn_follows: bool) -> str:
        """What the template writes right after the first turn of the assistant, up to the next text."""
        parts = self.parts(messages, turn_follows=turn_follows)
        last = max(at for at, part in enumerate(parts) if isinstance(part, Slot) and part.message == 1)
        behind = parts[last + 1] if last + 1 < len(parts) else ""
        return behind if isinstance(behind, str) else ""

    def _common(self, *texts: str) -> str:
        """The tokens with which two texts begin, as text."""
        one, other = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
        return str(self.tokenizer.decode(one[: _shared(one, other)], clean_up_tokenization_spaces=False))

    def _added(self, text: str) -> list[str]:
        names = [str(token) for token in self.tokenizer.added_tokens_decoder.values()]
        return [name for name in names if name in text]

    def _first_added(self, text: str) -> str:
        return min(self._added(text), key=text.index, default="")


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many elements both begin with."""
    same = (at for at, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its)
    return next(same, min(len(one), len(other)))


def _turn(called: Sequence[str]) -> list[Message]:
    """A question and a turn of the assistant that calls these tools, or says something."""
    calls = tuple(ToolCall(name, {"query": "x"}) for name in called)
    return [Message("user", "x"), Message("assistant", "" if calls else "x", calls=calls)]


def _thinking(message: Message) -> str:
    return f"<think>\n{message.thought}\n</think>\n\n" if message.thought else ""


def _marked(value: Any, number: int, texts: list[tuple[str, int]], key: str = "") -> Any:
    """The value with a mark in place of each text, which is kept in `texts`, but for names and types of functions.

    Raises:
        ConfigError: a name of a function (`number` -1) has other signs than those of a word.
    """
    if isinstance(value, Mapping):
        named = [*value, value.get("name", "x")] if number < 0 else ()
        if odd := [name for name in named if isinstance(name, str) and not _PLAIN.fullmatch(name)]:
            raise ConfigError(
                f"tools: found the name {odd[0][:80]!r} of a tool or a parameter, wanted letters, digits and _.-$. "
                "Rename it, or leave the tool out."
            )
        return {
            name if _PLAIN.fullmatch(name) else _marked(name, number, texts): _marked(each, number, texts, name)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked(each, number, texts, key) for each in value]
    kept = number < 0 and key in ("name", "type", "required") and _PLAIN.fullmatch(str(value))
    if not isinstance(value, str) or not value or kept:
        return value
    texts.append((value, number))
    return _MARK.format(len(texts) - 1)


def _plain_name(name: str, known: Sequence[str]) -> str:
    """A tool's name, or another where a model made one up that might speak the template's language."""
    return name if name in known or _PLAIN.fullmatch(name) else next(iter(known), "unknown")


@lru_cache(maxsize=1024)
def _rendered(tokenizer: PreTrainedTokenizerBase, template: str, date: str, dialogue: str, turn_follows: bool) -> str:
    """The template's text of messages and functions, given as JSON; it is the same for all texts behind marks."""
    if not template:
        raise ConfigError(f"native tool calls: the model's tokenizer has no chat template. {_REMEDY}")
    messages, functions = json.loads(dialogue)
    write = partial(render, tokenizer, day=day_of(date), tools=functions or None, add_generation_prompt=turn_follows)
    try:
        try:
            return write(messages)
        except TypeError:  # the template wants arguments as JSON
            for call in (call for message in messages for call in message.get("tool_calls", ())):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            return write(messages)
    except Exception as error:  # a template is a program of the model's makers and may raise anything
        raise ConfigError(f"native tool calls: the chat template refuses the dialogue ({error}). {_REMEDY}") from error
