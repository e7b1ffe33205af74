"""Dialogues in the tokens of the model that imitates them, and why a question or a dialogue is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from transformers import PreTrainedTokenizerBase

from medagent.errors import ConfigError
from medagent.policies.turn_ends import first_end
from medagent.protocol import Piece, TurnProtocol, encode
from medagent.retrieval.passages import Hit
from medagent.training.agent_data import AgentSettings
from medagent.types import Rollout, StopReason, Turn
from medagent.untrusted_text import harmless_passages, harmless_question

# Names of added tokens by which a model tells who speaks, special or not. A tool call is the agent's own.
_TELLS_WHO_SPEAKS = re.compile(
    r"[<\[{|].*(?:im_|turn|header|eot|eom|end|user|assistant|system|human|inst).*[>\]}|]", re.IGNORECASE | re.DOTALL
)
MOST_IN_RANGE = 100  # numbers in a range that are looked at one by one
_RANGE = r"\s*\^?\d{1,3}\s*(?:[-\u2013]\s*\d{1,3}\s*)?"
# The square brackets of any script, and words that are written with a number.
_WORDS = r"(?:\s*(?:passages?|sources?|documents?|references?|refs?|docs?|no|see)\b\.?\s*)*"
_RANGES = rf"{_RANGE}(?:(?:[,;&]|\band\b){_WORDS}{_RANGE})*"
_BRACKETS = re.compile(rf"[\[［【〔]{_WORDS}({_RANGES})[\]］】〕]", re.IGNORECASE)


class LeftOut(StrEnum):
    """Why a question or a dialogue is left out. The values are parts of metrics' names.

    The first group is about questions that scripted demonstrations are made of, the second about which dialogues are
    wanted. The third is about what this run's agent could not have said, or not have seen.
    """

    NO_GOLD = "no_gold"
    NOT_FOUND = "not_found"
    WRONG = "wrong"
    FEW_SEARCHES = "few_searches"
    SURPLUS = "surplus"
    REPEATED = "repeated"
    NO_ANSWER = "no_answer"
    AFTER_ANSWER = "after_answer"
    UNREADABLE = "unreadable"
    MAX_TURNS = "max_turns"
    MAX_TURN_TOKENS = "max_turn_tokens"
    MAX_TOTAL_TOKENS = "max_total_tokens"
    CITATION = "citation"
    CONTROL = "control_token"

    @property
    def in_words(self) -> str:
        """The reason as a phrase after a count."""
        return {
            LeftOut.NO_GOLD: "have no gold answer",
            LeftOut.NOT_FOUND: "ask for what no search shows",
            LeftOut.WRONG: "answer wrong",
            LeftOut.FEW_SEARCHES: "search less than min_searches",
            LeftOut.SURPLUS: "are more than was asked for",
            LeftOut.REPEATED: "repeat a question of another part",
            LeftOut.NO_ANSWER: "end without an answer",
            LeftOut.AFTER_ANSWER: "go on after an answer",
            LeftOut.UNREADABLE: "have a turn that neither searches nor answers",
            LeftOut.MAX_TURNS: "have more than max_turns turns",
            LeftOut.MAX_TURN_TOKENS: "have a turn over max_turn_tokens",
            LeftOut.MAX_TOTAL_TOKENS: "exceed max_total_tokens",
            LeftOut.CITATION: "cite a passage that this run does not show under that number",
            LeftOut.CONTROL: "write a control token of the tokenizer",
        }[self]


def in_words(left_out: Mapping[LeftOut, int]) -> str:
    """Counts by reason, in the order of reasons.

    >>> in_words({LeftOut.CITATION: 0, LeftOut.NO_ANSWER: 2, LeftOut.WRONG: 1})
    '1 answer wrong, 2 end without an answer'
    """
    said = (f"{left_out[reason]} {reason.in_words}" for reason in LeftOut if left_out.get(reason))
    return ", ".join(said) or "none"


def encoded(
    rollouts: Sequence[Rollout], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase, *, wrong: bool = False
) -> tuple[list[Rollout], Counter[LeftOut]]:
    """The dialogues in a tokenizer's tokens, all turns as actions, and how many were left out for each reason.

    Left out is what this run's agent could not have said under its limits, or could not have seen. The tokens are those
    that the rollout loop would have shown: prompt and passages pass through the same protocol, `top_k` per search.

    `wrong`: they are examples of what not to say. Then one may end without an answer, or cite what was never shown.
    """
    control = _control_tokens(settings.protocol, tokenizer)
    found: list[Rollout] = []
    left_out: Counter[LeftOut] = Counter()
    for rollout in rollouts:
        made = _encoded(rollout, settings, tokenizer, control, wrong=wrong)
        if isinstance(made, LeftOut):
            left_out[made] += 1
        else:
            found.append(made)
    return found, left_out


def _encoded(
    rollout: Rollout,
    settings: AgentSettings,
    tokenizer: PreTrainedTokenizerBase,
    control: set[int],
    *,
    wrong: bool,
) -> Rollout | LeftOut:
    limits, protocol = settings.limits, settings.protocol
    ends = tuple(block.end for block in protocol.blocks)
    said = [turn.text[: first_end(turn.text, ends)] for turn in rollout.turns]  # where the run ends it
    texts = [protocol.rest_of_first_turn(tokenizer, text) if number == 0 else text for number, text in enumerate(said)]
    opened = protocol.opened(tokenizer)
    parsed = [protocol.parse(text if number else opened + text) for number, text in enumerate(texts)]
    for turn, read in zip(rollout.turns, parsed, strict=True):
        if read.query is None and turn.hits and protocol.parse(turn.text).query is None:
            raise ConfigError(
                f"demonstration {rollout.question.id}: found passages after a turn that does not search "
                f"({turn.text[:60]!r}), wanted {protocol.search.start}...{protocol.search.end}."
            )
    if not wrong and (rollout.stop_reason is not StopReason.ANSWERED or not parsed or parsed[-1].answer is None):
        return LeftOut.NO_ANSWER
    if any(read.answer is not None for read in parsed[:-1]):
        return LeftOut.AFTER_ANSWER
    if any(read.query is None for read in parsed[:-1]):
        return LeftOut.UNREADABLE
    if len(parsed) > limits.max_turns:
        return LeftOut.MAX_TURNS
    turns: list[Turn] = []
    told: list[Hit] = []  # what the dialogue's own numbers name
    shown: list[Hit] = []  # what they name in this run
    for turn, own, text, read in zip(rollout.turns, said, texts, parsed, strict=True):
        turn = replace(turn, text=own)
        ids = tuple(encode(tokenizer, [Piece(text)]))
        if control & set(ids):
            return LeftOut.CONTROL
        if len(ids) > limits.max_turn_tokens:
            return LeftOut.MAX_TURN_TOKENS
        if _misnames(turn.text, told, shown, unshown=not wrong):
            return LeftOut.CITATION
        observation: tuple[int, ...] = ()
        if read.query is not None:
            hits = turn.hits[: settings.top_k]
            inserted, count = protocol.encode_observation(
                tokenizer,
                harmless_passages(tokenizer, [hit.passage for hit in hits]),
                first_number=len(shown) + 1,
                max_tokens=limits.max_observation_tokens,
            )
            observation = tuple(inserted)
            told, shown = [*told, *turn.hits], [*shown, *hits[:count]]
            turn = replace(turn, hits=hits[:count])
        turns.append(Turn(ids, (0.0,) * len(ids), turn.text, read.query, read.answer, turn.hits, observation))
    prompt = tuple(protocol.encode_prompt(tokenizer, harmless_question(tokenizer, rollout.question)))
    whole = replace(rollout, prompt_ids=prompt, turns=tuple(turns))
    return whole if len(whole.token_ids) <= limits.max_total_tokens else LeftOut.MAX_TOTAL_TOKENS


def _misnames(text: str, told: list[Hit], shown: list[Hit], *, unshown: bool) -> bool:
    """Whether a number in a turn names another passage than it did for the teacher, or `unshown` what nobody saw."""
    return any(
        shown[number - 1] is not told[number - 1] if 1 <= number <= min(len(told), len(shown)) else unshown
        for number in _numbers(text)
    )


def _numbers(text: str) -> Iterator[int]:
    """The numbers of passages in brackets, also of lists and ranges such as [1, 3] and [2-4].

    >>> list(_numbers("so [1, 3], [2-4] and [passages 5 and 6], but [IV] and (5)"))
    [1, 3, 2, 3, 4, 5, 6]
    """
    for inside in _BRACKETS.findall(text):
        for part in re.split(r"[,;&]|\band\b", inside, flags=re.IGNORECASE):
            first, *last = map(int, re.findall(r"\d+", part))
            yield from (first, *(range(first + 1, last[-1] + 1) if last and last[-1] - first < MOST_IN_RANGE else last))


def _control_tokens(protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of special tokens and of marks of roles that are no mark of the protocol, such as the end of text.

    Whether a tokenizer calls a mark of roles special is chance.
    """
    marks = [*protocol.tag_tokens, *(mark for block in protocol.blocks for mark in (block.start, block.end))]
    special = {
        id_
        for id_, token in tokenizer.added_tokens_decoder.items()
        if token.special or _TELLS_WHO_SPEAKS.fullmatch(str(token))
    }
    return (special | set(tokenizer.all_special_ids)) - set(encode(tokenizer, [Piece(mark) for mark in marks]))
