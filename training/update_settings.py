"""Numbers and precision of an update: those that would spoil the weights, or learn nothing, are refused.

They are refused before a model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from medagent.errors import ConfigError


@dataclass(frozen=True)
class NumberRule:
    """Which numbers a setting of the module may be, in code and in words."""

    names: tuple[str, ...]
    allows: Callable[[float], bool]
    wanted: str
    optional: bool = False


RULES = (
    NumberRule(("policy_lr", "critic_lr"), lambda value: 0 <= value <= 1, "a learning rate from 0 to 1"),
    NumberRule(("weight_decay", "kl_coef"), lambda value: value >= 0, "a finite number, 0 or more"),
    NumberRule(("entropy_coef",), lambda value: True, "a finite number"),
    NumberRule(
        ("policy_max_grad_norm", "critic_max_grad_norm"),
        lambda value: value > 0,
        "a finite number above 0; a large one, such as 1e6, clips nothing",
    ),
    NumberRule(("temperature",), lambda value: value > 0, "a positive finite number (sampling must explore)"),
    NumberRule(("value_clip",), lambda value: value > 0, "a finite number above 0, or none", optional=True),
    NumberRule(("lr_decay_iterations",), lambda value: value >= 1, "1 or more iterations, or none", optional=True),
    NumberRule(("lr_warmup_iterations",), lambda value: value >= 0, "0 or more iterations"),
)


def check_update_settings(settings: Mapping[str, Any]) -> None:
    """Check the arguments of an `AgentModule`, by name.

    Raises:
        ConfigError: one is not finite, out of range, or contradicts another.
    """
    for rule in RULES:
        for name in rule.names:
            value = settings[name]
            if not (value is None and rule.optional):
                require_number(f"model.{name}", value, rule.allows, rule.wanted)
    dtype = settings["dtype"]
    _require(
        getattr(torch, dtype, None) is not torch.float16,
        "dtype",
        dtype,
        "bfloat16 or float32. In float16 small gradients become 0, and the loss is not scaled. An agent trained so "
        "can still be loaded in float16",
    )
    sees, has_adapter = settings["critic_sees"], settings["critic_lora"] is not None
    has_critic = has_adapter or sees != "context"
    policy, critic = settings["policy_lora"], settings["critic_lora"]
    _require(critic is None or critic.start is None, "critic_lora.start", critic and critic.start, "none (a policy's)")
    policy.check_start(settings["base_model"], quantise=settings["execution"].quantise)
    value_clip = settings["value_clip"]
    _require(value_clip is None or has_critic, "value_clip", value_clip, "none, as there is no critic")
    _require(
        sees == "context" or not has_adapter,
        "critic_sees",
        sees,
        "context; or critic_lora null, as a critic that sees the evidence has no adapter",
    )


def require_number(name: str, found: object, allows: Callable[[float], bool], wanted: str) -> None:
    """Refuse what is no number, not finite, or not allowed.

    Raises:
        ConfigError: it is one of these.
    """
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not (is_number and math.isfinite(found) and allows(found)):  # type: ignore[arg-type]
        raise ConfigError(f"{name}: found {found}, wanted {wanted}.")


def _require(holds: bool, name: str, found: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"model.{name}: found {found}, wanted {wanted}.")
