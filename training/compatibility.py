"""Which settings fit together; what does not is refused, or warned of, with the reason, before the first rollout."""

from __future__ import annotations

import warnings
from dataclasses import fields
from pathlib import Path

from medagent.agent import Limits
from medagent.agent_folder import SPEC_FILE, read_spec
from medagent.causal_lm import model_path
from medagent.errors import ConfigError
from training.advantages import GAE, AdvantageEstimator
from training.module import AgentModule
from training.prepare import TruncatedMode


def check_composition(
    module: AgentModule,
    estimator: AdvantageEstimator,
    *,
    num_samples: int,
    num_critic_epochs: int,
    truncated: TruncatedMode,
) -> None:
    """Raise ConfigError where critic, advantage, groups and `truncated` contradict one another."""
    name = type(estimator).__name__
    if estimator.needs_critic and not module.has_critic:
        raise ConfigError(
            f"data.advantage is {name}, which needs a critic, and model.critic_lora is null: give the critic an "
            "adapter (model.critic_lora), let it see the evidence (model.critic_sees), or take an advantage without "
            "a critic."
        )
    if module.has_critic and not estimator.needs_critic:
        raise ConfigError(
            f"data.advantage is {name}, which needs no critic, and model.critic_lora or model.critic_sees allocates "
            "one that nothing would read: set them to null and context."
        )
    if estimator.needs_groups and num_samples < 2:
        raise ConfigError(
            f"data.advantage is {name} and data.num_samples is {num_samples}: a rollout is compared with others of "
            "the same question, so there must be 2 or more. Raise data.num_samples (and lower data.num_questions to "
            "keep the batch)."
        )
    if module.critic_sees == "evidence_and_group" and num_samples < 2:
        raise ConfigError(
            f"model.critic_sees is evidence_and_group and data.num_samples is {num_samples}: the critic weighs how a "
            "question's other rollouts ended, so there must be 2 or more. Raise data.num_samples (and lower "
            "data.num_questions to keep the batch), or take evidence."
        )
    if num_critic_epochs and not module.has_critic:
        raise ConfigError(f"data.num_critic_epochs is {num_critic_epochs}, and there is no critic: set it to 0.")
    if truncated == "bootstrap" and not isinstance(estimator, GAE):
        raise ConfigError(
            f"data.truncated is bootstrap, and data.advantage ({name}) has no value to bootstrap from: use GAE."
        )


def warn_of_tight_limits(base_model: str, limits: Limits) -> None:
    """Warn where turns will be cut shorter than the base was taught to make them.

    Its folder may say how long they are (agent.json).
    """
    folder = Path(model_path(base_model))
    if not (folder / SPEC_FILE).exists():
        return
    taught = read_spec(folder).limits
    names = [field.name for field in fields(Limits) if getattr(limits, field.name) < getattr(taught, field.name)]
    if names:
        tight = ", ".join(f"{name} {getattr(limits, name)} (the base's own: {getattr(taught, name)})" for name in names)
        warnings.warn(
            f"data.agent.limits: found {tight}; rollouts of {base_model} will be cut off. Raise them to those in its "
            f"{SPEC_FILE}.",
            stacklevel=2,
        )
