"""Speed of the starter task.

    python -m benchmarks.speed --repeats 5

Prints medians and ranges: rollouts and tokens per second in sampling, tokens per second in training.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.common import describe_machine
from medagent.agent import Agent, Job
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.data import AgentSettings, RolloutData
from medagent.training.engines import InProcessEngine, ModuleWeights
from medagent.training.module import AgentModule
from medagent.training.objectives import value_loss
from medagent.training.prepare import prepare
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K

ROLLOUTS = 128


def main() -> None:
    """Time sampling, the passes that prepare experience, and one forward and backward pass of policy and critic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        build_starter_index(Path(folder), World.load().passages())
        retriever = HybridRetriever(folder, cache_size=0)
        module = AgentModule()
        data = RolloutData(
            StarterBenchmark("train"),
            retriever,
            agent=AgentSettings(STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K),
            num_questions=ROLLOUTS,
        )
        agent = Agent(
            InProcessEngine().sync_weights(ModuleWeights(module), version=0),
            retriever,
            STARTER_PROTOCOL,
            STARTER_LIMITS,
            STARTER_TOP_K,
        )
        figures: dict[str, list[float]] = {}

        def note(name: str, value: float) -> None:
            figures.setdefault(name, []).append(value)

        for repeat in range(options.repeats + 1):
            jobs = [Job(q, seed=repeat * 1000 + i, force_search=True) for i, q in enumerate(data.questions_of(repeat))]
            began = time.perf_counter()
            rollouts = agent.run_all(jobs)
            sampling_s = time.perf_counter() - began
            began = time.perf_counter()
            batch = prepare(module, rollouts, estimator=data.advantage, reduce=lambda tensor: tensor)
            prepare_s = time.perf_counter() - began
            began = time.perf_counter()
            for start in range(0, ROLLOUTS, 16):
                part = batch.rows(range(start, start + 16))
                inputs = (part.token_ids_BT, part.attention_BT, part.mask_BT)
                result = module.policy_loss(
                    module.shared_base.policy_scores(*inputs, temperature=1.0).logprobs_BT, part
                )
                critic = value_loss(
                    module.shared_base.values(*inputs),
                    old_values_BT=part.values_BT,
                    returns_BT=part.returns_BT,
                    loss_weights_BT=part.loss_weights_BT,
                )
                (critic - result.objective).backward()
            update_s = time.perf_counter() - began
            if repeat == 0:
                continue  # warms up
            sampled = sum(rollout.num_action_tokens for rollout in rollouts)
            tokens = int(batch.attention_BT.sum())
            note("sampling, rollouts/s", ROLLOUTS / sampling_s)
            note("sampling, sampled tokens/s", sampled / sampling_s)
            note("sampling, tokens read and sampled/s", tokens / sampling_s)
            note("reference and values, tokens/s", tokens / prepare_s)
            note("policy and critic forward and backward, tokens/s", tokens / update_s)
    for name, values in figures.items():
        print(f"{name:50s} median {statistics.median(values):9,.1f}  ({min(values):,.1f} to {max(values):,.1f})")


if __name__ == "__main__":
    main()
