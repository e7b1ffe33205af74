"""Algorithms as compositions.

Each runs, off-policy modes keep their mathematics, and what does not fit together is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.training.command import train_command
from medagent.training.data import RolloutData
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.rollouts.collection import read_rollouts
from tests.training.support import arguments, make_module, numbers, stop_at


@pytest.mark.long
def test_stale_rollouts_are_of_the_policy_s_iterations_ago_and_survive_a_stop(
    train_index: Path, tmp_path: Path, monkeypatch
) -> None:
    def settings(name: str, *, overlap: bool = False) -> list[str]:
        off_policy = {"data.off_policy.staleness": 2, "data.off_policy.overlap": str(overlap).lower()}
        return arguments(tmp_path / name, train_index, epochs=4, **off_policy)

    whole = train_command(settings("whole"))
    assert [row["rollout/staleness"] for row in read_metrics(whole)] == [0, 1, 2, 2]
    stop_at(1, settings("stopped"), monkeypatch)
    assert numbers(train_command(settings("stopped"))) == numbers(whole)
    # What is sampled while the trainer updates is the same, and a stop in the middle of it loses nothing either.
    stop_at(1, settings("overlapped", overlap=True), monkeypatch)
    assert numbers(train_command(settings("overlapped", overlap=True))) == numbers(whole)
    asked = [
        rollout.question.id
        for iteration in (2, 3)
        for rollout in read_rollouts(whole / "stale_rollouts" / f"{iteration:06d}.rank0.jsonl")
    ]
    assert len(asked) == 32
    assert len(set(asked)) == 32, "no question is repeated"


def test_a_base_without_critic_allocates_none() -> None:
    alone = AgentModule(policy_lora=LoraSettings(4, 8), critic_lora=None)
    both = make_module()
    assert not alone.has_critic
    assert alone.shared_base.critic_parameters() == []
    assert not any("critic" in name or "value" in name for name, _ in alone.named_parameters() if "v_proj" not in name)
    trained = sum(p.numel() for p in alone.parameters() if p.requires_grad)
    assert trained == sum(p.numel() for p in both.shared_base.policy_parameters())
    assert [group["name"] for group in alone.configure_optimizers().param_groups] == ["policy"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.critic_lora": "null"}, "GAE, which needs a critic"),
        ({"algorithm": "rloo", "model.critic_lora": "{rank: 4}"}, "needs no critic"),
        ({"algorithm": "grpo", "data.num_samples": 1}, "2 or more"),
        ({"model.critic_lora": "null", "model.critic_inputs": "evidence_and_group"}, "and data.num_samples is 1"),
        ({"algorithm": "grpo", "data.num_samples": 2, "data.num_critic_epochs": 1}, "there is no critic"),
        ({"algorithm": "reinforce", "data.truncated": "bootstrap"}, "no value to bootstrap"),
        ({"algorithm": "reinforce", "model.value_clip": 0.2}, "value_clip"),
        ({"data.off_policy.staleness": -1}, "staleness"),
        ({"data.off_policy.cap": 0.5}, "cap"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_any_rollout(
    overrides, message, train_index: Path, tmp_path: Path, monkeypatch
) -> None:
    def never(self, *args, **kwargs):
        raise AssertionError("a rollout was collected")

    monkeypatch.setattr(RolloutData, "collect", never)
    with pytest.raises((ConfigError, SystemExit), match=message) as caught:
        train_command(arguments(tmp_path / "run", train_index, epochs=1, **overrides))
    assert caught.type is ConfigError


def test_limits_below_those_of_the_base_are_warned_of(train_index: Path, tmp_path: Path, monkeypatch) -> None:
    def reached(self, *args, **kwargs):
        raise AssertionError("a rollout was collected")

    monkeypatch.setattr(RolloutData, "collect", reached)
    tight = {"data.agent.limits.max_turn_tokens": 20}
    told = r"max_turn_tokens 20 \(the base's own: 48\); rollouts of starter"
    with pytest.warns(UserWarning, match=told), pytest.raises(AssertionError):
        train_command(arguments(tmp_path / "run", train_index, epochs=1, **tight))


def test_two_ratio_levels_at_once_are_refused(train_index: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra.yaml"
    extra.write_text("trainer:\n  callbacks+:\n    - class_path: medagent.training.callbacks.SequenceLevelSampling\n")
    with pytest.raises(ConfigError, match="TurnLevelSampling and SequenceLevelSampling"):
        train_command([*arguments(tmp_path / "run", train_index, epochs=1), "--config", str(extra)])
