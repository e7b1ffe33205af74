"""`medagent demo --base smollm2`: the whole pipeline with a real pretrained model, in hours on two cores.

It measures the untrained model, teaches it the protocol by demonstrations written by rule, trains it with ST-PPO, and
measures after each. Every stage is kept in the folder, so the same command goes on where it was interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from medagent.agent import Agent
from medagent.agent_folder import load_agent
from medagent.agent_spec import AgentSpec, protocol_from_json, write_spec
from medagent.cli.demo import QUESTIONS_PER_KIND, flat_summary, search_whole_corpus, write_examples
from medagent.cli.pace import Pace
from medagent.cli.pretrained_report import print_table, tell_one, write_page
from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import summarize
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.reports.html import write_json
from medagent.evaluation.run import Plan, run_plan
from medagent.evaluation.statistics import compare_paired
from medagent.files import write_whole
from medagent.models.causal_lm import fastest_device
from medagent.models.precision import AUTO, settled
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import RunFolder
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.run import RUN_PARTS, sft, train
from medagent.types import Limits, Question, Rollout

# Stages, and how many minutes each takes on two cores of an AMD EPYC in float32 (studies/smollm2/log.md).
UNTRAINED, EXAMPLES, AFTER_EXAMPLES, TRAINING, AFTER_TRAINING = STAGES = (
    "the untrained model",
    "learning from examples",
    "after examples",
    "reinforcement learning",
    "after reinforcement learning",
)
MINUTES = dict(zip(STAGES, (7.0, 6.0, 20.0, 29.0, 20.0), strict=True))
CONFIGS = Path(__file__).parents[1] / "configs"
SFT_CONFIGS = ("sft/starter-smollm2.yaml",)
RL_CONFIGS = ("starter-smollm2.yaml", "algorithms/st_ppo.yaml", "critic/group.yaml", "schedules/smollm2.yaml")
MODES = (Mode.SEARCH, Mode.FORCED_SEARCH, Mode.UNRELATED)
PERMUTED = "permuted"
LEAST_DEMONSTRATIONS = 8  # of an optimizer step
LOCK = ".demo"  # a folder, which stays
# What a demonstration writes beside its training run.
PARTS = (
    *("demo.json", "done", "answers", "examples", "untrained", "report.json", "report.html"),
    *("index", "index-train", f"index-{PERMUTED}"),
)
CALLBACK = '{"class_path": "medagent.cli.pace.PaceCallback"}'


@dataclass(frozen=True)
class DemoSettings:
    """What decides the numbers of a demonstration; a folder goes on with the same ones alone.

    `demonstrations` (questions that examples are written for, half of each kind) and `iterations` none: as many as the
    configuration files say.
    """

    base: str
    seed: int
    demonstrations: int | None
    iterations: int | None
    threads: int
    questions_per_kind: int = QUESTIONS_PER_KIND

    def __post_init__(self) -> None:
        """Refuse now what would otherwise fail after the untrained model was measured."""
        for name, value, least in (
            ("seed", self.seed, 0),
            ("demonstrations", self.demonstrations, LEAST_DEMONSTRATIONS),
            ("iterations", self.iterations, 1),
            ("threads", self.threads, 0),
        ):
            if value is not None and value < least:
                raise ConfigError(f"--{name}: found {value}, wanted {least} or more.")


def run_pretrained_demo(out: Path, settings: DemoSettings, *, overwrite: bool) -> dict[str, Any]:
    """Run the demonstration in the folder `out`, or go on with it, and return the report.

    Raises:
        ConfigError: another process is at work there, or the folder holds something else.
    """
    RunFolder(out, "demo").claim()
    with RunFolder(out / LOCK, "demo").sole_writer():  # the lock of `out` itself is that of the trainings
        _begin(out, settings, overwrite=overwrite)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        return _PretrainedDemo(out, settings).run()


def _begin(out: Path, settings: DemoSettings, *, overwrite: bool) -> None:
    """Note the settings of a new demonstration, and compare those of one that goes on.

    Raises:
        ConfigError: the folder holds a demonstration with other settings.
    """
    path, wanted = out / "demo.json", asdict(settings)
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) == wanted and not overwrite:
        return
    others = [name for name in (*PARTS, *RUN_PARTS) if (out / name).exists()]
    if others and not overwrite:
        raise ConfigError(
            f"demo folder {out}: holds another demonstration ({', '.join(sorted(others)[:3])}), wanted one with "
            f"{wanted} or none. Give another --out, or --overwrite true to begin anew there."
        )
    for name in (*PARTS, *RUN_PARTS):
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        else:
            (out / name).unlink(missing_ok=True)
    write_whole(path, json.dumps(wanted, indent=2) + "\n")


class _PretrainedDemo:
    """The stages, each of which leaves what it found in the folder."""

    def __init__(self, out: Path, settings: DemoSettings) -> None:
        self._out, self._settings = out, settings
        self._console = Console(highlight=False)
        self._pace = Pace(MINUTES, self._console.print)
        self._world = World.load()
        self._changed = self._world.counterfactual("test")

    def run(self) -> dict[str, Any]:
        """All stages, then the report."""
        say = self._console.print
        say(
            f"[bold]medagent demo[/bold]: {self._settings.base}, a pretrained language model, learns to search "
            f"{len(self._world.passages()):,} passages of medical teaching. {len(self._questions)} test questions are "
            "about conditions that no training sees. Interrupt it when you like: the same command goes on "
            "(without --overwrite, which begins anew)."
        )
        self._build_indexes()
        rows = {
            "untrained": self._examine(UNTRAINED, self._untrained, modes=(Mode.SEARCH, Mode.SINGLE_SHOT)),
            "examples": self._learn(EXAMPLES, self._teach, AFTER_EXAMPLES, self._out / "examples" / "agent"),
            "trained": self._learn(TRAINING, self._train, AFTER_TRAINING, self._out / "agent"),
        }
        rollouts = {name: self._rollouts(name, Mode.SEARCH) for name in (AFTER_EXAMPLES, AFTER_TRAINING)}
        report = {
            **rows,
            "trained_against_examples": asdict(compare_paired(*map(_marks, rollouts.values()))),
            "settings": asdict(self._settings),
            "notice": NOT_ADVICE,
        }
        write_json(self._out / "report.json", report)
        print_table(self._console, report)
        chosen = tell_one(self._console, self._protocol, rollouts[AFTER_TRAINING])
        write_page(self._out, report, chosen, rollouts[AFTER_TRAINING])
        write_examples(self._out / "agent", self._questions)
        search_whole_corpus(self._out)
        say(
            f"\nReport: {self._out / 'report.html'} (for programs: {self._out / 'report.json'}). "
            f"Agent: {self._out / 'agent'}.\nNext:\n"
            f"  medagent serve --agent {self._out / 'agent'}      # a page at http://127.0.0.1:8080\n"
            "  docs/your-model-and-corpus.md: the same on your own model and corpus."
        )
        return report

    @cached_property
    def _questions(self) -> list[Question]:
        return self._world.questions("test", limit_per_kind=self._settings.questions_per_kind)

    def _questions_of(self, part: str) -> list[Question]:
        """All test questions, and half of them in a control."""
        if part == Mode.SEARCH.value:
            return self._questions
        half = max(1, self._settings.questions_per_kind // 2)
        if part == PERMUTED:
            return self._changed.questions("test", limit_per_kind=half, lures=self._world)
        return self._world.questions("test", limit_per_kind=half)

    @cached_property
    def _retriever(self) -> HybridRetriever:
        return HybridRetriever(str(self._out / "index"))

    @cached_property
    def _task(self) -> dict[str, Any]:
        """The task's configuration: what the agent is told, its limits, and how many passages a search shows."""
        found = yaml.safe_load((CONFIGS / RL_CONFIGS[0]).read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found

    @property
    def _protocol(self) -> TurnProtocol:
        return protocol_from_json(self._task["data"]["agent"]["protocol"])

    def _build_indexes(self) -> None:
        corpora = {
            "index-train": self._world.passages(("train", "validation")),
            "index": self._world.passages(),
            f"index-{PERMUTED}": self._changed.passages(),
        }
        for name, passages in corpora.items():
            if not self._done(f"{name} built"):
                build_starter_index(self._out / name, passages, overwrite=True)
                self._note_done(f"{name} built")

    def _learn(self, name: str, learn: Callable[[], None], after: str, agent: Path) -> dict[str, Any]:
        """Train, unless that is done, then measure what came out."""
        if self._done(name):
            self._pace.skip(name)
        else:
            self._console.print(f"\n[bold]{name.capitalize()}[/bold]")
            with self._pace.stage(name):
                learn()
            self._note_done(name)
        return self._examine(after, lambda: load_agent(agent, retriever=self._retriever))

    def _teach(self) -> None:
        overrides: dict[str, object] = {}
        if self._settings.demonstrations is not None:
            limit = "data.demonstrations.init_args.benchmark.init_args.limit_per_kind"
            overrides[limit] = self._settings.demonstrations // 2
        sft(self._arguments(SFT_CONFIGS, self._out / "examples", overrides))

    def _train(self) -> None:
        overrides: dict[str, object] = {"model.policy_lora.start": self._out / "examples" / "agent"}
        if self._settings.iterations is not None:
            overrides["trainer.max_epochs"] = self._settings.iterations
        train(self._arguments(RL_CONFIGS, self._out, overrides))

    def _arguments(self, configs: Sequence[str], run: Path, overrides: Mapping[str, object]) -> list[str]:
        """The command line that a person would give, and a callback that tells the time left."""
        settings = {
            "model.base_model": self._settings.base,
            "trainer.default_root_dir": run,
            "data.seed": self._settings.seed,
            "seed_everything": self._settings.seed,
            "threads": self._settings.threads,
            "trainer.callbacks+": CALLBACK,
            **overrides,
        }
        files = [argument for name in configs for argument in ("--config", str(CONFIGS / name))]
        return [*files, *self._retriever_arguments(configs), *(f"--{name}={value}" for name, value in settings.items())]

    def _retriever_arguments(self, configs: Sequence[str]) -> list[str]:
        index = self._out / "index-train"
        nested = "init_args.retriever.init_args" if configs == RL_CONFIGS else "init_args"
        return [f"--data.retriever.{nested}.index={index}"]

    def _untrained(self) -> Agent:
        """The base by itself, with the prompt, limits and index of the trained agent."""
        task, folder = self._task["data"]["agent"], self._out / "untrained"
        base = self._settings.base
        folder.mkdir(exist_ok=True)
        spec = AgentSpec(
            base_model=base,
            dtype=settled(AUTO, base, device=fastest_device()).dtype,
            protocol=self._protocol,
            limits=Limits(**task["limits"]),
            top_k=task["top_k"],
            retriever=None,
        )
        write_spec(folder, spec)
        return load_agent(folder, retriever=self._retriever)

    def _examine(self, name: str, load: Callable[[], Agent], modes: tuple[Mode, ...] = MODES) -> dict[str, Any]:
        """Greedy answers of an agent in each mode and, where it is trained, over permuted facts."""
        parts = [mode.value for mode in modes] + [PERMUTED] * (modes == MODES)
        if left := [part for part in parts if not self._done(f"{name}, {part}")]:
            self._console.print(
                f"\n[bold]{name.capitalize()}[/bold]: {len(self._questions)} test questions, half of them in a control"
            )
            agent = load()
            sizes = [len(self._questions_of(part)) for part in parts]
            with self._pace.stage(name):
                for part in left:
                    at = parts.index(part)
                    self._ask(agent, name, part, before=sum(sizes[:at]) / sum(sizes), share=sizes[at] / sum(sizes))
                    self._note_done(f"{name}, {part}")
        else:
            self._pace.skip(name)
        row = {part: flat_summary(summarize(self._rollouts(name, part))) for part in parts}
        found = row[Mode.SEARCH.value]
        kinds = ", ".join(f"{kind.replace('_', '-')} {share:.0%}" for kind, share in found["by_type"].items())
        self._console.print(
            f"   {name}: {found['accuracy']:.1%} [{found['ci_low']:.1%}, {found['ci_high']:.1%}] right "
            f"({kinds}), read leniently {found['lenient_accuracy']:.1%}; {found['searches_per_question']:.2f} searches "
            "each".replace("[", "\\[")
        )
        return row

    def _ask(self, agent: Agent, name: str, part: str, *, before: float, share: float) -> None:
        """All questions in one mode. What an interrupted stage answered is asked again.

        In bfloat16 an answer may depend on which questions are asked beside it.
        """
        folder = self._answers(name, part)
        shutil.rmtree(folder, ignore_errors=True)
        questions, mode = self._questions_of(part), Mode.SEARCH
        if part == PERMUTED:
            agent = replace(agent, retriever=HybridRetriever(str(self._out / f"index-{PERMUTED}")))
        else:
            mode = Mode(part)
        answered: list[bool] = []

        def on_done(prediction: Prediction) -> None:
            answered.append(grade(prediction.rollout).correct)
            learnt = f"{part.replace('_', ' ')}: {sum(answered) / len(answered):.0%} of {len(answered)} right"
            self._pace.update(before + share * len(answered) / len(questions), learnt)

        run_plan(
            agent,
            questions,
            Plan(modes=(mode,), seed=self._settings.seed),
            folder,
            identity={"agent": name, "mode": part, **asdict(self._settings)},
            corpus=self._retriever.passages,
            on_done=on_done,
        )

    def _rollouts(self, name: str, part: str) -> list[Rollout]:
        found = PredictionLog(self._answers(name, part) / "predictions.jsonl").read()
        return sorted((prediction.rollout for prediction in found), key=lambda rollout: rollout.question.id)

    def _answers(self, name: str, part: str) -> Path:
        return self._out / "answers" / name.replace(" ", "-") / part

    def _done(self, name: str) -> bool:
        return (self._out / "done" / name.replace(" ", "-")).exists()

    def _note_done(self, name: str) -> None:
        folder = self._out / "done"
        folder.mkdir(exist_ok=True)
        write_whole(folder / name.replace(" ", "-"), "")


def _marks(rollouts: Sequence[Rollout]) -> dict[str, bool]:
    return {rollout.question.id: grade(rollout).correct for rollout in rollouts}
