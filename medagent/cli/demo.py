"""`medagent demo`: index a corpus, measure a model, train it with ST-PPO, measure again, and report.

A table of stages describes each base. The starter takes minutes and begins anew each time. A pretrained model takes
hours on two cores; each of its stages is kept in the folder, so the same command resumes where it was interrupted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.progress import Progress
from transformers import AutoTokenizer

from medagent.agent import Agent
from medagent.agent_folder import load_agent
from medagent.agent_spec import AgentSpec, protocol_from_json, write_spec
from medagent.cli import demo_report
from medagent.cli.demo_report import PERMUTED, SAMPLED
from medagent.cli.demo_stages import CONFIGS, PRETRAINED_STAGES, STARTER_STAGES, DemoSettings, DemoStage, begin
from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import summarize
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import PredictionLog
from medagent.evaluation.reports.html import write_json
from medagent.evaluation.run import Plan, run_benchmark, run_plan
from medagent.evaluation.statistics import compare_paired
from medagent.files import write_whole
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import fastest_device
from medagent.models.precision import AUTO, num_parameters, resolve_precision
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.controls import UnrelatedRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import RunFolder
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import sft_command, train_command
from medagent.types import Limits, Question, Rollout

LOCK = ".demo"  # a folder, which stays
# Larger bases than LARGE parameters learn from examples at LARGE_LR. The packaged rate is SmolLM2's.
LARGE, LARGE_LR = 300_000_000, 3.0e-4


def run_demo(out: Path, settings: DemoSettings, *, overwrite: bool = False) -> dict[str, Any]:
    """Run the demonstration in the folder `out`, or resume that of a pretrained model, and return the report."""
    resumes = settings.base != STARTER
    if not resumes and (out / "demo.json").exists():
        raise ConfigError(
            f"demo folder {out}: holds the demo of a pretrained model, hours of work that this one would replace. "
            "Give another --out."
        )
    RunFolder(out, "demo").claim()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if not resumes:
        return _Demo(out, settings, STARTER_STAGES).run()
    with RunFolder(out / LOCK, "demo").sole_writer():  # the lock of `out` itself is that of the trainings
        begin(out, settings, overwrite=overwrite)
        return _Demo(out, settings, PRETRAINED_STAGES).run()


class _Demo:
    def __init__(self, out: Path, settings: DemoSettings, stages: Sequence[DemoStage]) -> None:
        self._out, self._settings, self._stages = out, settings, stages
        self._resumes = settings.base != STARTER
        self._console, self._started = Console(highlight=False), time.monotonic()
        self._world = World.load()
        self._questions = self._world.questions("test", limit_per_kind=settings.questions_per_kind)
        self._changed = self._world.counterfactual("test")
        self._permuted_index = out / ("index-permuted" if self._resumes else "index-counterfactual")
        self._asked: dict[tuple[str, str], list[Rollout]] = {}
        self._train_s = 0.0

    def run(self) -> dict[str, Any]:
        learner = "a small language model, taught on made-up names only,"
        if self._resumes:
            learner = f"{self._settings.base}, a pretrained language model,"
        self._console.print(
            f"[bold]medagent demo[/bold]: {learner} learns to search {len(self._world.passages()):,} passages of "
            f"medical teaching. {len(self._questions)} test questions are about conditions that no training sees."
        )
        if self._resumes:
            self._console.print("Interrupt it when you like: the same command resumes (without --overwrite).")
        self._build_indexes()
        columns: dict[str, dict[str, dict[str, Any]]] = {}
        for stage in self._stages:
            if stage.configs:
                self._learn(stage)
            else:
                columns[stage.column] = self._measure(stage)
        last = self._stages[-1].name
        report = self._report(columns)
        write_json(self._out / "report.json", report)
        demo_report.print_table(self._console, columns, report)
        chosen = demo_report.show_one(self._console, self._protocol, self._asked[last, Mode.SEARCH], self._retriever)
        demo_report.write_page(self._out, self._settings.base, columns, report, chosen, self._asked[last, Mode.SEARCH])
        demo_report.finish_agent(self._out, self._questions)
        agent = self._out / "agent"
        self._console.print(
            f"\nReport: {self._out / 'report.html'} (for programs: {self._out / 'report.json'}). Agent: {agent}.\n"
            "Next:\n"
            f"  medagent ask --agent {agent} 'What is the first-line drug for gout?'\n"
            f"  medagent serve --agent {agent}      # a page at http://127.0.0.1:8080\n"
            "  docs/your-model-and-corpus.md: the same on your own model and corpus."
        )
        return report

    def _report(self, columns: demo_report.Columns) -> dict[str, Any]:
        last = self._stages[-1].name
        if self._resumes:
            marks = [
                {rollout.question.id: grade(rollout).correct for rollout in self._asked[name, Mode.SEARCH]}
                for name in (self._stages[2].name, last)
            ]
            return {
                **columns,
                "trained_against_examples": asdict(compare_paired(*marks)),
                "settings": asdict(self._settings),
                "notice": NOT_ADVICE,
            }
        report = {name: demo_report.starter_row(parts) for name, parts in columns.items()}
        report["after"]["counterfactual"]["follows_world"] = demo_report.follows_world(
            self._asked[last, PERMUTED], self._world
        )
        return {
            **report,
            "train_seconds": round(self._train_s, 1),
            "total_seconds": round(time.monotonic() - self._started, 1),
            "seed": self._settings.seed,
            "iterations": len(read_metrics(self._out)),
            "threads": torch.get_num_threads(),
        }

    def _questions_of(self, part: str) -> list[Question]:
        """All test questions; with a pretrained model half of them in a control."""
        halved = self._resumes and part != Mode.SEARCH
        limit = max(1, self._settings.questions_per_kind // 2) if halved else self._settings.questions_per_kind
        world, lures = (self._changed, self._world) if part == PERMUTED else (self._world, None)
        return world.questions("test", limit_per_kind=limit, lures=lures)

    @cached_property
    def _retriever(self) -> HybridRetriever:
        return HybridRetriever(str(self._out / "index"))

    @cached_property
    def _task(self) -> dict[str, Any]:
        found = yaml.safe_load((CONFIGS / self._stages[-2].configs[0]).read_text(encoding="utf-8"))
        task: dict[str, Any] = found["data"]["agent"]
        if self._resumes:
            task["protocol"]["init_args"]["chat"] = self._chats
        return task

    @cached_property
    def _chats(self) -> bool:
        """Whether the base has a chat template; without one its prompts are plain text."""
        return bool(
            AutoTokenizer.from_pretrained(model_path(self._settings.base), trust_remote_code=False).chat_template
        )

    @property
    def _protocol(self) -> TurnProtocol:
        return protocol_from_json(self._task["protocol"])

    def _build_indexes(self) -> None:
        corpora = {
            self._out / "index-train": self._world.passages(("train", "validation")),
            self._out / "index": self._world.passages(),
            self._permuted_index: self._changed.passages(),
        }
        for folder, passages in corpora.items():
            if not self._done(f"{folder.name} built"):
                build_starter_index(folder, passages, overwrite=True)
                self._note_done(f"{folder.name} built")

    def _learn(self, stage: DemoStage) -> None:
        if self._done(stage.name):
            return
        self._console.print(f"\n[bold]{stage.name[0].upper()}{stage.name[1:]}[/bold]")
        started = time.monotonic()
        files = [argument for name in stage.configs for argument in ("--config", str(CONFIGS / name))]
        arguments = [*files, *(f"--{name}={value}" for name, value in self._overrides(stage).items())]
        (sft_command if stage.examples else train_command)(arguments)
        self._train_s = time.monotonic() - started
        self._note_done(stage.name)

    def _overrides(self, stage: DemoStage) -> Mapping[str, object]:
        settings, retriever = self._settings, "data.retriever.init_args"
        found: dict[str, object] = {
            "model.base_model": settings.base,
            "trainer.default_root_dir": self._out / stage.folder,
            "data.seed": settings.seed,
            "seed_everything": settings.seed,
            "threads": settings.threads,
        }
        if self._resumes:
            found["data.agent.protocol.init_args.chat"] = str(self._chats).lower()
        else:
            found["overwrite"] = "true"
        if stage.examples:
            if num_parameters(settings.base) > LARGE:
                found["model.policy_lr"] = LARGE_LR
            found[f"{retriever}.index"] = self._out / "index-train"
            if settings.demonstrations is not None:
                limit = "data.demonstrations.init_args.benchmark.init_args.limit_per_kind"
                found[limit] = settings.demonstrations // 2
            return found
        found[f"{retriever}.retriever.init_args.index"] = self._out / "index-train"
        if any(each.examples for each in self._stages):
            found["model.policy_lora.start"] = self._out / "examples" / "agent"
        if settings.iterations is not None:
            found["trainer.max_epochs"] = settings.iterations
        return found

    def _agent(self, stage: DemoStage) -> Agent:
        """The agent of a stage, over the whole corpus; a base has the prompt and limits of the trained agent."""
        folder, base = self._out / stage.folder, self._settings.base
        if stage.folder == "base" and not self._resumes:
            folder = Path(model_path(STARTER))
        elif stage.folder == "base":
            folder = self._out / "untrained"
            folder.mkdir(exist_ok=True)
            dtype = resolve_precision(AUTO, base, device=fastest_device()).dtype
            limits, top_k = Limits(**self._task["limits"]), self._task["top_k"]
            write_spec(folder, AgentSpec(base, dtype, self._protocol, limits, top_k, retriever=None))
        return replace(load_agent(folder, retriever=self._retriever), trained=stage.folder != "base")

    def _measure(self, stage: DemoStage) -> dict[str, dict[str, Any]]:
        left = [part for part in stage.parts if not self._done(f"{stage.name}, {part}")]
        if left:
            self._console.print(f"\n[bold]{stage.name.capitalize()}[/bold]: {len(self._questions)} test questions")
            agent = self._agent(stage)
            for part in left:
                self._ask(agent, stage.name, part)
                self._note_done(f"{stage.name}, {part}")
        if self._resumes:
            for part in stage.parts:
                log = PredictionLog(self._answers(stage.name, part) / "predictions.jsonl").read()
                rollouts = sorted((found.rollout for found in log), key=lambda rollout: rollout.question.id)
                self._asked[stage.name, part] = rollouts
        row = {part: demo_report.flat_summary(summarize(self._asked[stage.name, part])) for part in stage.parts}
        demo_report.print_row(self._console, stage.name, row[Mode.SEARCH])
        return row

    def _ask(self, agent: Agent, name: str, part: str) -> None:
        """Ask all questions in one way, from the beginning: in bfloat16 those asked together may matter."""
        questions, seed = self._questions_of(part), self._settings.seed
        if part == PERMUTED:
            agent = replace(agent, retriever=HybridRetriever(str(self._permuted_index)))
        if not self._resumes:
            if part == Mode.UNRELATED:
                agent = replace(agent, retriever=UnrelatedRetriever(self._retriever.passages, seed=seed))
            self._asked[name, part] = run_benchmark(
                agent, questions, temperature=float(part == SAMPLED), seed=seed, force_search=part == Mode.FORCED_SEARCH
            )
            return
        folder = self._answers(name, part)
        shutil.rmtree(folder, ignore_errors=True)
        mode = Mode.SEARCH if part == PERMUTED else Mode(part)
        with Progress(console=self._console) as bars:
            bar = bars.add_task(part.replace("_", " "), total=len(questions))
            run_plan(
                agent,
                questions,
                Plan(modes=(mode,), seed=seed),
                folder,
                identity={"agent": name, "mode": part, **asdict(self._settings)},
                corpus=self._retriever.passages,
                on_done=lambda _: bars.advance(bar),
            )

    def _answers(self, name: str, part: str) -> Path:
        return self._out / "answers" / name.replace(" ", "-") / part

    def _done(self, name: str) -> bool:
        return self._resumes and (self._out / "done" / name.replace(" ", "-")).exists()

    def _note_done(self, name: str) -> None:
        if self._resumes:
            folder = self._out / "done"
            folder.mkdir(exist_ok=True)
            write_whole(folder / name.replace(" ", "-"), "")
