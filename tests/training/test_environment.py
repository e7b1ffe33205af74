"""An environment takes the place of benchmark, retriever and reward, in training, validation and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from medagent.agent import Agent
from medagent.agent_spec import read_spec
from medagent.environment import AgentSettings, Environment
from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.evaluator import evaluate
from medagent.evaluation.grading.grade import grade
from medagent.retrieval.controls import NoRetriever
from medagent.training.advantages import GAE, GroupNormalised
from medagent.training.callbacks import AgentExport
from medagent.training.data import RolloutData
from medagent.training.prepare import prepare
from medagent.training.rewards import F1
from medagent.training.rollouts.questions import NoisyRetrieval
from medagent.types import Question, Rollout, StopReason, Turn
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL
from tests.training.support import make_module, quiet_trainer

ONE_TURN = AgentSettings(STARTER_PROTOCOL, replace(STARTER_LIMITS, max_turns=1))
FAILS = "q1"


@dataclass
class SumAgent(Agent):
    """Pays a rollout by the sum of its tokens and its number; one question's environment fails."""

    async def _roll_out(self, job, session, batcher, on_turn=None):
        rollout = await super()._roll_out(job, session, batcher, on_turn)
        if job.question.id == FAILS:
            return replace(rollout, stop_reason=StopReason.ERROR, error="the simulator died")
        return rollout.graded(paid(rollout), success=paid(rollout) > 0.5)


def paid(rollout: Rollout) -> float:
    return (sum(rollout.turns[0].token_ids) + int(rollout.question.id[1:])) % 7 / 6


class Sums(Environment):
    def __init__(self, size: int = 6) -> None:
        self.size = size

    def questions(self):
        return [Question(f"q{number}", f"Write something about {number}.") for number in range(self.size)]

    def agent(self, policy, settings):
        return SumAgent(policy, NoRetriever(), settings.protocol, settings.limits)


def data_of(**settings) -> RolloutData:
    given = {"num_questions": 4, "num_minibatches": 2, "num_micro_batches": 1, "agent": ONE_TURN, **settings}
    return RolloutData(environment=Sums(), **given)


@pytest.mark.filterwarnings("ignore:data.agent.limits")
def test_a_run_in_an_environment_trains_validates_and_exports_its_agent(tmp_path: Path, monkeypatch) -> None:
    rows = []
    monkeypatch.setattr("medagent.training.validation.log_at_once", lambda trainer, module, row: rows.append(row))
    data, module = data_of(val_size=2), make_module(policy_lr=1e-2)
    before = torch.cat([each.detach().flatten().clone() for each in module.shared_base.policy_parameters()])
    quiet_trainer(tmp_path, epochs=1, callbacks=[AgentExport()], num_sanity_val_steps=0).fit(module, datamodule=data)
    after = torch.cat([each.detach().flatten() for each in module.shared_base.policy_parameters()])
    assert not torch.equal(before, after)
    assert [each.id for each in data.val_questions] == ["q4", "q5"]
    assert {each.question.id for each in data.rollouts} == {"q0", "q1", "q2", "q3"}
    ended = [each for each in data.rollouts if each.question.id != FAILS]
    assert [each.reward for each in ended] == [paid(each) for each in ended]
    (row,) = rows
    assert {0, 1} >= {2 * row["validation/accuracy"] % 1}
    assert 12 * row["validation/reward"] == pytest.approx(round(12 * row["validation/reward"]))
    spec = read_spec(tmp_path / "agent")
    assert (spec.retriever, spec.limits.max_turns) == (None, 1)


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("benchmark", {"benchmark": Sums()}),
        ("retriever", {"retriever": NoRetriever()}),
        ("val_benchmark", {"val_benchmark": Sums()}),
        ("reward", {"reward": F1()}),
        ("noisy_retrieval", {"noisy_retrieval": NoisyRetrieval(injected=0.5)}),
        ("agent.top_k", {"agent": replace(ONE_TURN, top_k=7)}),
    ],
)
def test_settings_that_an_environment_would_ignore_are_refused(setting: str, given) -> None:
    with pytest.raises(ConfigError, match=setting):
        data_of(**given)


def test_a_run_without_benchmark_and_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="data.benchmark"):
        RolloutData(retriever=NoRetriever())


def finished(question: str, sample: int, reward: float, stop: StopReason = StopReason.ANSWERED) -> Rollout:
    turn = Turn((7, 8), (-1.0, -2.0), "", answer="x")
    return Rollout(Question(question, ""), (5, 6), (turn,), stop, sample=sample, reward=reward)


@pytest.mark.parametrize("estimator", [GAE(), GroupNormalised(divide=False)])
def test_a_rollout_whose_environment_failed_has_no_loss_and_moves_no_baseline(estimator) -> None:
    ended = [finished("q", 0, 1.0), finished("q", 1, 0.0)]
    failed = finished("q", 2, 0.0, StopReason.ERROR)
    module = make_module()
    found = prepare(module, [*ended, failed], estimator=estimator, reduce=lambda each: each, num_samples=3)
    alone = prepare(module, ended, estimator=estimator, reduce=lambda each: each, num_samples=2)
    assert found.mask_BT.sum(dim=1).tolist() == [2, 2, 0]
    torch.testing.assert_close(found.advantages_BT[:2], alone.advantages_BT)
    assert found.loss_weights_BT[2].sum() == 0


def test_without_a_gold_answer_the_environment_decides_what_is_right() -> None:
    rollout = finished("q", 0, 1.0)
    assert [grade(replace(rollout, success=each)).correct for each in (True, False)] == [True, False]
    gold = replace(rollout, question=Question("q", "", answer="other"), success=True)
    assert not grade(gold).correct


def test_an_agent_is_evaluated_in_an_environment_by_its_class(starter, tmp_path: Path) -> None:
    from medagent.policies.huggingface import HFPolicy

    agent = Agent(HFPolicy(*starter), NoRetriever(), STARTER_PROTOCOL, ONE_TURN.limits)
    source = BenchmarkSource(f"{__name__}.Sums", benchmark_args={"size": 3})
    found = evaluate(agent, source, out=tmp_path / "sums")
    right = [each.rollout.success for each in found.predictions]
    summary = next(iter(found.reports.values())).summary
    assert (summary.errors, summary.overall.n) == (1, 3)
    assert summary.overall.accuracy == pytest.approx(sum(right) / 3)
    again = evaluate(agent, source, limits={"max_turns": 1})
    assert [each.rollout.success for each in again.predictions] == right
    with pytest.raises(InputError, match="mode search alone"):
        evaluate(agent, source, modes="closed_book")
