"""A policy that writes given turns: it drives the rollout loop in tests and examples."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from medagent.pieces import Block, Piece, encode
from medagent.policies.turn_ends import TurnEnds, end_token_ids
from medagent.policy import Policy, SampledTurn, Session, TurnStop

Script = Callable[[str, int], str]  # (text read so far, turn number) -> the next turn


class ScriptedPolicy(Policy):
    """Writes the turns that `script` returns; log-probs are 0 (every token certain)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, script: Script) -> None:
        self.tokenizer, self._script = tokenizer, script

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> "ScriptedSession":
        """See `Policy.open`; seed and temperature change nothing."""
        return ScriptedSession(self.tokenizer, self._script, blocks)


class ScriptedSession(Session):
    """A dialogue with a `ScriptedPolicy`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, script: Script, blocks: tuple[Block, ...]) -> None:
        self._tokenizer, self._script = tokenizer, script
        self._ends = TurnEnds.of(tokenizer, blocks, end_token_ids(tokenizer))
        self._read: list[int] = []
        self._turn = 0

    def append(self, token_ids: list[int]) -> None:
        self._read += token_ids

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        text = self._script(str(self._tokenizer.decode(self._read)), self._turn)
        ids = encode(self._tokenizer, [Piece(text)])[:max_tokens]
        self._turn += 1
        turn = self._ends.cut(ids, [0.0] * len(ids), max_tokens=max_tokens, otherwise=TurnStop.END_OF_TEXT)
        self._read += turn.token_ids
        return turn
