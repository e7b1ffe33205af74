"""Train an agent from Python: build the module and the data, choose the algorithm's callbacks, train.

python examples/from_python/train.py --iterations 2 --out runs/from-python
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning import seed_everything

from medagent import Limits, training
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.protocol import TagProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World


def train(out: Path, *, iterations: int, num_questions: int, held_out: int) -> training.TrainingResult:
    """Train the starter policy with ST-PPO in the folder `out`.

    A second call with the same folder goes on from the newest checkpoint.
    """
    index = out / "index"
    if not index.exists():
        build_starter_index(index, World.load().passages(("train", "validation")))
    seed_everything(0, verbose=False)
    module = training.AgentModule(
        base_model="starter",
        policy_lr=2e-3,
        critic_lr=1e-3,
        kl_coef=0.02,
        policy_loss=training.ClippedSurrogate(clip_low=0.05, clip_high=0.05),
    )
    data = training.RolloutData(
        benchmark=StarterBenchmark("train"),
        retriever=HybridRetriever(str(index)),
        agent=training.AgentSettings(
            protocol=TagProtocol(instructions="", options_style="letter_last"),  # as the starter was taught
            limits=Limits(max_turns=4, max_turn_tokens=48, max_observation_tokens=160, max_total_tokens=512),
            top_k=2,
        ),
        reward=training.OutcomeReward(well_formed=0.2),
        advantage=training.GAE(level="turn"),
        num_questions=num_questions,
        num_minibatches=2,
        num_micro_batches=2,
        reduction="token-mean",
        val_benchmark=StarterBenchmark("validation", limit_per_kind=held_out),
    )
    return training.train(
        module,
        data,
        out=out,
        iterations=iterations,
        callbacks=[training.TurnLevelSampling(), training.ClippingBiasCorrection(threshold=0.1)],
        check_val_every_n_epoch=iterations,
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the starter policy from Python.")
    parser.add_argument("--out", type=Path, default=Path("runs/from-python"), help="folder of the run")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--questions", type=int, default=64, help="questions per iteration")
    parser.add_argument("--held-out", type=int, default=20, help="held-out questions of each of the two kinds")
    given = parser.parse_args()
    result = train(given.out, iterations=given.iterations, num_questions=given.questions, held_out=given.held_out)
    print(f"Agent: {result.agent}. Ask it: medagent ask 'What is the first-line drug for gout?' --agent {result.agent}")


if __name__ == "__main__":
    main()
