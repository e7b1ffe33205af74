"""A run whose every number can be worked out by hand: committed rollouts, a tiny base, and plain Python beside it.

`Sums` computes what the loss must see, one token at a time, from the rollouts and from what the models say of each
rollout alone. It shares no code with training.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policy import Policy
from medagent.retrieval.controls import NoRetriever
from medagent.training.callbacks import TurnLevelSampling
from medagent.training.data import RolloutData
from medagent.training.experience import Experience
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule, StepCallback
from medagent.training.objectives import PolicyTerms
from medagent.training.rollouts.collection import read_rollouts
from medagent.types import Rollout, StopReason
from tests.recording import RecordingPolicy
from tests.training.golden.make import ROLLOUTS
from tests.training.support import perturb, quiet_trainer

MINIBATCHES, MICRO_BATCHES, ITERATIONS = 2, 2, 2


def exact_rollouts() -> list[Rollout]:
    """The golden rollouts with every reason to stop.

    In every fifth, the environment opened the first turn of three tokens or more.
    """
    rollouts = read_rollouts(ROLLOUTS)
    cut = itertools.cycle((StopReason.MAX_TURNS, StopReason.MAX_TOTAL_TOKENS, StopReason.MAX_TURN_TOKENS))
    for number, rollout in enumerate(rollouts):
        own = StopReason.MALFORMED if number % 4 == 1 else StopReason.ANSWERED
        rollout = replace(rollout, stop_reason=next(cut) if rollout.stop_reason.truncated else own)
        rollouts[number] = rollout
        first = rollout.turns[0]
        if number % 5 == 0 and len(first.token_ids) > 2:
            opened = replace(first, forced_prefix=1, logprobs=(0.0, *first.logprobs[1:]))
            rollouts[number] = replace(rollout, turns=(opened, *rollout.turns[1:]))
    return rollouts


class ExactData(RolloutData):
    """Serves the same rollouts in every iteration, each rank its share."""

    def policy_of(self, module: AgentModule, *, version: int) -> Policy:
        return RecordingPolicy(lambda read, turn: "")

    def collect(self, policy: Policy, *, rank: int, world_size: int, **how: object) -> list[Rollout]:
        return exact_rollouts()[rank::world_size]


@dataclass
class Said:
    """What the models say of one rollout alone, before an iteration's first step; lists are by token."""

    reference: list[float]
    policy: list[float]
    values: list[float]
    """Before each token, read by the critic alone."""


@dataclass
class MicroBatch:
    """What a micro-batch held, and what its update computed."""

    iteration: int
    step: int
    rows: list[int]
    batch: Experience
    policy: torch.Tensor | None = None
    """[B, T] the policy's log-probs in the update; none in a step of the critic alone."""
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    """By role, as they were propagated back."""


class ExactRun(StepCallback):
    """Keeps everything that the loss saw, and every step's norms and rates by group."""

    def __init__(self) -> None:
        self.rollouts = exact_rollouts()
        self.index = {tuple(rollout.token_ids): number for number, rollout in enumerate(self.rollouts)}
        self.seen: list[MicroBatch] = []
        self.said: list[list[Said]] = []
        self.first_values: list[float] = []
        self.raw: list[dict[str, float]] = []
        self.clipped: list[dict[str, float]] = []
        self.rates: list[dict[str, float]] = []
        self.coming: list[MicroBatch] = []
        self.terms: PolicyTerms | None = None

    def on_fit_start(self, trainer, pl_module) -> None:
        values, scores = pl_module.shared_base.values, pl_module.shared_base.policy_scores

        def kept_values(*given, **how):
            found = values(*given, **how)
            self.last_values = found.detach().clone()
            return found

        def kept_scores(*given, **how):
            found = scores(*given, **how)
            self.last_entropy = found.entropy_BT.detach().clone()
            return found

        pl_module.shared_base.values, pl_module.shared_base.policy_scores = kept_values, kept_scores
        trainer.optimizers[0].register_step_post_hook(lambda optimizer, *_: self.clipped.append(norms(optimizer)))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if batch_idx == 0:
            self.said.append([said_of(pl_module, rollout) for rollout in self.rollouts])
            self.first_values.append(float(pl_module.shared_base.value_head.bias.detach()))
        self.coming = [MicroBatch(trainer.current_epoch, batch_idx, self.rows_of(each), each) for each in batch.split()]
        self.seen += self.coming
        self.seen[-len(self.coming)].metrics = batch.metrics

    def rows_of(self, batch) -> list[int]:
        return [
            self.index[tuple(ids[kept].tolist())]
            for ids, kept in zip(batch.token_ids_BT, batch.attention_BT, strict=True)
        ]

    def on_policy_loss(self, module, terms) -> None:
        self.terms = terms

    def on_before_backward(self, trainer, pl_module, loss) -> None:
        now = self.coming[0]
        if self.terms is None:
            now.losses["critic"], now.values = float(loss.detach()), self.last_values
        else:
            now.losses["policy"], now.entropy = float(loss.detach()), self.last_entropy
            now.policy = self.terms.logprobs_BT.detach().clone()
        if self.terms is not None or now.batch.critic_only:  # the critic's loss comes first
            self.coming.pop(0)
        self.terms = None

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.raw.append(norms(optimizer))
        self.rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})


def norms(optimizer) -> dict[str, float]:
    """The norm of each group's gradients; 0 where there are none."""
    return {
        group["name"]: math.sqrt(sum(float(p.grad.square().sum()) for p in group["params"] if p.grad is not None))
        for group in optimizer.param_groups
    }


