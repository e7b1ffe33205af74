"""Every tensor and loss of a whole run against plain Python: weights, targets, both KL modes, clipping and rates.

Turn-level critic and ratios, masked rollouts, several minibatches, micro-batches, epochs and iterations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch

from medagent.training.advantages import GAE
from medagent.training.module import AgentModule
from medagent.training.objectives import ClippedSurrogate
from medagent.training.prepare import OffPolicy
from tests.training.exact import ITERATIONS, MINIBATCHES, ExactRun, MicroBatch, Sums, run_exactly

KL, LOW, HIGH, CLIP, CAP = 0.3, 0.1, 0.15, 0.03, 1.02
GAMMA, LAM, DECAY, ENTROPY = 0.97, 0.9, 8, 0.05
RATES = {"policy": 4e-3, "critic": 3e-2}
LIMITS = {"policy": 0.02, "critic": 0.3}
STEPS = 3 * MINIBATCHES  # of an iteration; the first third is of the critic alone


class Case:
    """A run, and what it must be."""

    def __init__(self, base, folder, *, kl_mode: str, level: str, reduction: str, importance: str) -> None:
        self.kl_mode, self.level, self.reduction, self.importance = kl_mode, level, reduction, importance
        self.module: AgentModule
        self.run: ExactRun
        self.module, self.run = run_exactly(
            base,
            folder,
            model={
                "temperature": 0.7,
                "kl_coef": KL,
                "kl_mode": kl_mode,
                "entropy_coef": ENTROPY,
                "value_clip": CLIP,
                "policy_loss": ClippedSurrogate(LOW, HIGH),
                "policy_lr": RATES["policy"],
                "critic_lr": RATES["critic"],
                "lr_decay_iterations": DECAY,
                "policy_max_grad_norm": LIMITS["policy"],
                "critic_max_grad_norm": LIMITS["critic"],
            },
            data={
                "advantage": GAE(GAMMA, LAM, level),  # type: ignore[arg-type]
                "reduction": reduction,
                "truncated": "mask",
                "off_policy": OffPolicy(importance=importance, cap=CAP),  # type: ignore[arg-type]
            },
        )
        self.sums = [
            Sums(self.run.rollouts, said, level=level, gamma=GAMMA, lam=LAM) for said in self.run.said
        ]  # by iteration
        self.kl_in_reward = KL if kl_mode == "reward" else 0.0
        self.whitened = [each.whitened(self.kl_in_reward) for each in self.sums]

    def steps(self) -> dict[tuple[int, int], list[MicroBatch]]:
        found: dict[tuple[int, int], list[MicroBatch]] = {}
        for each in self.run.seen:
            found.setdefault((each.iteration, each.step), []).append(each)
        return found

    def share(self, each: MicroBatch, row: int, *, of_critic: bool) -> float:
        """The weight of a token of this rollout in its optimizer step, before what DDP divides by."""
        sums = self.sums[each.iteration]
        together = [r for part in self.steps()[each.iteration, each.step] for r in part.rows if not sums.masked[r]]
        sizes = {r: len(sums.read(r)) if of_critic else len(sums.acts[r]) for r in together}
        return 1 / (sizes[row] * len(sizes)) if self.reduction == "rollout-mean" else 1 / sum(sizes.values())


@pytest.fixture(
    scope="module",
    params=[
        ("loss", "turn", "rollout-mean", "decoupled"),
        ("reward", "turn", "token-mean", "behaviour"),
        ("reward", "token", "rollout-mean", "decoupled"),
        ("loss", "token", "token-mean", "behaviour"),
    ],
    ids="-".join,
)
def case(request, tiny_base, tmp_path_factory) -> Case:
    names = ("kl_mode", "level", "reduction", "importance")
    return Case(tiny_base, tmp_path_factory.mktemp("run"), **dict(zip(names, request.param, strict=True)))


def written_down(case: Case, each: MicroBatch) -> dict[str, Callable[[int], dict[int, float]]]:
    """Name of a tensor -> what each rollout has in it, by place."""
    sums, decoupled = case.sums[each.iteration], case.importance == "decoupled"
    said, sampler = sums.said, [rollout.rollout_logprobs for rollout in sums.rollouts]
    whitened, penalty = case.whitened[each.iteration], case.kl_in_reward

    def at_acts(value_of: Callable[[int, int], float]) -> Callable[[int], dict[int, float]]:
        return lambda row: {act.place: value_of(row, act.place) for act in sums.acts[row]}

    def truncation(row: int, place: int) -> float:
        return min(math.exp(said[row].policy[place] - sampler[row][place]), CAP) if decoupled else 1.0

    return {
        "mask_BT": at_acts(lambda row, place: 1.0),
        "rollout_logprobs_BT": at_acts(lambda row, place: sampler[row][place]),
        "reference_logprobs_BT": at_acts(lambda row, place: said[row].reference[place]),
        "old_logprobs_BT": at_acts(lambda row, place: said[row].policy[place] if decoupled else sampler[row][place]),
        "truncation_BT": at_acts(truncation),
        "values_BT": lambda row: {place: said[row].values[place] for place in sums.read(row)},
        "advantages_BT": lambda row: whitened[row],
        "returns_BT": lambda row: sums.targets(row, penalty)[1],
        "loss_weights_BT": at_acts(lambda row, place: case.share(each, row, of_critic=False)),
        "value_weights_BT": lambda row: {place: case.share(each, row, of_critic=True) for place in sums.read(row)},
    }


def dense(case: Case, each: MicroBatch, by_place: Callable[[int], dict[int, float]]) -> torch.Tensor:
    """[B, T] of a micro-batch; a masked rollout has nothing."""
    made = torch.zeros(each.batch.token_ids_BT.shape, dtype=torch.float64)
    for at, row in enumerate(each.rows):
        if not case.sums[each.iteration].masked[row]:
            for place, value in by_place(row).items():
                made[at, place] = value
    return made


def test_the_loss_sees_what_is_written_down(case: Case) -> None:
    for each in case.run.seen:
        for name, by_place in written_down(case, each).items():
            found_BT = getattr(each.batch, name).double()
            if name in ("rollout_logprobs_BT", "old_logprobs_BT"):  # as sampled, masked or not
                found_BT = found_BT * each.batch.mask_BT
            wanted_BT = dense(case, each, by_place)
            assert float((found_BT - wanted_BT).abs().max()) < 1e-4, name


def policy_loss(case: Case, each: MicroBatch) -> tuple[float, int]:
    """The policy's loss of a micro-batch, a token at a time, and how many tokens were clipped."""
    sums, total, clipped = case.sums[each.iteration], 0.0, 0
    for at, row in enumerate(each.rows):
        if sums.masked[row]:
            continue
        now = each.policy[at].tolist()
        old = sums.said[row].policy if case.importance == "decoupled" else sums.rollouts[row].rollout_logprobs
        sampler, reference = sums.rollouts[row].rollout_logprobs, sums.said[row].reference
        weight = case.share(each, row, of_critic=False)
        for act in sums.acts[row]:
            turn = [other.place for other in sums.acts[row] if other.turn == act.turn]
            ratio = math.exp(sum(now[place] - old[place] for place in turn) / len(turn))
            advantage = case.whitened[each.iteration][row][act.place]
            bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
            clipped += bounded * advantage < ratio * advantage
            factor = min(math.exp(old[act.place] - sampler[act.place]), CAP) if case.importance == "decoupled" else 1.0
            total -= ENTROPY * weight * float(each.entropy[at, act.place])
            total -= weight * factor * min(ratio * advantage, bounded * advantage)
            gap = reference[act.place] - now[act.place]
            total += (KL if case.kl_mode == "loss" else 0.0) * weight * (math.exp(gap) - gap - 1)
    return total, clipped


