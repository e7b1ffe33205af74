"""What a chat template makes of earlier turns: it keeps them as sampled, shows less of them, or rewrites more.

Many templates drop the thoughts of earlier turns, or write their calls anew. A server that renders each request from
messages then shows the model another history than one that keeps the tokens. `changes` tells so at start.
`RerenderingSession` samples each turn in the history that such a server shows; a rollout then has several contexts
(`medagent.types.NEW_CONTEXT`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from medagent.models.tool_template import Slot, ToolTemplate
from medagent.pieces import Piece, encode
from medagent.policy import SampledTurn, Session
from medagent.tool_calls import SEARCH_FUNCTION, Message, ToolCall
from medagent.types import Rollout

_BETWEEN = "\u2063{}\u2063"  # stands for what a message between two turns says
_USER = Message("user", "x")


class RewrittenError(ValueError):
    """A template changes more of a dialogue than the turns of the assistant; the message says what."""


def shown_turns(template: ToolTemplate, turns: Sequence[Message]) -> list[str]:
    """What a server shows of these turns before the next one: each as text, from its header to its end.

    After a turn that calls tools come their results, after any other a message of the user.

    Raises:
        RewrittenError: no turn can be told from what is around it.
    """
    messages, between, count = [_USER], list[list[str]](), 0
    for turn in turns:
        following = [Message("tool", "x", name=call.name or "tool") for call in turn.calls] or [_USER]
        _, parts = template.after_turn(following)
        marks = [_BETWEEN.format(count + number) for number in range(len(following))]
        between.append([marks[part.message] if isinstance(part, Slot) else part for part in parts])
        messages += [turn, *(replace(each, content=mark) for each, mark in zip(following, marks, strict=True))]
        count += len(following)
    whole, before = template.text(messages), template.text([_USER], turn_follows=False)
    if not whole.startswith(before):
        raise RewrittenError("changes the question")
    shown, place = list[str](), len(before)
    for number, texts in enumerate(between, start=1):
        rest = "".join(texts)
        rest = rest.removesuffix(generation_prompt(template)) if number < len(turns) else rest
        start = whole.find(rest, place)
        if start < 0:
            raise RewrittenError("changes the results of tools")
        shown.append(whole[place:start])
        place = start + len(rest)
    return shown


def generation_prompt(template: ToolTemplate) -> str:
    """What the template writes before a turn."""
    return template.text([_USER]).removeprefix(template.text([_USER], turn_follows=False))


DROPS = "drops the"  # begins what a template does that `RerenderingSession` can follow


@lru_cache(maxsize=16)
def changes(tokenizer: PreTrainedTokenizerBase, chat_template: str, date: str) -> str:
    """What the template does to earlier turns of a probe, as a verb with its object; empty: nothing.

    `chat_template` is the tokenizer's, by which the answer is remembered.
    """
    template = ToolTemplate(tokenizer, date, (SEARCH_FUNCTION,))
    turn = Message(
        "assistant", "probe text", calls=(ToolCall("search", {"query": "probe query"}),), thought="probe thought"
    )
    for turns, when in (([turn, turn], ""), ([turn, replace(turn, calls=())], " when a message of the user follows")):
        try:
            first = shown_turns(template, turns)[0]
        except RewrittenError as error:
            return f"{error}{when}"
        for part, name in (("thought", "thoughts"), ("text", "texts before calls"), ("query", "calls")):
            if f"probe {part}" not in first:
                return f"{DROPS} {name} of earlier turns{when}"
    return ""


class RerenderingSession:
    """A dialogue whose earlier turns are shown as the template renders them anew. See `Session`.

    Where that differs from what was read and sampled, in text or in tokens, a turn begins in a context of its own.
    """

    def __init__(self, template: ToolTemplate, begin: Callable[[int], Session]) -> None:
        self._template, self._begin, self._session = template, begin, begin(0)
        self._pending: list[int] = []
        self._read: list[int] = []  # what the policy read and sampled in the present context
        self._given: list[list[int]] = []  # what stood before each turn
        self._turns: list[Message] = []

    def append(self, token_ids: list[int]) -> None:
        """See `Session.append`."""
        self._pending += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        """See `Session.sample`. `context_ids` is set where the context is another than what came before."""
        self._given.append(self._pending)
        context, self._pending = context_of(self._template, self._given, self._turns), []
        going_on = not self._turns or context == self._read + self._given[-1]
        if not going_on:
            last, self._session = self._session, self._begin(len(self._turns))
            last.close()
            self._read = []
        self._session.append(context[len(self._read) :])
        sampled = await self._session.sample(max_tokens=max_tokens)
        self._read = [*context, *sampled.token_ids]
        ends = self._template.turn_end(), self._template.turn_end(["tool"])
        said = sampled.text.removesuffix(next(filter(sampled.text.endswith, ends), ""))
        self._turns.append(self._template.read(said))
        return sampled if going_on else replace(sampled, context_ids=tuple(context))

    def close(self) -> None:
        """See `Session.close`."""
        self._session.close()


def context_of(template: ToolTemplate, given: Sequence[list[int]], turns: Sequence[Message]) -> list[int]:
    """Token ids that a server shows before the turn after `turns`; `given[i]` are those that stand before turn i."""
    if not turns:
        return list(given[0])
    opening = generation_prompt(template)
    before = encode(template.tokenizer, [Piece(opening)])
    ids = list[int]()
    for stands, shown in zip(given, shown_turns(template, turns), strict=False):
        if stands[len(stands) - len(before) :] != before:
            raise RewrittenError("joins the beginning of a turn with what stands before it")
        apart = shown.startswith(opening)
        ids += stands[: len(stands) - len(before)]
        ids += encode(
            template.tokenizer, [Piece(opening), Piece(shown.removeprefix(opening))] if apart else [Piece(shown)]
        )
    return [*ids, *given[-1]]


def differing_turns(template: ToolTemplate, rollout: Rollout) -> list[int]:
    """The turns that were sampled in another history than a server shows which renders each request anew."""
    given, kept, found = [list(rollout.prompt_ids)], list[int](), list[int]()
    for number, turn in enumerate(rollout.turns):
        said = [template.read(each.text) for each in rollout.turns[:number]]
        read = list(turn.context_ids) or [*kept, *given[-1]]
        try:
            shown = context_of(template, given, said)
        except RewrittenError:
            shown = []
        if shown != read:
            found.append(number)
        kept = [*read, *turn.token_ids]
        given.append(list(turn.observation_ids))
    return found
