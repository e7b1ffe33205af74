"""One record per stage: Question -> Turn -> Rollout. Records are frozen and hold tokens exactly as sampled.

Worked example, a rollout of two turns over a prompt of two tokens::

    prompt_ids [5, 6]   turn 0 samples [7, 8], then the environment inserts [9]   turn 1 samples [4]
    token_ids  [5, 6, 7, 8, 9, 4]
    loss_mask  [0, 0, 1, 1, 0, 1]      True = sampled by the policy
    turn_ids   [-1,-1, 0, 0,-1, 1]     -1 outside actions
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Literal

from medagent.retrieval.passages import Hit
from medagent.tool_calls import ToolCall

LETTERS = "ABCDEFGHIJ"
NEW_CONTEXT = -1  # in place of a token id: what follows was read from its beginning, as a dialogue of its own
# One answer; up to five, best first; all entries of a list; a number with its unit; all right options.
AnswerForm = Literal["text", "ranked", "list", "number", "select_all"]


class StopReason(StrEnum):
    """Why a rollout ended. Only `ANSWERED` carries an answer; the limits count as truncation."""

    ANSWERED = "answered"
    MALFORMED = "malformed"  # the model ended its turn without a search or an answer
    MAX_TURNS = "max_turns"
    MAX_TURN_TOKENS = "max_turn_tokens"
    MAX_TOTAL_TOKENS = "max_total_tokens"
    REFUSED = "refused"  # an endpoint's filter, not the model, ended it
    ERROR = "error"  # an endpoint or the search failed for good

    @property
    def failed(self) -> bool:
        """True where neither the model nor a limit ended the rollout."""
        return self in (StopReason.REFUSED, StopReason.ERROR)

    @property
    def truncated(self) -> bool:
        """True where a limit, not the model, ended the rollout."""
        return self in (StopReason.MAX_TURNS, StopReason.MAX_TURN_TOKENS, StopReason.MAX_TOTAL_TOKENS)


@dataclass(frozen=True)
class Limits:
    """Limits of a rollout, in turns and tokens. A rollout that reaches one ends there, and its stop reason says so.

    `max_total_tokens` is checked before each turn. The last observation may exceed it, by `max_observation_tokens` at
    most. A longer prompt is truncated to this many tokens.
    """

    max_turns: int = 4
    max_turn_tokens: int = 64
    max_observation_tokens: int = 256
    max_total_tokens: int = 768


@dataclass(frozen=True)
class Question:
    """A question, multiple-choice where `options` is not empty.

    `answer` is the gold option's letter (multiple choice), all right letters as "A, C" (the form "select_all"), or the
    gold text (open). `aliases` are other texts that count as right. `kind` groups the report. `gold_passage_ids` are
    passages that contain the evidence, where the benchmark
    names them. `form` says how an open answer is written (`medagent.answer_forms`). `items` are the right entries of a
    list, each with its synonyms. `bounds` are the least and the largest right number, in the gold answer's unit.
    """

    id: str
    text: str
    options: tuple[str, ...] = ()
    answer: str = ""
    kind: str = "all"
    gold_passage_ids: tuple[str, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    form: AnswerForm = "text"
    items: tuple[tuple[str, ...], ...] = ()
    bounds: tuple[float | None, float | None] | None = None

    @property
    def letters(self) -> str:
        """The letters that name an option, in order."""
        return LETTERS[: len(self.options)]

    @property
    def right_letters(self) -> tuple[str, ...]:
        """The letters of the right options: one, or with the form "select_all" any number."""
        return tuple(self.answer.split(", "))

    @property
    def golds(self) -> tuple[str, ...]:
        """The right answers of an open question."""
        return (self.answer, *self.aliases)


@dataclass(frozen=True)
class Usage:
    """The requests that an endpoint answered, and their tokens if it counts them."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Turn:
    """One turn: what the policy sampled and what the environment inserted after it.

    `token_ids` and `logprobs` have equal length. `forced_prefix` counts leading tokens that the environment wrote. They
    are not actions and have log-prob 0. `usage` is what an endpoint counted for it. `quoted`: the program wrote
    `answer` of sentences that it named. `calls` are those of native tool calling. `context_ids`: the whole context
    that the turn was sampled in, where that is not what was read and sampled before.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    query: str | None = None
    answer: str | None = None
    hits: tuple[Hit, ...] = ()
    observation_ids: tuple[int, ...] = ()
    forced_prefix: int = 0
    reward: float = 0.0
    usage: Usage | None = None
    quoted: bool = False
    calls: tuple[ToolCall, ...] = ()
    context_ids: tuple[int, ...] = ()

    @property
    def before(self) -> tuple[int, ...]:
        """The token ids before the turn's own, behind what came before it."""
        return (NEW_CONTEXT, *self.context_ids) if self.context_ids else ()


@dataclass(frozen=True)
class Rollout:
    """One episode, the only source of training tokens. `policy_version` is that of the weights that sampled it.

    `error` is the reason of a stop reason that `failed`.
    """

    question: Question
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    policy_version: int = 0
    sample: int = 0
    reward: float = 0.0
    success: bool = False
    error: str = ""

    @property
    def _parts(self) -> Iterator[tuple[Sequence[int], Sequence[float], int]]:
        """The sequence in parts: token ids, their log-probs where they are no zeros, and the turn of actions or -1."""
        yield self.prompt_ids, (), -1
        for number, turn in enumerate(self.turns):
            given = turn.forced_prefix
            yield turn.before, (), -1
            yield turn.token_ids[:given], turn.logprobs[:given], -1
            yield turn.token_ids[given:], turn.logprobs[given:], number
            yield turn.observation_ids, (), -1

    @property
    def token_ids(self) -> list[int]:
        """The whole sequence, prompt first: one list, [T]. What follows a `NEW_CONTEXT` sees nothing before it."""
        return [token for ids, *_ in self._parts for token in ids]

    @property
    def loss_mask(self) -> list[bool]:
        """[T], True where the policy sampled the token."""
        return [turn >= 0 for turn in self.turn_ids]

    @property
    def turn_ids(self) -> list[int]:
        """[T], the turn of each action token, -1 elsewhere."""
        return [turn for ids, _, turn in self._parts for _ in ids]

    @property
    def rollout_logprobs(self) -> list[float]:
        """[T], the sampler's log-probs at action tokens, 0 elsewhere."""
        return [value for ids, logprobs, _ in self._parts for value in logprobs or (0.0,) * len(ids)]

    @property
    def total_reward(self) -> float:
        """The outcome's reward and those of the turns."""
        return self.reward + sum(turn.reward for turn in self.turns)

    @property
    def num_searches(self) -> int:
        """Turns that searched."""
        return sum(turn.query is not None for turn in self.turns)

    @property
    def num_action_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(turn.token_ids) - turn.forced_prefix for turn in self.turns)

    @property
    def answer(self) -> str | None:
        """The text inside the answer tags, None where there is none."""
        return self.turns[-1].answer if self.turns else None

    @property
    def hits(self) -> list[Hit]:
        """Passages shown, in the order of their citation numbers (the first is [1])."""
        return [hit for turn in self.turns for hit in turn.hits]

    def graded(self, reward: float, *, success: bool) -> "Rollout":
        """A copy that carries its grade."""
        return replace(self, reward=reward, success=success)


def rollout_seed(seed: int, *, iteration: int, question_id: str, sample: int) -> int:
    """The seed of one rollout (64 bits). It is a hash, so it does not depend on what ran before."""
    digest = sha256(f"{seed}|{iteration}|{question_id}|{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
