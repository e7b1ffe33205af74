"""The share of an iteration that recording its rollouts takes, and a large recorded run for `medagent view`.

python -m benchmarks.records                        # the demo's iteration: 128 rollouts, ST-PPO, critic, reference
python -m benchmarks.records --make runs/large      # 200 iterations of 128 rollouts, written without a model
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from benchmarks.common import describe_machine
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.rollout_files import readable
from medagent.evaluation.viewer.recorded import ROLLOUTS
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.callbacks import ClippingBiasCorrection, RolloutRecords, TurnLevelSampling
from medagent.training.callbacks.records import write_iteration
from medagent.training.data import AgentSettings, RolloutData
from medagent.training.module import AgentModule
from medagent.training.run import quiet_lightning
from medagent.types import Rollout, StopReason
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K

HOOKS = ("on_policy_loss", "on_train_batch_end", "on_train_epoch_end")
NUMBERS = "counts rollout_logprob old_logprob logprob ratio clipped advantage entropy weight value kl".split()
TURNS, TOKENS, SAMPLES, ROLLOUTS_EACH = 4, 120, 8, 128


def main() -> None:
    """Time the hooks of the records within whole iterations, or write a large run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--make", type=Path)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.iterations or 200)
        size = sum(path.stat().st_size for path in (options.make / ROLLOUTS).iterdir())
        print(f"{options.make}: {size / 2**20:,.0f} MiB")
        return
    print(describe_machine())
    quiet_lightning()
    shares = measure(options.iterations or 6)[1:]  # the first warms up
    print(f"median {statistics.median(shares):.2%} ({min(shares):.2%} to {max(shares):.2%}) of processor time")


def measure(iterations: int) -> list[float]:
    """The share of the processor time of each iteration that the hooks of the records take."""
    shares, times = list[float](), {"spent": 0.0, "began": time.process_time()}

    def timed(hook: Callable[..., None]) -> Callable[..., None]:
        def run(*given: object) -> None:
            began = time.process_time()
            hook(*given)
            times["spent"] += time.process_time() - began

        return run

    def note(*_: object) -> None:
        now = time.process_time()
        shares.append(times["spent"] / (now - times["began"]))
        times.update(spent=0.0, began=now)

    records = RolloutRecords()
    for name in HOOKS:
        setattr(records, name, timed(getattr(records, name)))
    correction = ClippingBiasCorrection("relative", applied_to="step", space="logits")
    callbacks = [TurnLevelSampling(), correction, records, LambdaCallback(on_train_epoch_end=note)]
    agent = AgentSettings(STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)
    with tempfile.TemporaryDirectory() as folder:
        build_starter_index(Path(folder) / "index", World.load().passages())
        retriever = HybridRetriever(str(Path(folder) / "index"), cache_size=0)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
        trainer = Trainer(max_epochs=iterations, callbacks=callbacks, default_root_dir=folder, **quiet)
        trainer.fit(AgentModule(), RolloutData(StarterBenchmark("train"), retriever, agent=agent))
    return shares


def make(run: Path, iterations: int) -> None:
    """Write a run whose rollouts have four turns of 120 tokens, with every number of each."""
    draw, questions = random.Random(0), StarterBenchmark("train").questions()
    passages = [{"title": "", "source": "", "score": 0.5, **each.to_json()} for each in World.load().passages()]
    words = [f" {word}" for each in passages for word in each["text"].split()]
    random_numbers = [
        {name: [float(str(x)) for x in torch.randn(TOKENS).numpy()] for name in NUMBERS} for _ in range(500)
    ]

    def turn(number: int) -> dict[str, object]:
        texts, last = draw.choices(words, k=TOKENS), number + 1 == TURNS
        searched = (
            {"query": None, "passages": []} if last else {"query": texts[0], "passages": draw.sample(passages, 3)}
        )
        told = {"text": "".join(texts), "tokens": TOKENS, "reward": 0.0, "given": "", "token_texts": texts}
        return told | searched | {"numbers": draw.choice(random_numbers)}

    for iteration in range(iterations):
        rows = []
        for question in draw.sample(questions, ROLLOUTS_EACH // SAMPLES):
            for sample in range(SAMPLES):
                row = readable(Rollout(question, (), (), StopReason.ANSWERED, sample=sample))
                right = draw.random() < 0.2 + 0.6 * iteration / iterations
                row |= {"verdict": "correct" if right else "wrong", "reward": float(right), "clip_bias_scale": 1.0}
                rows.append(row | {"turns": list(map(turn, range(TURNS)))})
        write_iteration(run, iteration, rows)
    logs, names = run / "logs" / "version_0", ("reward/success", "policy/clip_fraction", "policy/entropy")
    logs.mkdir(parents=True)
    lines = [",".join(map(str, (n, n, *(draw.random() for _ in names)))) for n in range(iterations)]
    (logs / "metrics.csv").write_text("\n".join([",".join(["epoch", "step", *names]), *lines]) + "\n")


if __name__ == "__main__":
    main()
