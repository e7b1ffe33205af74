"""Advantages that compare rollouts, against plain Python: groups by question and block of samples, some masked."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policy import Policy
from medagent.retrieval.controls import NoRetriever
from medagent.training.advantages import AdvantageEstimator, BatchBaseline, GroupNormalised, LeaveOneOut
from medagent.training.data import _Iteration
from medagent.training.experience import Experience
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.prepare import OffPolicy
from medagent.types import Rollout
from tests.training.exact import ExactData, acts_of, exact_rollouts, said_of
from tests.training.pretend import PretendRanks
from tests.training.support import perturb

KL, SAMPLES = 0.2, 2


@pytest.fixture(scope="module")
def module(tiny_base: Path) -> AgentModule:
    torch.manual_seed(0)
    made = AgentModule(base_model=str(tiny_base), policy_lora=LoraSettings(2, 4), critic_lora=None, temperature=0.7)
    perturb(made, 0.1)
    return made


def data_of(kind: type[ExactData] = ExactData, **settings) -> ExactData:
    return kind(
        StarterBenchmark("train", limit_per_kind=8),
        NoRetriever(),
        num_questions=12,
        num_samples=SAMPLES,
        num_minibatches=1,
        num_micro_batches=1,
        **settings,
    )


@pytest.fixture(scope="module")
def gaps(module: AgentModule) -> list[float]:
    """Each rollout's log-ratio to the reference, summed over its action tokens."""
    found = []
    for rollout in exact_rollouts():
        reference = said_of(module, rollout).reference
        found.append(sum(rollout.rollout_logprobs[act.place] - reference[act.place] for act in acts_of(rollout)))
    return found


def earned(rollout: Rollout) -> float:
    return rollout.reward + sum(turn.reward for turn in rollout.turns)


