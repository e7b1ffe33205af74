"""Which dialogues are held out: those of some questions, with all that was said on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from medagent.errors import ConfigError
from medagent.training.sft.demonstrations import QuestionKey, question_key
from medagent.types import Rollout


@dataclass(frozen=True)
class HeldOutShare:
    """How many questions are held out: a share below 1, or a whole number of them."""

    value: float

    def __post_init__(self) -> None:
        """Refuse what is neither."""
        value = self.value
        if not (math.isfinite(value) and (0 <= value < 1 or (value >= 1 and value == int(value)))):
            raise ConfigError(
                f"data.held_out: found {value}, wanted a share of the questions from 0 to below 1, or a whole number."
            )

    def of(self, count: int) -> int:
        """So many of `count` questions; a share is rounded down.

        >>> HeldOutShare(0.05).of(119), HeldOutShare(20).of(119)
        (5, 20)
        """
        return int(self.value * count) if self.value < 1 else int(self.value)


def split(rollouts: Sequence[Rollout], share: HeldOutShare, *, seed: int) -> tuple[list[Rollout], list[Rollout]]:
    """The dialogues to imitate and those held out, in their order; no question is in both.

    A question's hash decides, so it is on the same side whatever other questions there are, but for the last ones.
    """

    def place(key: QuestionKey) -> bytes:
        return sha256("|".join((str(seed), *key)).encode("utf-8", "replace")).digest()

    keys = [question_key(rollout.question) for rollout in rollouts]
    questions = sorted(set(keys), key=place)
    out = set(questions[: share.of(len(questions))])
    imitated = [rollout for rollout, key in zip(rollouts, keys, strict=True) if key not in out]
    held_out = [rollout for rollout, key in zip(rollouts, keys, strict=True) if key in out]
    return imitated, held_out
