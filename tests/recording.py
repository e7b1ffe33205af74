"""A policy that says what a script says and a retriever that finds the same, which keep what they were asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from medagent.pieces import Block
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policy import SampledTurn, TurnStop
from medagent.retrieval.passages import Hit, Passage


@dataclass
class Dialogue:
    """How one dialogue was opened, what it read, and the room of each of its turns."""

    policy: RecordingPolicy
    seed: int
    temperature: float
    ends: tuple[str, ...]
    read: list[int] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)

    def append(self, token_ids: list[int]) -> None:
        self.read += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        said = self.policy.script(self.text, len(self.rooms))
        text, named = (said, None) if isinstance(said, str) else said
        ids = tuple(self.policy.tokenizer(text, add_special_tokens=False)["input_ids"])[:max_tokens]
        self.rooms.append(max_tokens)
        self.read += ids
        text = str(self.policy.tokenizer.decode(list(ids)))
        ended = TurnStop.LENGTH if len(ids) == max_tokens else TurnStop.END_OF_TEXT
        stop = TurnStop.TAG if text.rstrip().endswith(self.ends) else ended
        return SampledTurn(ids, (-0.5,) * len(ids), text, named or stop)

    @property
    def text(self) -> str:
        """Everything read and said so far."""
        return str(self.policy.tokenizer.decode(self.read))

    def close(self) -> None:
        """Nothing is held."""


Script = Callable[[str, int], str | tuple[str, TurnStop]]


class RecordingPolicy:
    """Answers with `script(text read so far, turn number)`, which may name why the turn stops.

    Its tokens are bytes, unless it is given a tokenizer.
    """

    def __init__(self, script: Script, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.script = script
        self.tokenizer = tokenizer or byte_tokenizer()
        self.dialogues: list[Dialogue] = []

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> Dialogue:
        self.dialogues.append(Dialogue(self, seed, temperature, tuple(block.end for block in blocks)))
        return self.dialogues[-1]

    async def disconnect(self) -> None:
        """Nothing is connected."""


class Finds:
    """Answers every query with the same passages."""

    def __init__(self, *passages: Passage) -> None:
        self.passages = passages
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        self.queries += queries
        return [[Hit(passage, 1.0) for passage in self.passages] for _ in queries]
