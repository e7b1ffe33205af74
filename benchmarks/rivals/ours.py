"""One step of our PPO: rollouts, what is read of them before the update, and the update.

    python -m benchmarks.rivals.ours --index DIR --critic evidence|adapter

`--critic evidence` is configs/critic/group.yaml without its passes of the critic alone. `adapter` is an adapter on the
base as critic, and a reference pass. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from benchmarks.rivals.job import (
    ALPHA,
    NUM_SAMPLES,
    RANK,
    RATE,
    Phases,
    add_arguments,
    force_turn_length,
    job_of,
    report,
)
from medagent.evaluation.benchmarks.base import Benchmark
from medagent.policies.batch import Batch
from medagent.retrieval.search import HybridRetriever
from medagent.training.adapters import SharedBase
from medagent.training.advantages import GAE
from medagent.training.data import AgentSettings, RolloutData
from medagent.training.execution import Execution, keep_freed_memory
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.prefixes import shared_with_earlier
from medagent.types import Question, Rollout


class _Given(Benchmark):
    """The job's questions."""

    def __init__(self, questions: list[Question]) -> None:
        self._questions = questions

    def questions(self) -> list[Question]:
        """All of them."""
        return self._questions


def instrument(phases: Phases) -> None:
    """Time what a step is made of."""

    def pending(batch: Batch) -> list[int]:
        return [len(row.dialogue.pending) for row in batch._rows if not row.ended]

    def reading(batch: Batch) -> str:
        return "prefill" if max(pending(batch), default=0) > 1 else "decode"

    phases.wrap(Batch, "step", "sample")
    phases.wrap(Batch, "read", reading, lambda batch: sum(pending(batch)))
    phases.wrap(SharedBase, "reference_logprobs", "reference")
    phases.wrap(SharedBase, "policy_scores", "policy forward")

    def role(shared_base: SharedBase, *args: Any, **kwargs: Any) -> str:
        return "critic" if torch.is_grad_enabled() else "values"

    phases.wrap(SharedBase, "values", role)


def main() -> None:
    """Run the steps that warm up, and the one that counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--critic", choices=["evidence", "adapter", "none"], default="evidence")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rollouts", default="", help="write the rollouts of the last step to this file")
    parser.add_argument("--max-tokens", type=int, default=0)
    parser.add_argument("--micro-batches", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without shared prefixes")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    job = job_of(options)
    if job.forced:
        force_turn_length(job.limits.max_turn_tokens)
    parts = options.micro_batches or len(job.questions)
    data = RolloutData(
        _Given(job.questions),
        HybridRetriever(job.index),
        agent=AgentSettings(job.protocol, job.limits, job.top_k),
        advantage=GAE(level="turn"),
        num_questions=len(job.questions),
        num_samples=NUM_SAMPLES,
        num_minibatches=1,
        num_micro_batches=parts,
        seed=job.seed,
    )
    phases = Phases()
    instrument(phases)
    steps: list[dict[str, Any]] = []

    class Timed(AgentModule):
        def on_train_epoch_start(self) -> None:
            phases.take()
            self._began_step = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            took = time.perf_counter() - self._began_step
            seconds, counts = phases.take()
            assert len(data.rollouts) == job.rollouts
            steps.append({"seconds": took, "phases": seconds, "counts": counts, **_sizes(data.rollouts)})
            print(f"step {len(steps)}: {steps[-1]}", file=sys.stderr)

    adapter = LoraSettings(rank=RANK, alpha=ALPHA)
    module = Timed(
        job.model,
        dtype=job.dtype,
        policy_lora=adapter,
        critic_lora=adapter if options.critic == "adapter" else None,
        critic_inputs="context" if options.critic == "adapter" else "evidence_and_group",
        policy_lr=RATE,
        critic_lr=RATE if options.critic == "adapter" else 3e-2,
        kl_coef=1e-3 if options.critic == "adapter" else 0.0,
        execution=Execution(shared_prefixes=not options.plain, max_tokens=options.max_tokens),
    )
    trainer = Trainer(
        max_epochs=options.warm_up + 1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    phases.wrap(trainer.strategy, "backward", "backward")
    phases.wrap(trainer.strategy, "optimizer_step", "optimizer")
    trainer.fit(module, datamodule=data)
    if options.rollouts:
        _write(Path(options.rollouts), data.rollouts, module)
    report(steps=steps, rollouts=job.rollouts, threads=torch.get_num_threads())


def _sizes(rollouts: list[Rollout]) -> dict[str, int]:
    """Tokens in all, those sampled, and distinct ones: what a tree of each question's samples holds."""
    distinct = 0
    for start in range(0, len(rollouts), NUM_SAMPLES):
        rows = [torch.tensor(rollout.token_ids) for rollout in rollouts[start : start + NUM_SAMPLES]]
        lengths = torch.tensor([len(row) for row in rows])
        ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        there_BT = torch.arange(ids_BT.shape[1]) < lengths[:, None]
        distinct += int(lengths.sum()) - sum(first for first, _ in shared_with_earlier(ids_BT, there_BT))
    return {
        "tokens": sum(len(rollout.token_ids) for rollout in rollouts),
        "sampled": sum(rollout.num_action_tokens for rollout in rollouts),
        "distinct": distinct,
    }


def _write(path: Path, rollouts: list[Rollout], module: AgentModule) -> None:
    rows = []
    for rollout in rollouts:
        mask = list(rollout.loss_mask)
        rewards = [0.0] * len(mask)
        rewards[max(at for at, sampled in enumerate(mask) if sampled)] = rollout.total_reward
        rows.append(
            {
                "token_ids": list(rollout.token_ids),
                "mask": mask,
                "turn_ids": list(rollout.turn_ids),
                "rewards": rewards,
                "logprobs": list(rollout.rollout_logprobs),
            }
        )
    path.write_text(
        json.dumps({"rollouts": rows, "pad_id": module.pad_id, "temperature": module.temperature}), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
