"""Training the model behind an agent that is not ours: one whose dialogues fork, and loops of other projects."""

from __future__ import annotations

import pytest

from medagent.environment import AgentSettings
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.training.advantages import GAE
from medagent.training.data import RolloutData
from medagent.training.environments import Harness
from medagent.training.module import StepCallback
from medagent.training.prepare import OffPolicy
from studies.starter_base.lessons import STARTER_LIMITS
from tests.training.environments.foreign import StarterTools
from tests.training.support import make_module, quiet_trainer


class Kept(StepCallback):
    """Keeps the rollouts of each iteration, and the largest gap of the trainer's log-probs to the sampler's."""

    def __init__(self) -> None:
        self.rollouts, self.gaps = [], []

    def on_train_epoch_end(self, trainer, module) -> None:
        self.rollouts.append(trainer.datamodule.rollouts)
        self.gaps.append(float(trainer.callback_metrics["rollout/logprob_gap_max"]))

    def rewards(self) -> list[float]:
        return [sum(each.reward for each in some) / len(some) for some in self.rollouts]


def trained(tmp_path, play: str, *, epochs: int, num_questions: int, lr: float = 2e-3) -> Kept:
    kept, module = Kept(), make_module(policy_lr=lr, critic_lr=1e-3)
    data = RolloutData(
        environment=Harness(StarterBenchmark("train"), play),
        agent=AgentSettings(StarterTools(), STARTER_LIMITS),
        advantage=GAE(level="turn"),
        off_policy=OffPolicy(importance="decoupled"),
        num_questions=num_questions,
        num_minibatches=2,
        num_micro_batches=2,
        reduction="token-mean",
    )
    quiet_trainer(tmp_path, epochs=epochs, callbacks=[kept]).fit(module, datamodule=data)
    return kept


def test_each_fork_of_a_rollout_is_trained_on_in_a_context_of_its_own(tmp_path):
    kept = trained(tmp_path, "tests.training.environments.support.asks_two_dialogues", epochs=1, num_questions=8)
    (rollouts,) = kept.rollouts
    assert [len(each.turns) for each in rollouts] == [2] * 8
    assert all(each.turns[1].context_ids == each.prompt_ids for each in rollouts)
    assert kept.gaps[0] < 1e-4  # the trainer's log-probs are the sampler's


@pytest.mark.long
@pytest.mark.parametrize("project", ["pydantic_ai", "smolagents"])
def test_the_loop_of_another_project_earns_more_after_training(tmp_path, project):
    pytest.importorskip(project)
    kept = trained(tmp_path, f"tests.training.environments.foreign.{project}", epochs=12, num_questions=96)
    rewards = kept.rewards()
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.3
    assert max(kept.gaps) < 1e-3
