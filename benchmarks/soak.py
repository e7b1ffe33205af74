"""Memory, threads, files and folders over many iterations of a small run on a real model.

    python -m benchmarks.soak --base smollm2 --iterations 100

Each iteration rolls out two questions twice, on the starter world, and updates policy and evidence critic. Nothing that
is measured may grow: memory after the last iteration is compared with that after the tenth, and so are threads, open
files, and what lies in the folder for temporary files. Exit status 1 where memory grew by
more than 3% or anything else is left over.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import psutil
import torch
from lightning import Callback, LightningModule, Trainer

from benchmarks.common import describe_machine
from benchmarks.rivals.job import ALPHA, RANK, RATE
from medagent.agent import Limits
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.protocol import TagProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.advantages import GAE
from medagent.training.data import AgentSettings, RolloutData
from medagent.training.execution import Execution, keep_freed_memory
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule

SETTLED, GROWTH = 10, 1.03  # iterations before the first comparison; how much memory may grow after


class Watch(Callback):
    """What the process holds after each iteration."""

    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note it, and say it every tenth time."""
        process = psutil.Process()
        self.found.append(
            {
                "memory in MiB": process.memory_info().rss / 2**20,
                "threads": threading.active_count(),
                "system threads": process.num_threads(),
                "open files": process.num_fds(),
                "folders": len(list(Path(tempfile.gettempdir()).iterdir())),
            }
        )
        if len(self.found) % 10 == 0:
            print(f"{len(self.found):4d}  {self.found[-1]}", flush=True)


def main() -> None:
    """Train, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if options.iterations <= SETTLED:
        parser.error(f"--iterations: found {options.iterations}, wanted more than {SETTLED}")
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    print(describe_machine())
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # what is left over is then ours
        build_starter_index(Path(folder) / "index", World.load().passages())
        data = RolloutData(
            StarterBenchmark("train"),
            HybridRetriever(str(Path(folder) / "index")),
            agent=AgentSettings(TagProtocol(chat=options.base != "starter"), Limits(2, 16, 64, 512), top_k=1),
            advantage=GAE(level="turn"),
            num_questions=2,
            num_samples=2,
            num_minibatches=1,
            num_micro_batches=1,
        )
        module = AgentModule(
            options.base,
            policy_lora=LoraSettings(rank=RANK, alpha=ALPHA),
            critic_lora=None,
            critic_sees="evidence_and_group",
            policy_lr=RATE,
            kl_coef=0.0,
            execution=Execution(shared_prefixes=True),
        )
        trainer = Trainer(
            max_epochs=options.iterations,
            accelerator="auto",
            devices=1,
            accumulate_grad_batches=1,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[watch],
        )
        trainer.fit(module, datamodule=data)
    before, after = watch.found[SETTLED - 1], watch.found[-1]
    for name, value in before.items():
        print(f"{name}: {value:,.0f} after {SETTLED} iterations, {after[name]:,.0f} after {options.iterations}")
    grown = after["memory in MiB"] > GROWTH * before["memory in MiB"]
    left = [name for name in before if name != "memory in MiB" and after[name] > before[name]]
    if grown or left:
        sys.exit(f"grew: {', '.join([*(['memory'] if grown else []), *left])}")


if __name__ == "__main__":
    main()