@torch.no_grad()
def said_of(module: AgentModule, rollout: Rollout) -> Said:
    """By transformers and peft alone, but for the values."""
    ids = torch.tensor([rollout.token_ids])
    module.shared_base.peft.set_adapter("policy")
    tempered = [module.shared_base.peft(input_ids=ids).logits[0].double() / module.temperature]
    with module.shared_base.peft.disable_adapter():
        tempered.append(module.shared_base.peft(input_ids=ids).logits[0].double() / module.temperature)
    policy, reference = (
        [0.0, *(float(row[token] - row.logsumexp(0)) for row, token in zip(logits, ids[0, 1:].tolist(), strict=False))]
        for logits in tempered
    )
    values = torch.zeros(ids.shape)
    if module.has_critic:
        everywhere = torch.ones_like(ids, dtype=torch.bool)
        everywhere[:, 0] = False
        values = type(module.shared_base).values(module.shared_base, ids, torch.ones_like(everywhere), everywhere)
    module.shared_base._activate("policy")
    return Said(reference, policy, values[0].tolist())


def run_exactly(base: Path, folder: Path, *, model: dict, data: dict) -> tuple[AgentModule, ExactRun]:
    """Two iterations, each of a pass of the critic alone and two of both, in two minibatches of two micro-batches."""
    torch.manual_seed(0)
    lora = LoraSettings(rank=4, alpha=8)
    module = AgentModule(base_model=str(base), policy_lora=lora, critic_lora=lora, **model)
    perturb(module, 0.1)
    made = ExactData(
        StarterBenchmark("train", limit_per_kind=8),
        NoRetriever(),
        num_questions=12,
        num_samples=2,
        num_epochs=2,
        num_critic_epochs=1,
        num_minibatches=MINIBATCHES,
        num_micro_batches=MICRO_BATCHES,
        **data,
    )
    watch = ExactRun()
    quiet_trainer(folder, epochs=ITERATIONS, callbacks=[TurnLevelSampling(), watch]).fit(module, datamodule=made)
    return module, watch


@dataclass
class Act:
    """An action token: its place in the rollout, and its turn."""

    place: int
    turn: int


def acts_of(rollout: Rollout) -> list[Act]:
    """The tokens that the policy sampled."""
    found, place = [], len(rollout.prompt_ids)
    for number, turn in enumerate(rollout.turns):
        found += [Act(place + at, number) for at in range(turn.forced_prefix, len(turn.token_ids))]
        place += len(turn.token_ids) + len(turn.observation_ids)
    return found


class Sums:
    """Advantages and returns of an iteration, by loops over tokens and turns."""

    def __init__(self, rollouts: list[Rollout], said: list[Said], *, level: str, gamma: float, lam: float) -> None:
        self.rollouts, self.said, self.level, self.gamma, self.lam = rollouts, said, level, gamma, lam
        self.acts = [acts_of(rollout) for rollout in rollouts]
        self.masked = [rollout.stop_reason.value.startswith("max_") for rollout in rollouts]

    def read(self, row: int) -> list[int]:
        """The places where the critic is read."""
        if self.level == "token":
            return [act.place for act in self.acts[row]]
        return list({act.turn: act.place for act in reversed(self.acts[row])}.values())[::-1]

    def rewards(self, row: int, kl_coef: float) -> dict[int, float]:
        """By place: a turn's own, the outcome, and less the penalty of each token."""
        rollout, said = self.rollouts[row], self.said[row]
        logprobs = rollout.rollout_logprobs
        earned = {act.place: -kl_coef * (logprobs[act.place] - said.reference[act.place]) for act in self.acts[row]}
        ends = {act.turn: act.place for act in self.acts[row]}
        for turn, place in ends.items():
            earned[place] += rollout.turns[turn].reward
        earned[self.acts[row][-1].place] += rollout.reward
        return earned

    def targets(self, row: int, kl_coef: float) -> tuple[dict[int, float], dict[int, float]]:
        """By place: the advantage of each action token before whitening, and the critic's target where it is read."""
        earned, places = self.rewards(row, kl_coef), self.read(row)
        values = [self.said[row].values[place] for place in places]
        bounds = [*places[1:], math.inf]
        paid = [
            sum(reward for at, reward in earned.items() if place <= at < bound)
            for place, bound in zip(places, bounds, strict=True)
        ]
        running, following, advantages = 0.0, 0.0, []
        for value, reward in zip(reversed(values), reversed(paid), strict=True):
            running = reward + self.gamma * following - value + self.gamma * self.lam * running
            following = value
            advantages.append(running)
        advantages.reverse()
        by_token = {
            act.place: next(a for a, bound in zip(advantages, bounds, strict=True) if act.place < bound)
            for act in self.acts[row]
        }
        return by_token, {p: a + v for p, a, v in zip(places, advantages, values, strict=True)}

    def whitened(self, kl_coef: float) -> list[dict[int, float]]:
        """The advantages of all rollouts, with mean 0 and variance 1 over the action tokens that count."""
        plain = [self.targets(row, kl_coef)[0] for row in range(len(self.rollouts))]
        counted = [a for row, own in enumerate(plain) if not self.masked[row] for a in own.values()]
        mean = sum(counted) / len(counted)
        scale = math.sqrt(sum((a - mean) ** 2 for a in counted) / len(counted))
        return [{place: (a - mean) / scale for place, a in own.items()} for own in plain]
