"""Which settings fit together: others are refused or warned of before the first rollout, with the reason."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.environment import AgentSettings, Environment
from medagent.errors import ConfigError, require
from medagent.interface_check import check_part
from medagent.models.base_models import model_path
from medagent.models.causal_lm import untrained_tokens
from medagent.pieces import Piece, encode
from medagent.protocol import TurnProtocol
from medagent.training.advantages import AdvantageEstimator
from medagent.training.engines import Engine
from medagent.training.execution import Quantisation
from medagent.training.finite_steps import in_words
from medagent.training.rewards import OUTCOME, OutcomeReward, Reward
from medagent.training.rollouts.questions import NoisyRetrieval
from medagent.training.settings import as_config
from medagent.types import Limits, Question


def check_composition(advantage: type[AdvantageEstimator], model: Any, data: Any) -> None:
    """Raise ConfigError if critic, advantage and groups contradict each other.

    `model` and `data` hold the settings of these groups: a configuration, or the objects made of it.
    """
    name, num_samples, zero_std_groups = advantage.__name__, data.num_samples, data.zero_std_groups
    has_critic = model.critic_lora is not None or model.critic_inputs != "context"
    if advantage.needs_critic and not has_critic:
        raise ConfigError(
            f"data.advantage is {name}, which needs a critic, and model.critic_lora is null. Set model.critic_lora or "
            "model.critic_inputs, or take an advantage without a critic."
        )
    if has_critic and not advantage.needs_critic:
        raise ConfigError(
            f"data.advantage is {name}, which needs no critic, and model.critic_lora or model.critic_inputs allocates "
            "one that nothing would read. Set model.critic_lora to null and model.critic_inputs to context."
        )
    if advantage.needs_groups and num_samples < 2:
        raise ConfigError(
            f"data.advantage is {name} and data.num_samples is {num_samples}, wanted 2 or more: a rollout is compared "
            "with others of the same question. Raise data.num_samples, and lower data.num_questions to keep the batch."
        )
    if zero_std_groups != "keep" and not advantage.needs_groups:
        raise ConfigError(
            f"data.zero_std_groups is {zero_std_groups}, and data.advantage is {name}, which compares no group: equal "
            "rollouts teach it too. Leave it out, or take GroupNormalised or LeaveOneOut."
        )
    if model.critic_inputs == "evidence_and_group" and num_samples < 2:
        raise ConfigError(
            f"model.critic_inputs is evidence_and_group and data.num_samples is {num_samples}, wanted 2 or more: it "
            "weighs how a question's other rollouts ended. Raise data.num_samples, or set critic_inputs: evidence."
        )
    passes = data.num_critic_epochs
    require(has_critic or not passes, "data.num_critic_epochs", passes, "0, as there is no critic")


def check_engine(engine: Engine, *, quantise: Quantisation, overlap: bool) -> None:
    """Raise ConfigError unless the engine takes the weights and can overlap."""
    if overlap and not engine.overlaps:
        raise ConfigError(
            "data.off_policy.overlap is true, and data.engine shares the trainer's GPU by turns: give it a GPU "
            "of its own, or leave overlap out."
        )
    if quantise != "none" and not engine.takes_adapters:
        raise ConfigError(
            f"model.execution.quantise is {quantise}, and data.engine ({type(engine).__name__}) takes merged weights, "
            "which a base in 4 bits does not have. Set its weight_sync to adapter or auto."
        )


def check_protocol(base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, protocol: TurnProtocol) -> None:
    """Tell what is to be known of this tokenizer.

    Raises:
        ConfigError: the template does not fit the protocol, or the base cannot write what the protocol asks for.
    """
    written = protocol.written_turn(tokenizer, query="gout"), protocol.written_turn(tokenizer, answer="[1]")
    ids = [id_ for text in written for id_ in encode(tokenizer, [Piece(text)])]
    added = [id_ for id_ in ids if id_ in tokenizer.added_tokens_decoder]
    for id_, count in untrained_tokens(base, added).items():
        raise ConfigError(
            f"agent.protocol: the base cannot write {tokenizer.decode([id_])!r}, as {count} other tokens have its "
            "output row, which no training has touched. Set call_form of medagent.tool_protocol.ToolProtocol to json."
        )
    if note := protocol.note_on(tokenizer):
        rank_zero_info(note)


def check_environment(
    environment: Environment,
    settings: AgentSettings,
    reward: Reward,
    benchmark: object,
    retriever: object,
    val_benchmark: object,
    noisy_retrieval: NoisyRetrieval,
) -> None:
    """Raise ConfigError for settings of a run that its environment would ignore."""
    check_part("data.environment", environment, Environment)
    own_reward = as_config(reward) not in (as_config(OUTCOME), as_config(OutcomeReward()))
    given = {"benchmark": benchmark, "retriever": retriever, "val_benchmark": val_benchmark}
    unused = [name for name, part in given.items() if part] + ["reward"] * own_reward
    unused += ["noisy_retrieval"] * (noisy_retrieval != NoisyRetrieval())
    if unused:
        raise ConfigError(
            f"data.{unused[0]}: found one beside data.environment, which brings questions, passages and rewards of its "
            "own. Leave it out, or set it to null where another file gives it; validation asks data.val_size questions."
        )
    environment.check(settings)


def warn_of_tight_limits(base_model: str, limits: Limits) -> None:
    """Warn where turns are cut shorter than the turns that the base was taught, as its agent.json tells."""
    folder = Path(model_path(base_model))
    if not (folder / SPEC_FILE).exists():
        return
    taught = read_spec(folder).limits
    names = [field.name for field in fields(Limits) if getattr(limits, field.name) < getattr(taught, field.name)]
    if names:
        tight = ", ".join(f"{name} {getattr(limits, name)} (the base's own: {getattr(taught, name)})" for name in names)
        warnings.warn(
            f"data.agent.limits: found {tight}; rollouts of {base_model} will be truncated. Raise them to those in its "
            f"{SPEC_FILE}.",
            stacklevel=2,
        )


def fitting(
    questions: Sequence[Question], tokenizer: PreTrainedTokenizerBase, agent: AgentSettings, *, leave_out: bool
) -> list[Question]:
    """The questions whose prompt leaves a token to sample. Without `leave_out`, or if none fits, others are refused."""
    most = agent.limits.max_total_tokens
    long = {each.id for each in questions if len(agent.protocol.encode_prompt(tokenizer, each)) >= most}
    if not long:
        return list(questions)
    found = (
        f"data.agent.limits.max_total_tokens: found {len(long)} of {len(questions)} questions whose prompt "
        f"has {most} tokens or more: {in_words(sorted(long))}."
    )
    if not leave_out or len(long) == len(questions):
        raise ConfigError(f"{found} Raise the limit, or leave out a part with data.filter_overlong_prompts.")
    warnings.warn(f"{found} They are left out.", stacklevel=2)
    return [each for each in questions if each.id not in long]
