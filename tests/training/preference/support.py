"""Ragged pairs of made-up tokens, and a module in double precision whose policy has left its start."""

from __future__ import annotations

from types import MethodType

import torch
from torch import Tensor, nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.preference.losses import PreferenceLoss
from medagent.training.preference.module import PreferenceModule
from medagent.training.preference.pairs import PreferencePair
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import perturb

VOCABULARY = 2048


def rollout(question: int, seed: int, turns: list[tuple[int, int, int]], *, success: bool) -> Rollout:
    """A rollout of drawn tokens; a turn is (forced tokens, sampled tokens, tokens of an observation)."""
    noise = torch.Generator().manual_seed(seed)

    def drawn(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(10, VOCABULARY, (count,), generator=noise).tolist())

    said = tuple(
        Turn(
            drawn(forced + sampled),
            (0.0,) * (forced + sampled),
            "",
            observation_ids=drawn(shown),
            forced_prefix=forced,
        )
        for forced, sampled, shown in turns
    )
    prompt = tuple(range(20, 27 + question))
    reason = StopReason.ANSWERED if success else StopReason.MAX_TURNS
    return Rollout(Question(f"q{question}", f"question {question}"), prompt, said, reason, success=success)


def pairs() -> list[PreferencePair]:
    """Three pairs: of one and three turns, of two and one with a forced start, and with an observation at the end."""
    return [
        PreferencePair(
            rollout(0, 1, [(0, 4, 0)], success=True),
            rollout(0, 2, [(0, 2, 3), (0, 5, 2), (0, 1, 0)], success=False),
        ),
        PreferencePair(
            rollout(1, 3, [(1, 3, 6), (0, 2, 0)], success=True),
            rollout(1, 4, [(1, 6, 0)], success=False),
        ),
        PreferencePair(
            rollout(2, 5, [(0, 3, 2), (0, 4, 0)], success=True),
            rollout(2, 6, [(0, 2, 4)], success=False),
        ),
    ]


def module_of(loss: PreferenceLoss, *, temperature: float = 1.0, **execution: object) -> PreferenceModule:
    """A module in double precision, off its start.

    Transformers normalises in float32 whatever a model's precision, so its layers get a norm that does not.
    """
    torch.manual_seed(0)
    made = PreferenceModule(
        policy_lora=LoraSettings(rank=4, alpha=8),
        preference_loss=loss,
        temperature=temperature,
        execution=Execution(**execution),
    )
    perturb(made)
    for layer in made.modules():
        if isinstance(layer, Qwen2RMSNorm):
            layer.forward = MethodType(_normalised, layer)
    return made.double()


def _normalised(layer: nn.Module, states: Tensor) -> Tensor:
    return layer.weight * states * torch.rsqrt(states.square().mean(-1, keepdim=True) + layer.variance_epsilon)
