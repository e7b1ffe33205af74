"""Train an agent from Python: build the parts, give them to Lightning's Trainer, fit.

python examples/from_python/train.py --iterations 2 --out runs/from-python
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning import Trainer, seed_everything

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.protocol import TagProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.advantages import GAE
from medagent.training.agent_data import AgentSettings
from medagent.training.callbacks import (
    AgentExport,
    ClippingBiasCorrection,
    HeldOutEvaluation,
    ProgressLine,
    TurnLevelSampling,
)
from medagent.training.data import RolloutData
from medagent.training.module import AgentModule
from medagent.training.objectives import ClippedSurrogate
from medagent.training.rewards import OutcomeReward
from medagent.training.run import newest_checkpoint, quiet_lightning, run_checkpoints, run_loggers
from medagent.types import Limits


def train(run: Path, *, iterations: int, num_questions: int, held_out: int) -> Path:
    """Train the starter policy with ST-PPO in the folder `run`, and return the folder of the agent.

    A second call with the same folder goes on from the newest checkpoint.
    """
    index = run / "index"
    if not index.exists():
        build_starter_index(index, World.load().passages(("train", "validation")))

    quiet_lightning()
    seed_everything(0, verbose=False)
    module = AgentModule(
        base_model="starter",
        policy_lr=2e-3,
        critic_lr=1e-3,
        kl_coef=0.02,
        policy_loss=ClippedSurrogate(clip_low=0.05, clip_high=0.05),
    )
    data = RolloutData(
        benchmark=StarterBenchmark("train"),
        retriever=HybridRetriever(str(index)),
        agent=AgentSettings(
            protocol=TagProtocol(instructions="", options_style="letter_last"),  # as the starter was taught
            limits=Limits(max_turns=4, max_turn_tokens=48, max_observation_tokens=160, max_total_tokens=512),
            top_k=2,
        ),
        reward=OutcomeReward(well_formed=0.2),
        advantage=GAE(level="turn"),
        num_questions=num_questions,
        num_minibatches=2,
        num_micro_batches=2,
        reduction="token-mean",
    )
    trainer = Trainer(
        default_root_dir=run,
        max_epochs=iterations,  # an epoch is an iteration: rollouts, then the update
        accumulate_grad_batches=data.num_micro_batches,
        accelerator="auto",
        devices=1,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=run_loggers(run),
        callbacks=[
            TurnLevelSampling(),
            ClippingBiasCorrection(threshold=0.1),
            HeldOutEvaluation(StarterBenchmark("validation", limit_per_kind=held_out), every=iterations),
            AgentExport(),
            ProgressLine(),
            run_checkpoints(run),
        ],
    )
    trainer.fit(module, datamodule=data, ckpt_path=newest_checkpoint(run))
    return run / "agent"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the starter policy from Python.")
    parser.add_argument("--out", type=Path, default=Path("runs/from-python"), help="folder of the run")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--questions", type=int, default=64, help="questions per iteration")
    parser.add_argument("--held-out", type=int, default=20, help="held-out questions of each of the two kinds")
    given = parser.parse_args()
    agent = train(given.out, iterations=given.iterations, num_questions=given.questions, held_out=given.held_out)
    print(f"Agent: {agent}. Ask it: medagent ask 'What is the first-line drug for gout?' --agent {agent}")


if __name__ == "__main__":
    main()
