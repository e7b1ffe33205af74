"""Is the critic worth having? Its explained variance on held-out rollouts over training, against a ceiling.

Held out: 16 rollouts each of questions on validation conditions, and of questions on training conditions (of which some were asked in training, about once
each), sampled by the policy of the moment and never trained on; the searches that fail are drawn anew for each of a question's rollouts. The ceiling is the share of outcome variance that the question and the passages read so far can explain: rollouts that share both form a group at each turn, and the ceiling is 1 - (mean
variance within groups, unbiased) / (total variance), turns weighted by their action tokens. The critic is read at each turn's first token (where it
knows no more than the ceiling does) and, where it has a value for each, at all action tokens too (where it also sees what the policy has begun to write).

    python -m benchmarks.critic --out /tmp/critic --at 1 3 5 8 12 [--set data.num_critic_epochs=0 ...]

It trains by the demo's configuration; with `--context` the critic is an adapter that sees what the policy sees.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer

from benchmarks.common import describe_machine
from evaluation.benchmarks import StarterBenchmark
from evaluation.rewards import Reward
from medagent.agent import Agent, Job, rollout_seed
from medagent.records import Question, Rollout
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from retrieval.controls import UnreliableRetriever
from training.data import RolloutData
from training.demo import demo_configs
from training.engines import InProcess
from training.module import AgentModule
from training.prepare import prepare
from training.run import AgentCLI

SAMPLES = 16


def ceiling(rollouts: list[Rollout]) -> tuple[float, torch.Tensor]:
    """(explained share, which turns it is taken over): turns of all rollouts in order, those whose group has two members or more."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    outcomes, tokens = [], []
    for rollout in rollouts:
        read: tuple[str, ...] = (rollout.question.id,)
        for turn in rollout.turns:
            groups[read].append(len(outcomes))
            outcomes.append(rollout.reward)
            tokens.append(len(turn.token_ids))
            read = (*read, *(hit.passage.id for hit in turn.hits))
    outcome, weight = torch.tensor(outcomes, dtype=torch.float64), torch.tensor(tokens, dtype=torch.float64)
    shared = torch.zeros(len(outcomes), dtype=torch.bool)
    within = 0.0
    for members in groups.values():
        if len(members) > 1:
            shared[members] = True
            within += float(weight[members].sum() * outcome[members].var())
    # The total over the same turns: turns that share their reading with no other say nothing about the variance within groups.
    outcome, weight = outcome[shared], weight[shared]
    total = float((weight * (outcome - (weight * outcome).sum() / weight.sum()).square()).sum())
    return (1 - within / total if total > 0 else 0.0), shared


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

    Where a retriever fails its share of the queries, by their hash, each repeat has a hash of its own. With one hash for all, a query that
    fails once fails in every repeat, and the ceiling counts as explained by the question what nothing about it can tell.
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
            InProcess().hand_over(module, version=0), data.retriever, settings.protocol, settings.limits, settings.top_k
        )
        rollouts = repeated(agent, questions, data.reward, count=SAMPLES, seed=977, iteration=trainer.current_epoch)
        batch = prepare(
            module, rollouts, estimator=data.advantage, reduce=lambda tensor: tensor, num_samples=data.num_samples
        )
        returns = torch.tensor([r.reward for r in rollouts])[:, None].expand_as(batch.values_BT)
        before = torch.cat([torch.full_like(batch.turn_ids_BT[:, :1], -1), batch.turn_ids_BT[:, :-1]], dim=1)
        first = batch.mask_BT & (batch.turn_ids_BT != before)
        lengths = torch.stack(
            [torch.tensor(float(len(turn.token_ids))) for rollout in rollouts for turn in rollout.turns]
        )
        best, shared = ceiling(rollouts)
        at_turns = explained(batch.values_BT[first][shared], returns[first][shared], lengths[shared])
        success = sum(r.success for r in rollouts) / len(rollouts)
        everywhere = ""
        if bool((data.advantage.value_mask(batch) == batch.mask_BT).all()):
            ones = torch.ones(int(batch.mask_BT.sum()))
            share = explained(batch.values_BT[batch.mask_BT], returns[batch.mask_BT], ones)
            everywhere = f"  at all action tokens {share:6.2f}"
        print(
            f"after iteration {trainer.current_epoch + 1:3d}, {name:10s} conditions: success {success:5.1%}  ceiling {best:5.2f} "
            f"(on {float(lengths[shared].sum() / lengths.sum()):.0%} of tokens)  critic at turn starts {at_turns:6.2f} = {at_turns / best if best > 0 else 0:5.0%} "
            f"of it{everywhere}",
            flush=True,
        )


def main() -> None:
    """Train and measure along the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
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
    demo = [path for path in demo_configs() if not (options.context and path.parent.name == "critic")]
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
    cli.trainer.fit(cli.model, datamodule=cli.datamodule)


if __name__ == "__main__":
    main()
