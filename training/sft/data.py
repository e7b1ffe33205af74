"""Dialogues in the tokens of the model that learns, and which of their questions are held out."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from hashlib import sha256

from transformers import PreTrainedTokenizerBase

from medagent.environment import AgentSettings
from medagent.errors import ConfigError
from medagent.pieces import Piece, encode
from medagent.policies.turn_ends import first_end
from medagent.protocol import TurnProtocol
from medagent.retrieval.passages import Hit
from medagent.types import Question, Rollout, StopReason, Turn
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


class LeftOutReason(StrEnum):
    """Why a question or a dialogue is left out, as a phrase after a count; names are parts of metrics' names."""

    NO_GOLD = "have no gold answer"
    NOT_FOUND = "ask for what no search shows"
    WRONG = "answer wrong"
    FEW_SEARCHES = "search less than min_searches"
    SURPLUS = "are more than was asked for"
    REPEATED = "repeat a question of another part"
    NO_ANSWER = "end without an answer"
    AFTER_ANSWER = "go on after an answer"
    UNREADABLE = "have a turn that neither searches nor answers"
    MAX_TURNS = "have more than max_turns turns"
    MAX_TURN_TOKENS = "have a turn over max_turn_tokens"
    MAX_TOTAL_TOKENS = "exceed max_total_tokens"
    CITATION = "cite a passage that this run does not show under that number"
    CONTROL_TOKEN = "write a control token of the tokenizer"  # noqa: S105


def in_words(left_out: Mapping[LeftOutReason, int]) -> str:
    """Counts by reason, in the order of reasons."""
    said = (f"{left_out[reason]} {reason}" for reason in LeftOutReason if left_out.get(reason))
    return ", ".join(said) or "none"


def encoded(
    rollouts: Sequence[Rollout], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Rollout], Counter[LeftOutReason]]:
    """The dialogues in a tokenizer's tokens, all turns as actions, and how many were left out for each reason.

    The tokens are those that the rollout loop would have shown.
    """
    control = _control_tokens(settings.protocol, tokenizer)
    made = [_encoded(rollout, settings, tokenizer, control) for rollout in rollouts]
    return [x for x in made if isinstance(x, Rollout)], Counter(x for x in made if not isinstance(x, Rollout))


def _encoded(
    rollout: Rollout, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase, control: set[int]
) -> Rollout | LeftOutReason:
    limits, protocol = settings.limits, settings.protocol
    ends = tuple(block.end for block in protocol.turn_ends(tokenizer))
    said = [turn.text[: first_end(turn.text, ends)] for turn in rollout.turns]  # where the run ends it
    texts = [protocol.rest_of_first_turn(tokenizer, text) if number == 0 else text for number, text in enumerate(said)]
    opened = protocol.opened(tokenizer)
    parsed = [protocol.read(tokenizer, text if number else opened + text) for number, text in enumerate(texts)]
    for turn, read in zip(rollout.turns, parsed, strict=True):
        if read.query is None and turn.hits and protocol.parse(turn.text).query is None:
            raise ConfigError(
                f"demonstration {rollout.question.id}: found passages after a turn that does not search "
                f"({turn.text[:60]!r}), wanted {protocol.search.start}...{protocol.search.end}."
            )
    if rollout.stop_reason is not StopReason.ANSWERED or not parsed or parsed[-1].answer is None:
        return LeftOutReason.NO_ANSWER
    if any(read.answer is not None for read in parsed[:-1]):
        return LeftOutReason.AFTER_ANSWER
    if any(read.query is None or len(read.asked) > 1 for read in parsed[:-1]):
        return LeftOutReason.UNREADABLE
    if len(parsed) > limits.max_turns:
        return LeftOutReason.MAX_TURNS
    turns: list[Turn] = []
    told: list[Hit] = []  # what the dialogue's own numbers name
    shown: list[Hit] = []  # what they name in this run
    for turn, own, text, read in zip(rollout.turns, said, texts, parsed, strict=True):
        ids, hits = tuple(encode(tokenizer, [Piece(text)])), turn.hits
        if control & set(ids):
            return LeftOutReason.CONTROL_TOKEN
        ids = (*ids, *encode(tokenizer, [Piece(protocol.turn_end(tokenizer, called=read.query is not None))]))
        if len(ids) > limits.max_turn_tokens:
            return LeftOutReason.MAX_TURN_TOKENS
        if _misnames(own, told, shown):
            return LeftOutReason.CITATION
        observation: list[int] = []
        if read.query is not None:
            hits = turn.hits[: settings.top_k]
            observation, count = protocol.encode_observation(
                tokenizer,
                harmless_passages(tokenizer, [hit.passage for hit in hits]),
                first_number=len(shown) + 1,
                max_tokens=limits.max_observation_tokens,
            )
            hits = hits[:count]
            told, shown = [*told, *turn.hits], [*shown, *hits]
        turns.append(Turn(ids, (0.0,) * len(ids), own, read.query, read.answer, hits, tuple(observation)))
    prompt = tuple(protocol.encode_prompt(tokenizer, harmless_question(tokenizer, rollout.question)))
    whole = replace(rollout, prompt_ids=prompt, turns=tuple(turns))
    return whole if len(whole.token_ids) <= limits.max_total_tokens else LeftOutReason.MAX_TOTAL_TOKENS


