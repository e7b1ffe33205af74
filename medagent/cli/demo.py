"""`medagent demo`: index a corpus, measure a model, train it with ST-PPO, measure again, and report.

A table of stages describes each base. The starter takes minutes and begins anew each time. A pretrained model takes
hours on two cores; each of its stages is kept in the folder, so the same command resumes where it was interrupted.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from transformers import AutoTokenizer

from medagent.agent import Agent
from medagent.agent_folder import load_agent
from medagent.agent_spec import AgentSpec, protocol_from_json, write_spec
from medagent.cli import demo_report
from medagent.cli.demo_report import PERMUTED, SAMPLED
from medagent.cli.evaluate import comparison_text, shown_table
from medagent.config_files import packaged_configs
from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import Summary, summarize
from medagent.evaluation.modes import Mode
from medagent.evaluation.run import Plan, run_plan
from medagent.evaluation.statistics import compare_paired
from medagent.evaluation.viewer.recorded import RecordedRun
from medagent.evaluation.viewer.server import exported
from medagent.files import write_json, write_whole
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import fastest_device
from medagent.models.precision import AUTO, num_parameters, resolve_precision
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import RunFolder
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.callbacks.collapse_monitor import describe_alarms
from medagent.training.command import sft_command, train_command
from medagent.training.run import RUN_PARTS, discard
from medagent.types import Limits, Rollout

CONFIGS = packaged_configs()
LOCK = ".demo"  # a folder, which stays
EXAMPLES = "examples"  # the folder of the training by examples
# An optimizer step has 8 demonstrations.
LEAST = {"seed": 0, "demonstrations": 8, "iterations": 1, "threads": 0, "questions_per_kind": 1}
# Larger bases than LARGE parameters learn from examples at LARGE_LR. The packaged rate is SmolLM2's.
LARGE, LARGE_LR = 300_000_000, 3.0e-4
# The files of a demonstration beside its training run.
PARTS = (
    *("demo.json", "answers", "examples", "untrained", "report.json", "report.html"),
    *("index", "index-train", "index-permuted"),
)


@dataclass(frozen=True)
class DemoStage:
    """A training by `config` in `folder`, or questions in some ways (`parts`) to the agent there, or to the "base".

    `column` names an agent's figures in the report.
    """

    name: str
    folder: str
    config: str = ""
    column: str = ""
    parts: tuple[str, ...] = ()


CONTROLS = (Mode.SEARCH, SAMPLED, Mode.FORCED_SEARCH, Mode.UNRELATED)
AFTER = (Mode.SEARCH, Mode.FORCED_SEARCH, Mode.UNRELATED, PERMUTED)
STARTER_STAGES = (
    DemoStage("before training", "base", column="before", parts=CONTROLS),
    DemoStage("training with ST-PPO", ".", "experiments/demo.yaml"),
    DemoStage("after training", "agent", column="after", parts=(*CONTROLS, PERMUTED)),
)
PRETRAINED_STAGES = (
    DemoStage("the untrained model", "base", column="untrained", parts=(Mode.SEARCH, Mode.SINGLE_SHOT)),
    DemoStage("learning from examples", EXAMPLES, "sft/starter-smollm2.yaml"),
    DemoStage("after examples", "examples/agent", column="examples", parts=AFTER),
    DemoStage("reinforcement learning", ".", "experiments/starter-smollm2.yaml"),
    DemoStage("after reinforcement learning", "agent", column="trained", parts=AFTER),
)


@dataclass(frozen=True)
class DemoSettings:
    """The settings that decide a demonstration's numbers. A folder resumes only with the same settings.

    `demonstrations` (questions that examples are written for) and `iterations` are None for those of the files.
    """

    base: str
    seed: int
    demonstrations: int | None
    iterations: int | None
    threads: int
    questions_per_kind: int = 200

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name}: found {value}, wanted {least} or more.")


def begin(out: Path, settings: DemoSettings, *, overwrite: bool) -> None:
    """Note the settings of a new demonstration. Raises `ConfigError` where the folder holds one with others."""
    path, wanted = out / "demo.json", asdict(settings)
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if settings.base == STARTER:
        if found and found["base"] != STARTER:
            raise ConfigError(
                f"demo folder {out}: holds the demo of a pretrained model, hours of work that this one would replace. "
                "Give another --out."
            )
    elif found == wanted and not overwrite:
        return
    else:
        others = [name for name in (*PARTS, *RUN_PARTS) if (out / name).exists()]
        if others and not overwrite:
            raise ConfigError(
                f"demo folder {out}: holds another demonstration ({', '.join(sorted(others)[:3])}), wanted one with "
                f"{wanted} or none. Give another --out, or --overwrite true to begin anew there."
            )
    discard(out, (*PARTS, *RUN_PARTS))
    write_json(path, wanted)


def run_demo(out: Path, settings: DemoSettings, *, overwrite: bool = False) -> dict[str, Any]:
    """Run the demonstration in the folder `out`, or resume that of a pretrained model, and return the report."""
    RunFolder(out, "demo").claim()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with RunFolder(out / LOCK, "demo").sole_writer():  # the lock of `out` itself is that of the trainings
        begin(out, settings, overwrite=overwrite)
        return _Demo(out, settings).run()


class _Demo:
    def __init__(self, out: Path, settings: DemoSettings) -> None:
        self._out, self._settings = out, settings
        self._pretrained = settings.base != STARTER
        self._stages = PRETRAINED_STAGES if self._pretrained else STARTER_STAGES
        self._console, self._world = Console(highlight=False), World.load()
        self._questions = self._world.questions("test", limit_per_kind=settings.questions_per_kind)
        self._changed = self._world.counterfactual("test")

    def run(self) -> dict[str, Any]:
        base = f"{self._settings.base}, a pretrained language model,"
        learner = base if self._pretrained else "a small language model, taught on made-up names only,"
        self._console.print(
            f"[bold]medagent demo[/bold]: {learner} learns to search {len(self._world.passages()):,} passages of "
            f"medical teaching. {len(self._questions)} test questions are about conditions that no training sees."
        )
        if self._pretrained:
            self._console.print("Interrupt it when you like: the same command resumes (without --overwrite).")
        for name, passages in (
            ("index-train", self._world.passages(("train", "validation"))),
            ("index", self._world.passages()),
            ("index-permuted", self._changed.passages()),
        ):
            build_starter_index(self._out / name, passages)
        columns: dict[str, dict[str, Summary]] = {}
        searched: list[list[Rollout]] = []  # the answers of each column
        for stage in self._stages:
            asked = f": {len(self._questions)} test questions" if stage.parts else ""
            self._console.print(f"\n[bold]{stage.name[0].upper()}{stage.name[1:]}[/bold]{asked}")
            if stage.config:
                started, learn = time.monotonic(), sft_command if stage.folder == EXAMPLES else train_command
                overrides = (f"--{name}={value}" for name, value in self._overrides(stage).items())
                learn([f"--config={CONFIGS / stage.config}", *overrides])
                self._console.print(f"   {stage.name}: {time.monotonic() - started:.0f} s")
                continue
            ready = self._agent(stage)
            answers = {part: self._ask(ready, stage.name, part) for part in stage.parts}
            searched.append(answers[Mode.SEARCH])
            columns[stage.column] = figures = {part: summarize(found) for part, found in answers.items()}
            self._console.print(f"   {stage.name}: {demo_report.line_of(figures[Mode.SEARCH])}", markup=False)
        *_, before, rollouts = searched
        compared = compare_paired(*({each.question.id: grade(each).correct for each in a} for a in (before, rollouts)))
        table = demo_report.report_table(columns, halved=self._pretrained)
        *_, a, b = table.head
        said = f"A is {a}, B {b}. {comparison_text(compared)}"
        report = {
            **{name: {part: found.to_json() for part, found in parts.items()} for name, parts in columns.items()},
            "comparison": asdict(compared),
            "settings": asdict(self._settings),
            "notice": NOT_ADVICE,
            "conclusions": [
                f"{self._settings.base} learnt to search a medical corpus. Test questions are about conditions that no "
                "training saw.",
                said,
                describe_alarms(self._out),
            ],
            "tables": [asdict(table)],
        }
        write_json(self._out / "report.json", report)
        write_whole(self._out / "report.html", exported([RecordedRun(self._out)]))
        self._console.print(shown_table(table), Text(said))
        demo_report.show_one(self._console, self._protocol, rollouts, self._retriever)
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

    @cached_property
    def _retriever(self) -> HybridRetriever:
        return HybridRetriever(str(self._out / "index"))

    @cached_property
    def _task(self) -> dict[str, Any]:
        found = yaml.safe_load((CONFIGS / self._stages[-2].config).read_text(encoding="utf-8"))
        task: dict[str, Any] = found["data"]["agent"]
        task["protocol"]["init_args"]["chat"] = self._chats
        return task

    @cached_property
    def _chats(self) -> bool:
        """Whether the base has a chat template; without one its prompts are plain text."""
        path = model_path(self._settings.base)
        return bool(AutoTokenizer.from_pretrained(path, trust_remote_code=False).chat_template)

    @property
    def _protocol(self) -> TurnProtocol:
        return protocol_from_json(self._task["protocol"])

    def _overrides(self, stage: DemoStage) -> Mapping[str, object]:
        settings, retriever = self._settings, "data.retriever.init_args"
        found: dict[str, object] = {
            "model.base_model": settings.base,
            "trainer.default_root_dir": self._out / stage.folder,
            "data.seed": settings.seed,
            "seed_everything": settings.seed,
            "threads": settings.threads,
            "data.agent.protocol.init_args.chat": str(self._chats).lower(),
        }
        if stage.folder == EXAMPLES:
            if num_parameters(settings.base) > LARGE:
                found["model.policy_lr"] = LARGE_LR
            found[f"{retriever}.index"] = self._out / "index-train"
            if settings.demonstrations is not None:
                limit = "data.demonstrations.init_args.benchmark.init_args.limit_per_kind"
                found[limit] = settings.demonstrations // 2
            return found
        found[f"{retriever}.retriever.init_args.index"] = self._out / "index-train"
        if self._pretrained:
            found["model.policy_lora.start"] = self._out / EXAMPLES / "agent"
        if settings.iterations is not None:
            found["trainer.max_epochs"] = settings.iterations
        return found

    def _agent(self, stage: DemoStage) -> Agent:
        """The agent of a stage, over the whole corpus; a base has the prompt and limits of the trained agent."""
        folder, base = self._out / stage.folder, self._settings.base
        if stage.folder == "base":
            folder = self._out / "untrained"
            folder.mkdir(exist_ok=True)
            dtype = resolve_precision(AUTO, base, device=fastest_device()).dtype
            limits, top_k = Limits(**self._task["limits"]), self._task["top_k"]
            write_spec(folder, AgentSpec(base, dtype, self._protocol, limits, top_k, retriever=None))
        return replace(load_agent(folder, retriever=self._retriever), trained=stage.folder != "base")

    def _ask(self, agent: Agent, name: str, part: str) -> list[Rollout]:
        """The answers to all questions in one way, of which a stopped demonstration has some already.

        With a pretrained model a control asks half of the questions.
        """
        mode = Mode.SEARCH if part in (PERMUTED, SAMPLED) else Mode(part)
        limit, world, lures = self._settings.questions_per_kind, self._world, None
        if self._pretrained and part != Mode.SEARCH:
            limit = max(1, limit // 2)
        if part == PERMUTED:
            agent = replace(agent, retriever=HybridRetriever(str(self._out / "index-permuted")))
            world, lures = self._changed, self._world
        questions = world.questions("test", limit_per_kind=limit, lures=lures)
        with Progress(console=self._console) as bars:
            bar = bars.add_task(part.replace("_", " "), total=len(questions))
            answered = run_plan(
                agent,
                questions,
                Plan(modes=(mode,), temperature=float(part == SAMPLED), seed=self._settings.seed),
                self._out / "answers" / name.replace(" ", "-") / part,
                identity={"agent": name, "mode": part, **asdict(self._settings)},
                corpus=self._retriever.passages,
                on_found=lambda found: bars.advance(bar, len(found)),
                on_done=lambda _: bars.advance(bar),
            )
        return [each.rollout for each in answered]
