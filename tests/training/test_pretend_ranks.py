"""Several ranks learn from their rollouts together what one would learn from all of them.

The ranks are threads (`tests.training.pretend`). The long tests run the same in processes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.controls import NoRetriever
from medagent.training.advantages import GAE, AdvantageEstimator, BatchBaseline
from medagent.training.callbacks import ClippingBiasCorrection
from medagent.training.data import _Iteration
from medagent.training.experience import Experience, loss_weights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from tests.training.exact import ExactData, exact_rollouts
from tests.training.pretend import PretendRanks
from tests.training.support import make_module, perturb

RANKS, MINIBATCHES, MICRO_BATCHES = 3, 2, 2


def make(base: Path, *, critic: bool) -> AgentModule:
    torch.manual_seed(0)
    lora = LoraSettings(rank=2, alpha=4)
    module = AgentModule(base_model=str(base), policy_lora=lora, critic_lora=lora if critic else None)
    perturb(module, 0.1)
    return module


def dealt(
    base: Path, ranks: int, *, advantage: AdvantageEstimator, reduction: str
) -> tuple[list[list[Experience]], list[AgentModule]]:
    """The optimizer steps that each rank makes in an iteration, and its module afterwards."""
    pretend = PretendRanks(ranks)
    modules = [make(base, critic=advantage.needs_critic) for _ in range(ranks)]  # loading is not safe in threads

    def work(rank: int) -> list[Experience]:
        data = ExactData(
            StarterBenchmark("train", limit_per_kind=8),
            NoRetriever(),
            num_questions=24,
            num_minibatches=MINIBATCHES,
            num_micro_batches=MICRO_BATCHES,
            advantage=advantage,
            truncated="mask",
            reduction=reduction,  # type: ignore[arg-type]
        )
        return list(_Iteration(data, pretend.trainer(rank, modules[rank])))

    return pretend.run(work), modules


CASES = [
    (GAE(level="turn"), "rollout-mean"),
    (GAE(level="turn"), "token-mean"),
    (BatchBaseline(whiten=False), "token-mean"),
    (BatchBaseline(), "token-mean"),
]


@pytest.mark.parametrize(("advantage", "reduction"), CASES)
def test_weights_and_advantages_are_those_of_all_ranks(tiny_base: Path, advantage, reduction: str) -> None:
    several, modules = dealt(tiny_base, RANKS, advantage=advantage, reduction=reduction)
    (alone,), (module,) = dealt(tiny_base, 1, advantage=advantage, reduction=reduction)
    lone = by_rollout(alone)
    together: dict[tuple[int, ...], torch.Tensor] = {}
    for batches in several:
        own = by_rollout(batches)
        assert not own.keys() & together.keys(), "no two ranks have one rollout"
        together |= own
    assert together.keys() == lone.keys()
    for key, wanted in lone.items():
        torch.testing.assert_close(together[key], wanted, rtol=1e-4, atol=1e-5)
    for name in ("loss_weights_BT", "value_weights_BT"):
        for step in range(MINIBATCHES):
            parts = [batches[step] for batches in several]
            total = sum(float(getattr(part, name).sum()) for part in parts) / RANKS
            assert total == pytest.approx(float(name == "loss_weights_BT" or advantage.needs_critic), rel=1e-4)
            if reduction == "token-mean" and name == "loss_weights_BT":
                assert len({round(float(w), 6) for part in parts for w in part.loss_weights_BT[part.mask_BT]}) == 1
    if advantage.needs_critic:
        biases = [float(each.shared_base.value_head.bias.detach()) for each in (*modules, module)]
        assert max(biases) - min(biases) < 1e-6, "every rank's critic starts at the same mean return"
        rollouts = exact_rollouts()
        assert biases[0] == pytest.approx(sum(r.total_reward for r in rollouts) / len(rollouts), rel=1e-5)


def by_rollout(batches: list[Experience]) -> dict[tuple[int, ...], torch.Tensor]:
    """Each rollout's advantages and returns, by its tokens."""
    found = {}
    for batch in batches:
        for row, kept in enumerate(batch.attention_BT):
            key = tuple(batch.token_ids_BT[row][kept].tolist())
            assert key not in found, "one pass deals a rollout once"
            found[key] = torch.stack([batch.advantages_BT[row][kept], batch.returns_BT[row][kept]])
    return found


@pytest.fixture(scope="module")
def modules() -> list[AgentModule]:
    """One per rank, all alike."""
    made = [make_module() for _ in range(RANKS)]
    for module in made:
        perturb(module)
    return made


class Step:
    """A step's correction, as one rank computes it from its rows."""

    def __init__(self, modules: list[AgentModule], experience: Experience, settings: dict, ranks: int) -> None:
        self.experience, self.settings, self.ranks = experience, settings, ranks
        self.pretend = PretendRanks(ranks)
        self.modules = modules

    def results(self) -> list[dict[str, float]]:
        return self.pretend.run(self.of)

    def of(self, rank: int) -> dict[str, float]:
        module = self.modules[rank]
        weights = loss_weights(
            self.experience.mask_BT, reduction="rollout-mean", num_tokens=0, num_rollouts=16, factor=float(self.ranks)
        )
        # Uneven shares: the first rank has far more than the last.
        bounds = [0, 9, 13, 16] if self.ranks > 1 else [0, 16]
        part = replace(self.experience, loss_weights_BT=weights).rows(list(range(bounds[rank], bounds[rank + 1])))
        trainer = self.pretend.trainer(rank, module)
        module._trainer = trainer
        callback = ClippingBiasCorrection(**self.settings)
        module._step_callbacks = [callback]
        module._policy_loss(part)
        logged: dict[str, float] = {}
        module.log_dict = logged.update  # type: ignore[method-assign]
        policy = {"lr": 1.0, "params": []}
        callback.on_finite_gradient(module, SimpleNamespace(param_groups=[policy]))
        return {**logged, "rate": policy["lr"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"space": "logits"},
        {"space": "parameters"},
        {"space": "logits", "normaliser": "triggered", "threshold": 1e-3},
        {"space": "parameters", "normaliser": "triggered", "threshold": 0.1},
        {"applied_to": "rollouts_and_step"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_correction_is_that_of_all_ranks(modules: list[AgentModule], experience, settings: dict) -> None:
    (wanted,) = Step(modules, experience, settings, 1).results()
    assert 0.01 < wanted["policy/clip_bias_scale"] < 0.99
    assert wanted["policy/clip_bias_norm"] > 0
    for found in Step(modules, experience, settings, RANKS).results():
        assert found == pytest.approx(wanted, rel=1e-3)