def test_the_policys_loss_is_the_formula(case: Case) -> None:
    clipped = 0
    for each in case.run.seen:
        assert ("policy" in each.losses) != each.batch.critic_only
        if each.batch.critic_only:
            continue
        wanted, outside = policy_loss(case, each)
        clipped += outside
        assert each.losses["policy"] == pytest.approx(wanted, rel=1e-3, abs=2e-5)
    assert clipped > 10


def test_the_critics_loss_is_the_formula_and_clips(case: Case) -> None:
    clipped = 0
    for each in case.run.seen:
        sums, total = case.sums[each.iteration], 0.0
        for at, row in enumerate(each.rows):
            if sums.masked[row]:
                continue
            returns = sums.targets(row, case.kl_in_reward)[1]
            for place in sums.read(row):
                now, before, target = float(each.values[at, place]), sums.said[row].values[place], returns[place]
                moved = before + min(max(now - before, -CLIP), CLIP)
                clipped += (moved - target) ** 2 > (now - target) ** 2
                total += case.share(each, row, of_critic=True) * max((now - target) ** 2, (moved - target) ** 2) / 2
        assert each.losses["critic"] == pytest.approx(total, rel=1e-3, abs=2e-5)
        taught_BT = dense(case, each, written_down(case, each)["value_weights_BT"])
        assert float(each.values[taught_BT == 0].abs().max()) == 0, "the critic is read nowhere else"
    assert clipped > 50


def test_the_critic_starts_at_the_mean_return_of_the_first_iteration_alone(case: Case) -> None:
    mean = sum(rollout.total_reward for rollout in case.run.rollouts) / len(case.run.rollouts)
    first, second = case.run.first_values
    assert first == pytest.approx(mean, rel=1e-5)
    assert abs(second - mean) > 1e-3


def test_what_the_critic_explains_is_read_where_it_is_taught(case: Case) -> None:
    """Over the rollouts that count, before the first step; it goes with the first step alone."""
    for each in case.run.seen:
        if (each.step, each is case.steps()[each.iteration, each.step][0]) != (0, True):
            assert each.metrics == {}
            continue
        sums = case.sums[each.iteration]
        rows = [row for row, out in enumerate(sums.masked) if not out]
        targets = [target for row in rows for target in sums.targets(row, case.kl_in_reward)[1].values()]
        values = [sums.said[row].values[place] for row in rows for place in sums.read(row)]
        errors = [target - value for target, value in zip(targets, values, strict=True)]
        wanted = 1 - statistics.pvariance(errors) / statistics.pvariance(targets)
        assert each.metrics["critic/explained_variance"] == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_each_group_has_its_own_limit_and_rate(case: Case) -> None:
    run = case.run
    assert len(run.raw) == len(run.clipped) == len(run.rates) == ITERATIONS * STEPS
    for step, (raw, clipped, rates) in enumerate(zip(run.raw, run.clipped, run.rates, strict=True)):
        for name, limit in LIMITS.items():
            alone = name == "policy" and step % STEPS < MINIBATCHES
            assert clipped[name] == (0 if alone else pytest.approx(min(raw[name], limit), rel=1e-3))
            assert rates[name] == pytest.approx(RATES[name] * (1 - step // STEPS / DECAY))
    for name, limit in LIMITS.items():
        assert max(raw[name] for raw in run.raw) > limit, f"the limit of the {name} binds"