def by_hand(estimator: AdvantageEstimator, outcomes: list[float], rollouts: list[Rollout]) -> list[float]:
    """One advantage per rollout."""
    found = []
    for number, own in enumerate(outcomes):
        block = (rollouts[number].question.id, rollouts[number].sample // SAMPLES)
        group = [
            outcome
            for outcome, rollout in zip(outcomes, rollouts, strict=True)
            if isinstance(estimator, BatchBaseline) or (rollout.question.id, rollout.sample // SAMPLES) == block
        ]
        mean = sum(group) / len(group)
        if isinstance(estimator, LeaveOneOut):
            found.append(own - (sum(group) - own) / (len(group) - 1))
        elif isinstance(estimator, GroupNormalised) and estimator.divide:
            scale = math.sqrt(sum((other - mean) ** 2 for other in group) / (len(group) - 1))
            found.append((own - mean) / (scale + 1e-6))
        elif isinstance(estimator, BatchBaseline) and estimator.whiten:
            found.append((own - mean) / math.sqrt(sum((other - mean) ** 2 for other in group) / len(group)))
        else:
            found.append(own - mean)
    return found


@pytest.mark.parametrize("kl_mode", ["loss", "reward"])
@pytest.mark.parametrize("truncated", ["terminal", "mask"])
@pytest.mark.parametrize(
    "estimator",
    [GroupNormalised(), GroupNormalised(divide=False), LeaveOneOut(), BatchBaseline(whiten=False), BatchBaseline()],
    ids=["grpo", "dr-grpo", "rloo", "reinforce", "reinforce++"],
)
def test_an_advantage_is_its_formula(
    module: AgentModule, gaps: list[float], estimator, truncated: str, kl_mode: str
) -> None:
    """A masked rollout has no loss, and its reward still counts in its group."""
    module.kl_mode, module.kl_coef = kl_mode, KL  # type: ignore[assignment]
    data = data_of(advantage=estimator, truncated=truncated)
    (batches,) = PretendRanks(1).run(lambda rank: list(_Iteration(data, PretendRanks(1).trainer(rank, module))))
    rollouts = exact_rollouts()
    masked = [truncated == "mask" and rollout.stop_reason.value.startswith("max_") for rollout in rollouts]
    outcomes = [
        earned(rollout) - (KL * gap if kl_mode == "reward" and not out else 0.0)
        for rollout, gap, out in zip(rollouts, gaps, masked, strict=True)
    ]
    wanted = by_hand(estimator, outcomes, rollouts)
    assert max(wanted) - min(wanted) > 0.5
    index = {tuple(rollout.token_ids): number for number, rollout in enumerate(rollouts)}
    (batch,) = batches
    for row, kept in enumerate(batch.attention_BT):
        number = index[tuple(batch.token_ids_BT[row][kept].tolist())]
        places = [] if masked[number] else [act.place for act in acts_of(rollouts[number])]
        line = torch.zeros(batch.token_ids_BT.shape[1])
        line[places] = wanted[number]
        torch.testing.assert_close(batch.advantages_BT[row], line, rtol=1e-3, atol=1e-3)
        assert float(batch.loss_weights_BT[row].sum() > 0) == float(not masked[number])
    assert float(batch.loss_weights_BT.sum()) == pytest.approx(1.0, rel=1e-5)
    assert not batch.value_weights_BT.any()


class Asked(ExactData):
    """Keeps which iteration's questions were asked of weights of which version."""

    def __init__(self, *given, **settings) -> None:
        super().__init__(*given, **settings)
        self.asked: list[tuple[int, int, float]] = []
        self.synced: list[int] = []

    def policy_of(self, module: AgentModule, *, version: int) -> Policy:
        self.synced.append(version)
        return super().policy_of(module, version=version)

    def collect(self, policy: Policy, **how) -> list[Rollout]:  # type: ignore[override]
        self.asked.append((how["iteration"], how["version"], how["temperature"]))
        return [replace(rollout, policy_version=how["version"]) for rollout in super().collect(policy, **how)]


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_stale_rollouts_carry_the_version_that_sampled_them(
    module: AgentModule, tmp_path: Path, staleness: int
) -> None:
    """Iteration i asks its own questions, of the weights of iteration i - s; the first of the start's."""
    data = data_of(Asked, advantage=BatchBaseline(), off_policy=OffPolicy(staleness=staleness))
    assert isinstance(data, Asked)
    behind = []
    for iteration in range(5):
        trainer = PretendRanks(1).trainer(
            0, module, current_epoch=iteration, max_epochs=5, default_root_dir=str(tmp_path)
        )
        first: Experience = next(iter(_Iteration(data, trainer)))
        behind.append(first.metrics["rollout/staleness"])
    assert behind == [min(iteration, staleness) for iteration in range(5)]
    assert data.synced == list(range(5))
    assert sorted(data.asked) == [(each, max(0, each - staleness), 0.7) for each in range(5)]


def test_minibatches_are_dealt_anew_in_every_pass_iteration_and_run(module: AgentModule) -> None:
    """Equal calls deal alike."""
    index = {tuple(rollout.token_ids): number for number, rollout in enumerate(exact_rollouts())}

    def dealt(seed: int, iteration: int) -> list[frozenset[int]]:
        """The first of two minibatches of each of three passes."""
        data = data_of(advantage=BatchBaseline(), seed=seed, num_epochs=3)
        data.num_minibatches = 2
        batches = list(_Iteration(data, PretendRanks(1).trainer(0, module, current_epoch=iteration)))
        return [
            frozenset(
                index[tuple(ids[kept].tolist())] for ids, kept in zip(b.token_ids_BT, b.attention_BT, strict=True)
            )
            for b in batches[::2]
        ]

    found = {(seed, iteration): dealt(seed, iteration) for seed in (0, 1) for iteration in (0, 1)}
    passes = [each for three in found.values() for each in three]
    assert len(set(passes)) == len(passes) == 12
    assert all(len(each) == 12 for each in passes)
    assert dealt(1, 1) == found[1, 1]