def _misnames(text: str, told: list[Hit], shown: list[Hit]) -> bool:
    """Whether a number in a turn names another passage than it did for the teacher, or one that nobody saw."""
    return any(
        not 1 <= number <= min(len(told), len(shown)) or shown[number - 1] is not told[number - 1]
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
    """Special tokens and role marks that are no mark of the protocol; a tokenizer may call a role mark either."""
    call = protocol.written_turn(tokenizer, query="")
    marks = [call, *protocol.tag_tokens, *(mark for block in protocol.blocks for mark in (block.start, block.end))]
    special = {
        id_
        for id_, token in tokenizer.added_tokens_decoder.items()
        if token.special or _TELLS_WHO_SPEAKS.fullmatch(str(token))
    }
    return (special | set(tokenizer.all_special_ids)) - set(encode(tokenizer, [Piece(mark) for mark in marks]))


def question_key(question: Question) -> tuple[str, ...]:
    """A key equal for equal questions: text and options, whatever their case, spacing, order of options and ids."""
    text, *options = (" ".join(each.lower().split()) for each in (question.text, *question.options))
    return (text, *sorted(options))


def num_held_out(held_out: float, count: int) -> int:
    """How many of `count` questions are held out: a share below 1, rounded down, or a whole number of them.

    Raises:
        ConfigError: `held_out` is neither.
    """
    if not (math.isfinite(held_out) and (0 <= held_out < 1 or (held_out >= 1 and held_out == int(held_out)))):
        raise ConfigError(
            f"data.held_out: found {held_out}, wanted a share of the questions from 0 to below 1, or a whole number."
        )
    return int(held_out * count) if held_out < 1 else int(held_out)


def split(rollouts: Sequence[Rollout], held_out: float, *, seed: int) -> tuple[list[Rollout], list[Rollout]]:
    """The dialogues to imitate and those held out, in their order. A question's hash decides, so none is in both."""

    def place(key: tuple[str, ...]) -> bytes:
        return sha256("|".join((str(seed), *key)).encode("utf-8", "replace")).digest()

    keys = [question_key(rollout.question) for rollout in rollouts]
    questions = sorted(set(keys), key=place)
    out = set(questions[: num_held_out(held_out, len(questions))])
    imitated = [rollout for rollout, key in zip(rollouts, keys, strict=True) if key not in out]
    return imitated, [rollout for rollout, key in zip(rollouts, keys, strict=True) if key in out]
