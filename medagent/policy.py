"""The interface between the rollout loop and a policy: a policy opens sessions, and a session samples turns.

A session is one dialogue. It takes token ids (prompt, observations) and gives token ids with log-probs. It lasts for
the dialogue, so an engine can keep its KV cache from turn to turn.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from medagent.pieces import Block
from medagent.types import Usage


class TurnStop(StrEnum):
    """Why a turn ended."""

    TAG = "tag"  # an end tag of the protocol
    END_OF_TEXT = "end_of_text"  # the model's own end token
    LENGTH = "length"  # the token limit
    REFUSED = "refused"  # an endpoint's filter


@dataclass(frozen=True)
class SampledTurn:
    """Token ids as sampled, their log-probs at the sampling temperature (1 for greedy), and the text.

    `usage` is what an endpoint counted for it. `context_ids`: see `Turn`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    stop: TurnStop
    usage: Usage | None = None
    context_ids: tuple[int, ...] = ()


class Session(Protocol):
    """One dialogue with a policy."""

    def append(self, token_ids: list[int]) -> None:
        """Add tokens that the policy did not write; they are read before the next turn."""

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        """Sample one turn of at most `max_tokens` tokens, up to an end tag."""

    def close(self) -> None:
        """Free what the session holds, which may be nothing; safe to call twice."""
        return


class Policy(Protocol):
    """Writes the turns of dialogues."""

    tokenizer: PreTrainedTokenizerBase
    """The tokenizer of prompts and observations."""

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> Session:
        """Start a dialogue. Equal seeds give equal samples; temperature 0 is greedy.

        A turn ends after the `end` of any of `blocks` (`TurnProtocol.blocks`).
        """

    async def disconnect(self) -> None:
        """Release what belongs to the running event loop, which is about to end. No dialogue is open then."""
        return
