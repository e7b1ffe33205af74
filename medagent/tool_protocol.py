"""Native tool calling: dialogues in the language of the model's own chat template, exact to the token.

The template writes the tools, the question and the results. A turn of the model is kept as it was sampled and is never
rendered again. It ends where the template ends a turn. A turn without a call is the answer.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

from transformers import PreTrainedTokenizerBase

from medagent.answer_forms import FORM_HINTS
from medagent.call_syntax import read_turn
from medagent.errors import ConfigError
from medagent.history import DROPS, RerenderingSession, changes, differing_turns
from medagent.models.chat_template import day_of
from medagent.models.tool_template import Slot, ToolTemplate
from medagent.pieces import Block, ParsedTurn, Piece, encode
from medagent.policy import Policy, SampledTurn, Session
from medagent.protocol import TurnProtocol, neutralise
from medagent.retrieval.passages import Hit, Passage
from medagent.tool_calls import SEARCH_FUNCTION, Message, ToolCall, ToolResult, searched
from medagent.types import LETTERS, Question, Rollout
from medagent.untrusted_text import harmless, harmless_passages, harmless_question

INSTRUCTIONS = """Answer the medical question from the results of tools. Call search first, and again as often as you \
need. Each passage begins with its number in brackets, like [1]. In the answer {naming}, and cite the passages that \
support it by their numbers, like [1]."""
CLOSED_BOOK = "Answer the medical question from what you know. In the answer {naming}."
GIVEN = """Answer the medical question from the passages that the search gave. Each begins with its number in \
brackets, like [1]. In the answer {naming}, and cite the passages that support it, like [1]."""
NAMING = "name one option by its letter in parentheses, like (B)", "say it in a few words"  # with and without options
_QUERY = "\u2063"
NOT_FOUND = "No passage found."
_OPEN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u[0-9a-f]{0,3})?$")  # of JSON


@dataclass(frozen=True)
class ToolProtocol(TurnProtocol):
    """The agent calls tools in the syntax of its model's family.

    `functions` are the schemas that the template shows, in OpenAI's form; a run replaces them by those of its tools.
    `instructions` stand before the question. A template that writes today's date writes `date`. Calls that the program
    writes, in demonstrations, have the `call_form` of the template, or are fenced "json" for a model whose tokens of
    calls were never trained (`medagent.models.causal_lm.untrained_tokens`).

    `history` says what becomes of earlier turns that the template would show otherwise than they were sampled: "keep"
    keeps their tokens, in training and in the service; "rerender" samples and trains each turn in the history that a
    server shows which renders messages anew; "refuse" refuses such a template.
    """

    search: ClassVar[Block] = Block("", "")
    answer: ClassVar[Block] = Block("", "")
    tag_tokens: ClassVar[tuple[str, ...]] = ()

    instructions: str = INSTRUCTIONS
    date: str = "2025-01-01"
    functions: Sequence[Mapping[str, Any]] = (SEARCH_FUNCTION,)
    call_form: Literal["template", "json"] = "template"
    history: Literal["keep", "rerender", "refuse"] = "keep"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a date that is none."""
        day_of(self.date)

    @property
    def instructed(self) -> bool:
        return bool(self.instructions)

    def init_args(self) -> dict[str, Any]:
        return asdict(self)

    def answering_only(self, *, given: bool) -> Self:
        if not self.instructions:
            return self
        return replace(self, instructions=GIVEN) if given else replace(self, instructions=CLOSED_BOOK, functions=())

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> Self:
        """The protocol that offers these too, in OpenAI's form. One of a known name takes its place."""
        named = {each["function"]["name"]: each for each in (*self.functions, *schemas)}
        return replace(self, functions=tuple(named.values()))

    def neutralise(self, text: str) -> str:
        return neutralise(text)

    def described(self) -> str:
        return "tool calls in the syntax of the model's chat template, and an answer with passage numbers in brackets"

    def turn_ends(self, tokenizer: PreTrainedTokenizerBase) -> tuple[Block, ...]:
        ends = {self.turn_end(tokenizer, called=called) for called in (False, bool(self.functions))}
        return tuple(Block("", end) for end in sorted(ends - {str(tokenizer.eos_token)}))

    def history_metrics(self, policy: Policy, rollouts: Sequence[Rollout]) -> dict[str, float]:
        tokenizer = policy.tokenizer
        if not changes(tokenizer, str(tokenizer.chat_template), self.date):
            return {}
        differing = sum(len(differing_turns(self.template(tokenizer), rollout)) for rollout in rollouts)
        return {"rollout/other_history": differing / max(1, sum(len(rollout.turns) for rollout in rollouts))}

    def note_on(self, tokenizer: PreTrainedTokenizerBase) -> str:
        changed = changes(tokenizer, str(tokenizer.chat_template), self.date)
        if not changed or self.history != "keep":
            return ""
        return (
            f"protocol.history: the chat template {changed}. This run keeps their tokens as sampled, and medagent "
            "serves the agent so. For another server set history to rerender."
        )

    def session(self, tokenizer: PreTrainedTokenizerBase, begin: Callable[[int], Session]) -> Session:
        """See `TurnProtocol.session`.

        Raises:
            ConfigError: the template changes earlier turns, and `history` does not allow for that.
        """
        changed = changes(tokenizer, str(tokenizer.chat_template), self.date)
        refused = {"keep": False, "refuse": True, "rerender": not changed.startswith(DROPS)}
        if changed and refused[self.history]:
            raise ConfigError(
                f"protocol.history: found {self.history} and a chat template that {changed}. Set it to keep, which "
                "serves the tokens as sampled."
            )
        return begin(0) if self.history == "keep" else RerenderingSession(self.template(tokenizer), begin)

    def turn_end(self, tokenizer: PreTrainedTokenizerBase, *, called: bool) -> str:
        name = self.functions[0]["function"]["name"] if called else ""
        return self.template(tokenizer).turn_end([name] if called else [])

    def ended_by(self, trained: bool) -> bool:
        return True

    def ended(self, tokenizer: PreTrainedTokenizerBase, turn: SampledTurn, *, called: bool) -> bool:
        """Whether a turn ends as the template ends one, one that calls a tool if `called`; not by another token."""
        end = self.turn_end(tokenizer, called=called and bool(self.functions))
        return turn.text.endswith(end) or str(tokenizer.decode(list(turn.token_ids[-1:]))) == end

    def query_pieces(self, tokenizer: PreTrainedTokenizerBase, query: str) -> list[Piece]:
        before, _, after = self.written_turn(tokenizer, query=_QUERY).partition(_QUERY)
        quoted = json.dumps(query, ensure_ascii=False)[1:-1]
        end = self.turn_end(tokenizer, called=True)
        return [Piece(before), Piece(quoted, trusted=False), Piece(after + end)]

    def written_turn(self, tokenizer: PreTrainedTokenizerBase, *, query: str | None = None, answer: str = "") -> str:
        if query is not None and self.call_form == "json":
            call = {"name": "search", "arguments": {"query": query}}
            return f"```json\n{json.dumps(call, ensure_ascii=False)}\n```"
        calls = () if query is None else (ToolCall("search", {"query": query}),)
        return self.template(tokenizer).turn_text(Message("assistant", "" if calls else answer, calls=calls))

    def opened(self, tokenizer: PreTrainedTokenizerBase, number: int = 0) -> str:
        """See `TurnProtocol.opened`: every generation prompt may open a thought."""
        return self.template(tokenizer).opened()

    def encode_prompt(self, tokenizer: PreTrainedTokenizerBase, question: Question) -> list[int]:
        """Token ids of the tools and the question, up to where the policy starts to write."""
        asked = self.asked(harmless_question(tokenizer, question))

        def content(slot: Slot) -> list[int]:
            return encode(tokenizer, [Piece(slot.written(piece.text), piece.trusted) for piece in asked])

        return self._ids(tokenizer, self.template(tokenizer).parts([Message("user", "question")]), content)

    def encode_messages(
        self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], functions: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Token ids of a dialogue's messages with these functions, up to where the policy writes; all is untrusted."""
        parts = ToolTemplate(tokenizer, self.date, functions).parts(messages)
        return self._ids(tokenizer, parts, lambda slot: _untrusted(tokenizer, slot))

    def encode_next(
        self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, ended: bool = True
    ) -> list[int]:
        """Token ids of the messages after a turn, up to the next one. Where it has not `ended`, its end comes first."""
        return self._next(tokenizer, messages, lambda slot: _untrusted(tokenizer, slot), ended=ended)

    def encode_results(
        self,
        tokenizer: PreTrainedTokenizerBase,
        results: Sequence[ToolResult],
        *,
        first_number: int,
        max_tokens: int,
        turn: SampledTurn | None = None,
    ) -> tuple[list[int], list[int]]:
        """See `TurnProtocol.encode_results`. A passage that does not fit is shortened, or left out if nothing fits."""
        messages = [Message("tool", "result", name=result.name) for result in results]
        # A history that is rendered anew has each end already.
        ended = turn is None or self.history == "rerender" or self.ended(tokenizer, turn, called=True)
        room = max_tokens - len(self._next(tokenizer, messages, lambda slot: [], ended=ended))
        shown = [0] * len(results)

        def content(slot: Slot) -> list[int]:
            nonlocal room
            first = first_number + sum(shown)
            ids, shown[slot.message] = self._result(tokenizer, results[slot.message], slot, first, room)
            room -= len(ids)
            return ids

        return self._next(tokenizer, messages, content, ended=ended), shown

    def encode_observation(
        self, tokenizer: PreTrainedTokenizerBase, passages: Sequence[Passage], *, first_number: int, max_tokens: int
    ) -> tuple[list[int], int]:
        """See `TurnProtocol.encode_observation`: the result of one search."""
        found = ToolResult("search", tuple(Hit(passage, 0.0) for passage in passages))
        ids, shown = self.encode_results(tokenizer, [found], first_number=first_number, max_tokens=max_tokens)
        return ids, shown[0]

    def read_message(self, text: str, tokenizer: PreTrainedTokenizerBase | None = None) -> Message:
        """A sampled turn as a message of the assistant, read as the tokenizer tells where it does."""
        return self.template(tokenizer).read(text) if tokenizer else read_turn(text, self.functions)

    def read(self, tokenizer: PreTrainedTokenizerBase, text: str) -> ParsedTurn:
        return self._parsed(self.read_message(text, tokenizer))

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn, in the syntax of any family.

        >>> ToolProtocol().parse('<tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>').query
        'gout'
        """
        return self._parsed(self.read_message(text))

    def _parsed(self, said: Message) -> ParsedTurn:
        if not said.calls:
            return ParsedTurn(said.thought, None, said.content or None)
        return ParsedTurn(said.thought or said.content, searched(said.calls), None, said.calls)

    def template(self, tokenizer: PreTrainedTokenizerBase) -> ToolTemplate:
        """The tokenizer's chat template with this protocol's functions."""
        return ToolTemplate(tokenizer, self.date, self.functions)

    def asked(self, question: Question) -> list[Piece]:
        """The message that asks the question."""
        told = self.instructions.replace("{naming}", NAMING[0 if question.options else 1])
        pieces = [Piece(told + "\n\n")] if told else []
        pieces += [Piece("Question:"), Piece(" " + self.neutralise(question.text), trusted=False), Piece("\n")]
        for letter, option in zip(LETTERS, question.options, strict=False):
            pieces += [Piece(f"{letter}) "), Piece(self.neutralise(option), trusted=False), Piece("\n")]
        return [*pieces, Piece(FORM_HINTS[question.form] if told else "")]

    def _result(
        self, tokenizer: PreTrainedTokenizerBase, result: ToolResult, slot: Slot, first_number: int, room: int
    ) -> tuple[list[int], int]:
        """Token ids of one result within `room`, and how many passages they show."""
        if not result.hits:
            said = f"error: {self.neutralise(result.error)}" if result.error else NOT_FOUND
            return _cut(tokenizer, encode(tokenizer, [Piece(slot.written(said), trusted=False)]), slot, room), 0
        ids = list[int]()
        passages = harmless_passages(tokenizer, [hit.passage for hit in result.hits])
        for shown, passage in enumerate(passages):
            mark = encode(tokenizer, [Piece(slot.written("\n") * bool(shown)), Piece(f"[{first_number + shown}] ")])
            text = encode(tokenizer, [Piece(slot.written(self.neutralise(passage.shown_text)), trusted=False)])
            fits = room - len(ids) - len(mark)
            if fits < min(4, len(text)):
                return ids, shown
            ids += mark + _cut(tokenizer, text, slot, fits)
        return ids, len(passages)

    def _next(
        self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], content: "Content", *, ended: bool
    ) -> list[int]:
        end, parts = self.template(tokenizer).after_turn(messages)
        return self._ids(tokenizer, parts if ended else [end, *parts], content)

    def _ids(self, tokenizer: PreTrainedTokenizerBase, parts: Sequence[str | Slot], content: "Content") -> list[int]:
        ids = list[int]()
        for part in parts:
            if isinstance(part, str):
                ids += encode(tokenizer, [Piece(part)])
            else:
                ids += content(part) if part.message >= 0 else _untrusted(tokenizer, part)
        return ids


Content = Callable[[Slot], list[int]]  # token ids of what stands in a place


def _cut(tokenizer: PreTrainedTokenizerBase, ids: list[int], slot: Slot, room: int) -> list[int]:
    """The first `room` tokens of a text. In JSON none ends inside an escape, which would hide the closing quote."""
    kept = ids[: max(0, room)]
    while slot.as_json and len(kept) < len(ids) and _OPEN_ESCAPE.search(str(tokenizer.decode(kept[-16:]))):
        kept = kept[:-1]
    return kept


def _untrusted(tokenizer: PreTrainedTokenizerBase, slot: Slot) -> list[int]:
    return encode(tokenizer, [Piece(slot.written(harmless(tokenizer, slot.text)), trusted=False)])
