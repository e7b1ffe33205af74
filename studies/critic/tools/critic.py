"""How much of the outcome the critic explains on held-out rollouts over training, against a ceiling.

    python -m studies.critic.tools.critic --out /tmp/critic --at 1 3 5 8 12 [--set data.num_critic_epochs=0 ...]

Held out are questions on validation conditions, and questions on training conditions, some of which were asked in
training. The policy of the moment samples 16 rollouts of each, which are never trained on. The searches that fail are
drawn anew for each rollout of a question.

The ceiling is the share of outcome variance that the question and the passages read so far can explain. Rollouts that
share both form a group at each turn. The ceiling is 1 - (mean variance within groups, unbiased) / (total variance). A
turn weighs as much as its group's turns have action tokens on average, here and in what the critic explains. How long
a rollout's turn became is known only after it.

The critic is read at each turn's first token, where it knows as much of the rollout as the ceiling does. A critic with
a value per token is also read at all action tokens. There it also sees what the policy has begun to write.

Training takes the demo's configuration. For a critic that sees its group, a question's 16 rollouts are dealt into
groups of `data.num_samples`. In training the rollouts of a group also share which queries fail, here they do not.
With `--context` the critic is an adapter that sees what the policy sees.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer

from benchmarks.common import describe_machine
from medagent.agent import Agent, Job
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.controls import UnreliableRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.command import AgentCLI
from medagent.training.data import RolloutData
from medagent.training.engines import InProcessEngine, ModuleWeights
from medagent.training.experience import turn_starts
from medagent.training.module import AgentModule
from medagent.training.prepare import prepare
from medagent.training.rewards import Reward
from medagent.types import Question, Rollout, rollout_seed
from studies.design import CONFIGS, STUDIES

SAMPLES = 16


@dataclass(frozen=True)
class Ceiling:
    """The turns S that share their reading with another, in the rollouts' order.

    `shared` marks them among all turns. Each has its outcome, its weight, its number within its rollout, and the
    unbiased variance of outcomes within its group.
    """

    shared: torch.Tensor
    outcome_S: torch.Tensor
    weight_S: torch.Tensor
    turn_S: torch.Tensor
    within_S: torch.Tensor

    def share(self, chosen_S: torch.Tensor | None = None) -> float:
        """The share of outcome variance that reading explains, of all these turns or of some."""
        chosen_S = torch.ones_like(self.turn_S, dtype=torch.bool) if chosen_S is None else chosen_S
        outcome, weight, within = self.outcome_S[chosen_S], self.weight_S[chosen_S], self.within_S[chosen_S]
        total = (weight * (outcome - (weight * outcome).sum() / weight.sum()).square()).sum()
        return float(1 - (weight * within).sum() / total) if total > 0 else 0.0


def ceiling(rollouts: list[Rollout]) -> Ceiling:
    """Group the turns by question and passages read.

    A turn that shares its reading with no other is left out: it tells nothing about the variance within groups.
    """
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    outcomes, tokens, numbers = [], [], []
    for rollout in rollouts:
        read: tuple[str, ...] = (rollout.question.id,)
        for number, turn in enumerate(rollout.turns):
            groups[read].append(len(outcomes))
            outcomes.append(rollout.reward)
            tokens.append(len(turn.token_ids))
            numbers.append(number)
            read = (*read, *(hit.passage.id for hit in turn.hits))
    outcome, weight = torch.tensor(outcomes, dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64)
    shared, within = torch.zeros(len(outcomes), dtype=torch.bool), torch.zeros_like(outcome)
    for members in groups.values():
        weight[members] = weight[members].mean()
        if len(members) > 1:
            shared[members] = True
            within[members] = outcome[members].var()
    return Ceiling(shared, outcome[shared], weight[shared], torch.tensor(numbers)[shared], within[shared])


def explained(values: torch.Tensor, returns: torch.Tensor, weights: torch.Tensor) -> float:
    """1 - weighted variance of the errors / weighted variance of the returns."""

    def variance(x: torch.Tensor) -> torch.Tensor:
        mean = (weights * x).sum() / weights.sum()
        return (weights * (x - mean).square()).sum() / weights.sum()

    total = variance(returns)
    return float(1 - variance(returns - values) / total) if total > 0 else 0.0


def repeated(
    agent: Agent, questions: list[Question], reward: Reward, *, count: int, seed: int, iteration: int = 0
) -> list[Rollout]:
    """`count` graded rollouts of each question, sampled at temperature 1.

    A retriever that fails a share of the queries, by their hash, gets another hash for each repeat. With one hash for
    all, a query that fails once fails in every repeat. The ceiling would count that as explained by the question.
    """
    rollouts = []
    for number in range(count):
        retriever = agent.retriever
        if isinstance(retriever, UnreliableRetriever):
            retriever = retriever.reseeded(number + 1)
        jobs = [
            Job(
                question,
                seed=rollout_seed(seed, iteration=iteration, question_id=question.id, sample=number),
                temperature=1.0,
                sample=number,
            )
            for question in questions
        ]
        rollouts += [reward(rollout) for rollout in replace(agent, retriever=retriever).run_all(jobs)]
    return rollouts


class Probe(Callback):
    """Measures after the given iterations (1 = the first)."""

    def __init__(self, at: list[int], num_questions: int) -> None:
        self._at = at
        self._questions = {"validation": StarterBenchmark("validation").questions()[:num_questions]}
        self._num_questions = num_questions

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure after the iteration's updates."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(pl_module, AgentModule)
        assert isinstance(data, RolloutData)
        self._questions.setdefault("training", random.Random(0).sample(data.questions, self._num_questions))
        if trainer.current_epoch + 1 in self._at:
            for name, questions in self._questions.items():
                self._measure(trainer, pl_module, data, name, questions)

    def _measure(
        self, trainer: Trainer, module: AgentModule, data: RolloutData, name: str, questions: list[Question]
    ) -> None:
        settings = data.agent_settings
        agent = Agent(
            InProcessEngine().sync_weights(ModuleWeights(module), version=0),
            data.retriever,
            settings.protocol,
            settings.limits,
            settings.top_k,
        )
        rollouts = repeated(agent, questions, data.reward, count=SAMPLES, seed=977, iteration=trainer.current_epoch)
        batch = prepare(
            module, rollouts, estimator=data.advantage, reduce=lambda tensor: tensor, num_samples=data.num_samples
        )
        returns = torch.tensor([r.reward for r in rollouts])[:, None].expand_as(batch.values_BT)
        best = ceiling(rollouts)
        values_S = batch.values_BT[turn_starts(batch.mask_BT, batch.turn_ids_BT)][best.shared]
        total = best.share()
        at_turns = explained(values_S, best.outcome_S, best.weight_S)
        by_turn = []
        for number in range(int(best.turn_S.max()) + 1):
            these_S = best.turn_S == number
            if these_S.any() and (of := best.share(these_S)) > 0:
                found = explained(values_S[these_S], best.outcome_S[these_S], best.weight_S[these_S])
                by_turn.append(f"{number + 1}: {found / of:.0%} of {of:.2f}")
        tokens = sum(len(turn.token_ids) for rollout in rollouts for turn in rollout.turns)
        success = sum(r.success for r in rollouts) / len(rollouts)
        everywhere = ""
        if bool((data.advantage.value_mask(batch.mask_BT, batch.turn_ids_BT) == batch.mask_BT).all()):
            ones = torch.ones(int(batch.mask_BT.sum()))
            share = explained(batch.values_BT[batch.mask_BT], returns[batch.mask_BT], ones)
            everywhere = f"  at all action tokens {share:6.2f}"
        print(
            f"after iteration {trainer.current_epoch + 1:3d}, {name:10s} conditions: success {success:5.1%}  ceiling "
            f"{total:5.2f} (on {float(best.weight_S.sum()) / tokens:.0%} of tokens)  critic at turn starts "
            f"{at_turns:6.2f} = {at_turns / total if total > 0 else 0:5.0%} of it ({', '.join(by_turn)}){everywhere}",
            flush=True,
        )


def main() -> None:
    """Train and measure along the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/critic"))
    parser.add_argument("--at", type=int, nargs="+", default=[1, 3, 5, 8, 12])
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", action="store_true", help="an adapter as critic, that sees what the policy sees")
    parser.add_argument("--config", type=Path, nargs="*", default=[], help="files on top of the demo's")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the configuration, name=value")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(describe_machine())
    build_starter_index(options.out / "index", World.load().passages(("train", "validation")), overwrite=True)
    overrides = [
        f"data.retriever.init_args.retriever.init_args.index={options.out / 'index'}",
        f"trainer.default_root_dir={options.out}",
        f"trainer.max_epochs={max(options.at)}",
        f"data.seed={options.seed}",
        f"seed_everything={options.seed}",
        *options.set,
    ]
    critic = [] if options.context else [CONFIGS / "critic" / "group.yaml"]
    demo = [
        CONFIGS / "experiments" / "starter.yaml",
        CONFIGS / "algorithms" / "st_ppo.yaml",
        STUDIES / "budget" / "configs" / "parts" / "schedule.yaml",
        *critic,
        CONFIGS / "collapse" / "report.yaml",
    ]
    cli = AgentCLI(
        AgentModule,
        RolloutData,
        run=False,
        args=[
            *(argument for path in (*demo, *options.config) for argument in ("--config", str(path))),
            *(f"--{override}" for override in overrides),
        ],
        save_config_callback=None,
        auto_configure_optimizers=False,
        trainer_defaults={"callbacks": [Probe(options.at, options.questions)]},
    )
    if SAMPLES % cli.datamodule.num_samples:
        parser.error(
            f"data.num_samples is {cli.datamodule.num_samples}; it must divide the {SAMPLES} rollouts per question"
        )
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


if __name__ == "__main__":
    main()
