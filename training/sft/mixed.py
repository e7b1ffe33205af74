"""Dialogues of several sources in one mix, with a number or a share for each."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from medagent.errors import ConfigError
from medagent.protocol import TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentSettings
from medagent.training.sft.demonstrations import Demonstrations, QuestionKey, question_key
from medagent.training.sft.left_out import LeftOut, in_words
from medagent.types import Rollout


@dataclass(frozen=True)
class Part:
    """A source, and how many of its dialogues count: `number` at most, or the `share` of the mix; all without both."""

    demonstrations: Demonstrations
    number: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.number is not None and self.share is not None:
            raise ConfigError(
                f"MixedDemonstrations: found a part with number {self.number} and share {self.share}, wanted one of "
                "them at most."
            )
        if (self.number is not None and self.number < 0) or (self.share is not None and not 0 < self.share <= 1):
            raise ConfigError(
                f"MixedDemonstrations: found a part with number {self.number} and share {self.share}, wanted 0 or "
                "more, or above 0 and at most 1."
            )


class MixedDemonstrations(Demonstrations):
    """Draws from several sources.

    Shares are of the whole mix, so they sum up to 1, or to less beside parts without a share. The mix is as large as
    the parts allow. Where a part has too few dialogues for its share, all of them count.

    A question counts in the first part that draws it, unless `repeat_questions`. Questions are told apart by their
    texts and options, not by their ids. What a part itself repeats, such as several samples, stays.
    """

    def __init__(self, parts: list[Part], repeat_questions: bool = False, seed: int = 0) -> None:
        """`seed` draws the dialogues."""
        shares = [part.share for part in parts if part.share is not None]
        total, whole = sum(shares), len(shares) == len(parts)
        if not parts or (whole and not math.isclose(total, 1)) or (not whole and total >= 1):
            raise ConfigError(
                f"MixedDemonstrations.parts: found {len(parts)} parts with shares {shares}, wanted one part or more, "
                "and shares that sum up to 1 (below 1 beside parts without a share)."
            )
        self._parts, self._repeat, self._seed = parts, repeat_questions, seed

    def make(
        self, settings: AgentSettings, retriever: Retriever, folder: Path, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """See `Demonstrations.make`; each part has a folder of its own."""
        for number, part in enumerate(self._parts, start=1):
            part.demonstrations.make(settings, retriever, folder / f"part-{number}", tokenizer)

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """See `Demonstrations.read`."""
        read = [
            part.demonstrations.read(folder / f"part-{number}", protocol)
            for number, part in enumerate(self._parts, start=1)
        ]
        left_out: Counter[LeftOut] = Counter()
        self.sampled_tokens = sum(part.demonstrations.sampled_tokens for part in self._parts)
        for part in self._parts:
            left_out.update(part.demonstrations.left_out)
        empty = [str(number) for number, rollouts in enumerate(read, start=1) if not rollouts]
        if empty and all(part.share is not None for part in self._parts):
            raise ConfigError(
                f"MixedDemonstrations.parts: found no dialogue in part {', '.join(empty)} (left out: "
                f"{in_words(left_out)}), wanted some in each, as shares of nothing leave nothing. Mend that source, or "
                "leave the part out."
            )
        sizes = _sizes(self._parts, [len(rollouts) for rollouts in read])
        taken: set[QuestionKey] = set()
        mix: list[Rollout] = []
        self.parts = {}
        for number, (rollouts, size) in enumerate(zip(read, sizes, strict=True), start=1):
            keys = [question_key(rollout.question) for rollout in rollouts]
            free = [at for at, key in enumerate(keys) if self._repeat or key not in taken]
            drawn = sorted(random.Random(f"{self._seed}|{number}").sample(free, min(size, len(free))))
            left_out[LeftOut.REPEATED] += len(rollouts) - len(free)
            left_out[LeftOut.SURPLUS] += len(free) - len(drawn)
            taken |= {keys[at] for at in drawn}
            mix += [rollouts[at] for at in drawn]
            self.parts[str(number)] = len(drawn)
        self.left_out = left_out
        return mix


def _sizes(parts: Sequence[Part], found: Sequence[int]) -> list[int]:
    """How many dialogues each part is to give, of those found in each.

    With shares alone the mix is the largest that has them exactly, up to rounding.
    """
    fixed = [
        0 if part.share is not None else count if part.number is None else min(part.number, count)
        for part, count in zip(parts, found, strict=True)
    ]
    shares = [part.share or 0.0 for part in parts]
    if any(part.share is None for part in parts):
        total = sum(fixed) / (1 - sum(shares))
    else:
        total = min(count / share for share, count in zip(shares, found, strict=True))
    return [
        size if part.share is None else min(round(total * part.share), count)
        for part, size, count in zip(parts, fixed, found, strict=True)
    ]
