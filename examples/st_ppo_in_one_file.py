"""ST-PPO (arXiv 2511.20718) in one file of plain PyTorch, read from top to bottom.

    python examples/st_ppo_in_one_file.py --iterations 2

The packaged starter policy learns to search the starter corpus. The weights are bit for bit those of

    medagent train --config configs/experiments/starter.yaml --config configs/algorithms/st_ppo.yaml

as tests/examples/test_one_file.py shows. There is no trainer, no module hook and no callback. It imports the
agent's loop, the model with its adapters, and pure functions over tensors.

Shapes: B rollouts, T tokens. Position t holds what belongs to token t. An action token is one that the policy sampled;
`mask_BT` is True there, and `turn_ids_BT` names its turn. Elsewhere weights and advantages are 0 and turn ids -1.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from medagent.agent import Agent, Job
from medagent.evaluation.metrics import summarize
from medagent.evaluation.run import run_benchmark
from medagent.models.causal_lm import load_causal_lm
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import UnreliableRetriever
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.adapters import SharedBase
from medagent.training.advantages import gae, moments, whiten
from medagent.training.batching import split_by_length, split_minibatches
from medagent.training.experience import tensorize, turn_starts
from medagent.training.lora import LoraSettings
from medagent.training.objectives import logit_space_squares, reference_kl, segment_mean, segment_sum
from medagent.training.rewards import OutcomeReward
from medagent.types import Limits, Question, Rollout, rollout_seed

PROTOCOL = TagProtocol(instructions="", options_style="letter_last")
LIMITS = Limits(max_turns=4, max_turn_tokens=48, max_observation_tokens=160, max_total_tokens=512)


@dataclass(frozen=True)
class Settings:
    """The values of configs/experiments/starter.yaml and configs/algorithms/st_ppo.yaml."""

    seed: int = 0
    num_questions: int = 192  # per iteration, one rollout of each
    num_minibatches: int = 2  # optimizer steps per iteration
    num_micro_batches: int = 4  # backward passes per optimizer step
    policy_lr: float = 2e-3
    critic_lr: float = 1e-3
    lr_decay_iterations: int = 20  # both rates fall linearly to zero over so many
    clip: float = 0.05  # trust region of a turn's weight: 1 - clip to 1 + clip
    correction_threshold: float = 0.1  # ||C|| / ||g|| at which the policy's step is halved
    kl_coef: float = 0.02
    max_grad_norm: float = 1.0  # of the policy, and of the critic
    temperature: float = 1.0  # every log-prob is taken at it


class Batch(NamedTuple):
    """Rollouts as tensors, all [B, T] and all constants of the loss."""

    token_ids_BT: Tensor
    attention_BT: Tensor
    mask_BT: Tensor
    turn_ids_BT: Tensor
    value_mask_BT: Tensor  # where the critic is read: before the first action token of each turn
    old_logprobs_BT: Tensor
    reference_logprobs_BT: Tensor
    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor

    def rows(self, rows: list[int]) -> Batch:
        """Some of the rollouts, cut to the longest of them."""
        width = int(self.attention_BT[rows].sum(dim=1).max())
        return Batch(*(tensor[rows, :width] for tensor in self))


def jobs_of(questions: Sequence[Question], iteration: int, settings: Settings) -> list[Job]:
    """The next slice of an endless sequence of seeded permutations; every rollout has a seed of its own."""
    jobs: list[Job] = []
    asked: Counter[str] = Counter()  # a question that comes twice in an iteration is sampled with another seed
    for position in range(iteration * settings.num_questions, (iteration + 1) * settings.num_questions):
        epoch, offset = divmod(position, len(questions))
        order = list(range(len(questions)))
        random.Random(f"{settings.seed}:{epoch}").shuffle(order)
        question = questions[order[offset]]
        sample = asked[question.id]
        seed = rollout_seed(settings.seed, iteration=iteration, question_id=question.id, sample=sample)
        jobs.append(Job(question, seed=seed, temperature=settings.temperature, sample=sample))
        asked[question.id] += 1
    return jobs


@torch.no_grad()
def prepare(shared_base: SharedBase, rollouts: list[Rollout], *, pad_id: int, settings: Settings) -> Batch:
    """Everything that the loss takes as a constant, computed once per iteration with the weights that sampled."""
    tensors = tensorize(rollouts, pad_id=pad_id)
    ids_BT, attention_BT, mask_BT = tensors.token_ids_BT, tensors.attention_BT, tensors.mask_BT
    turns_BT = tensors.turn_ids_BT
    value_mask_BT = turn_starts(mask_BT, turns_BT)

    # Reference log-probs: the same base with its adapters off. Values: the critic's adapter and head.
    # A batch's shape can change its last bits, so the rows are grouped as the trainer groups them.
    reference_BT, values_BT = torch.zeros(ids_BT.shape), torch.zeros(ids_BT.shape)
    lengths = attention_BT.sum(dim=1).tolist()
    for rows in split_by_length(range(len(rollouts)), lengths, parts=max(1, len(rollouts) // 32)):
        width = max(lengths[row] for row in rows)
        ids, attention, mask, read = (each[rows, :width] for each in (ids_BT, attention_BT, mask_BT, value_mask_BT))
        reference_BT[rows, :width] = shared_base.reference_logprobs(
            ids, attention, mask, temperature=settings.temperature
        )
        values_BT[rows, :width] = shared_base.values(ids, attention, read)

    # Generalised advantage estimation (arXiv 1506.02438) with one step per turn: a turn earns what its tokens earn,
    # the next state is that before the next turn, and all tokens of a turn share its advantage.
    rewards_BT = torch.where(value_mask_BT, segment_sum(tensors.rewards_BT, turns_BT), 0.0)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, value_mask_BT, gamma=1.0, lam=1.0)
    advantages_BT = segment_sum(advantages_BT, turns_BT)
    advantages_BT = whiten(advantages_BT, mask_BT, moments(advantages_BT, mask_BT))
    # pi_old is the policy that sampled: its own log-probs are the denominator of every weight.
    old_BT = tensors.rollout_logprobs_BT
    return Batch(
        ids_BT,
        attention_BT,
        mask_BT,
        turns_BT,
        value_mask_BT,
        old_BT,
        reference_BT,
        values_BT,
        advantages_BT,
        returns_BT,
    )


def train(settings: Settings, retriever: Retriever, *, iterations: int) -> tuple[SharedBase, list[dict[str, float]]]:
    """The trained adapters, and one row of figures per iteration, which is printed too."""
    # One base, frozen. Two LoRA adapters on it (policy, critic), and a linear value head that starts at zero.
    torch.manual_seed(settings.seed)
    base, tokenizer = load_causal_lm("starter")
    base.requires_grad_(False)
    shared_base = SharedBase(base, policy=LoraSettings(), critic=LoraSettings())
    policy_parameters, critic_parameters = shared_base.policy_parameters(), shared_base.critic_parameters()
    optimizer = AdamW([{"params": policy_parameters}, {"params": critic_parameters}], weight_decay=0.0)

    # Sampling has a copy of the base, into which the policy's adapter is merged before every iteration.
    sampler = HFPolicy(load_causal_lm("starter")[0].requires_grad_(False), tokenizer)
    agent = Agent(sampler, retriever, PROTOCOL, LIMITS, top_k=2)
    reward = OutcomeReward(well_formed=0.2)
    questions = World.load().questions("train")
    history: list[dict[str, float]] = []

    for iteration in range(iterations):
        # 1. Rollouts: think, search, read, answer; then each is graded.
        sampler.load_weights(shared_base.merged_policy())
        rollouts = [reward(rollout) for rollout in agent.run_all(jobs_of(questions, iteration, settings))]
        if iteration == 0:  # the untrained critic begins at the mean return
            total, count = torch.tensor([sum(r.total_reward for r in rollouts), float(len(rollouts))])
            shared_base.start_values_at(float(total / count))

        # 2. Old and reference log-probs, values, advantages, returns.
        batch = prepare(shared_base, rollouts, pad_id=int(tokenizer.pad_token_id), settings=settings)
        lengths = batch.attention_BT.sum(dim=1).tolist()

        # 3. One pass over the rollouts, in minibatches. From the second step on the policy is no longer pi_old.
        decay = max(0.0, 1 - iteration / settings.lr_decay_iterations)
        order = rollout_seed(settings.seed, iteration=iteration, question_id="minibatches", sample=0)
        num_clipped, scales = 0, []
        for minibatch in split_minibatches(len(rollouts), num_minibatches=settings.num_minibatches, seed=order):
            # Every action token of the minibatch weighs the same ("token-mean"), in whatever micro-batch it is.
            token_weight = 1 / int(batch.mask_BT[minibatch].sum())
            read_weight = 1 / int(batch.value_mask_BT[minibatch].sum())
            squares = torch.zeros(2, dtype=torch.float64)  # ||g||^2 and ||C||^2
            optimizer.zero_grad()
            for rows in split_by_length(minibatch, lengths, parts=settings.num_micro_batches):
                part = batch.rows(rows)
                mask_BT, advantages_BT = part.mask_BT, part.advantages_BT

                # Critic loss: half the squared error. Its graph is gone before that of the policy is built.
                values_BT = shared_base.values(part.token_ids_BT, part.attention_BT, part.value_mask_BT)
                errors_BT = (values_BT - part.returns_BT).square()
                (0.5 * (part.value_mask_BT * read_weight * errors_BT).sum()).backward()

                # Turn-level importance weight (Eq. 4): the geometric mean of the ratios of a turn's action tokens.
                # Its gradient runs through every token of the turn (Lemma 4.1).
                scores = shared_base.policy_scores(
                    part.token_ids_BT, part.attention_BT, mask_BT, temperature=settings.temperature
                )
                gap_BT = torch.where(mask_BT, scores.logprobs_BT - part.old_logprobs_BT, 0.0)
                weight_BT = segment_mean(gap_BT, part.turn_ids_BT).clamp(-20, 20).exp()

                # Clipped surrogate J, to maximise.
                low, high = 1 - settings.clip, 1 + settings.clip
                unclipped_BT = weight_BT * advantages_BT
                term_BT = torch.minimum(unclipped_BT, weight_BT.clamp(low, high) * advantages_BT)
                surrogate = (mask_BT * token_weight * term_BT).sum()

                # Clipping bias C (Lemma 4.2): the gradient of the terms that clipping left without one.
                too_high_BT = (advantages_BT > 0) & (weight_BT > high)
                too_low_BT = (advantages_BT < 0) & (weight_BT < low)
                outside_BT = mask_BT & (too_high_BT | too_low_BT)
                dropped = (mask_BT * token_weight * torch.where(outside_BT, unclipped_BT, 0.0)).sum()
                num_clipped += int(outside_BT.sum())

                # ||g|| and ||C|| over the logits, in closed form: no second backward pass through the model.
                probability_BT = scores.logprobs_BT.detach().exp()
                norms = []
                for scalar in (surrogate, dropped):
                    (slope_BT,) = torch.autograd.grad(scalar, scores.logprobs_BT, retain_graph=True)
                    norms.append(logit_space_squares(slope_BT, probability_BT, scores.collision_BT))
                squares += torch.stack(norms).sum(dim=1).double()

                # Policy loss: -J + KL to the frozen base (the k3 estimator).
                kl_BT = reference_kl(scores.logprobs_BT, part.reference_logprobs_BT, mask_BT)
                (-surrogate + settings.kl_coef * (mask_BT * token_weight * kl_BT).sum()).backward()

            # Clipping-bias correction. The paper divides the gradient by ||C||, which AdamW would take away again.
            # Here the step is shortened, by a scale without a unit.
            gradient_norm, bias_norm = math.sqrt(squares[0]), math.sqrt(squares[1])
            both = gradient_norm + bias_norm / settings.correction_threshold
            scale = gradient_norm / both if both > 0 else 1.0
            scales.append(scale)
            policy_group, critic_group = optimizer.param_groups
            policy_group["lr"] = settings.policy_lr * decay * scale
            critic_group["lr"] = settings.critic_lr * decay  # never corrected

            # Gradients of policy and critic are clipped apart; then one AdamW step.
            clip_grad_norm_(policy_parameters, settings.max_grad_norm)
            clip_grad_norm_(critic_parameters, settings.max_grad_norm)
            optimizer.step()

        figures = {
            "success": sum(rollout.success for rollout in rollouts) / len(rollouts),
            "searches": sum(rollout.num_searches for rollout in rollouts) / len(rollouts),
            "clipped": num_clipped / int(batch.mask_BT.sum()),
            "smallest scale": min(scales),
        }
        history.append(figures)
        print(f"iteration {iteration + 1:2d}  " + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    return shared_base, history


def accuracy(shared_base: SharedBase, retriever: Retriever, *, questions_per_kind: int) -> float:
    """Greedy accuracy on held-out questions, whose conditions are in no training question."""
    model, tokenizer = load_causal_lm("starter")
    sampler = HFPolicy(model.requires_grad_(False), tokenizer)
    sampler.load_weights(shared_base.merged_policy())
    questions = World.load().questions("validation", limit_per_kind=questions_per_kind)
    rollouts = run_benchmark(Agent(sampler, retriever, PROTOCOL, LIMITS, top_k=2), questions)
    return summarize(rollouts).overall.accuracy


def main() -> None:
    """Train, and measure before and after."""
    parser = argparse.ArgumentParser(description="ST-PPO on the starter world, in one file.")
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--questions", type=int, default=Settings.num_questions, help="questions per iteration")
    parser.add_argument("--held-out", type=int, default=40, help="held-out questions of each of the two kinds")
    given = parser.parse_args()
    settings = Settings(num_questions=given.questions)
    with TemporaryDirectory() as folder:
        build_starter_index(Path(folder), World.load().passages(("train", "validation")))
        index = HybridRetriever(folder)
        for iterations in (0, given.iterations):
            # In training a few searches return unrelated passages, so that the agent learns what to do then.
            shared_base, _ = train(settings, UnreliableRetriever(index, share=0.05), iterations=iterations)
            share = accuracy(shared_base, index, questions_per_kind=given.held_out)
            print(f"held-out accuracy after {iterations} iterations: {share:.1%}")


if __name__ == "__main__":
    main()
