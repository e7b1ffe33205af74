"""`medagent demo`: the whole pipeline on the packaged starter world, in minutes on a laptop.

It builds the indexes, measures the base policy, trains it with ST-PPO, measures again, runs the controls, and writes a
report. The test questions are about conditions that neither the warm start nor the training saw.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from medagent.agent import Agent
from medagent.agent_folder import load_agent
from medagent.agent_spec import read_spec, write_spec
from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import Summary, summarize
from medagent.evaluation.reports.html import Chart, Table, write_html, write_json
from medagent.evaluation.run import run_benchmark
from medagent.evidence.answers import checked
from medagent.evidence.check import EvidenceCheck
from medagent.models.base_models import STARTER, model_path
from medagent.retrieval.controls import UnrelatedRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import RunFolder
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.training.callbacks.collapse_monitor import describe_alarms
from medagent.training.callbacks.export import read_metrics
from medagent.training.run import train
from medagent.types import Question, Rollout

QUESTIONS_PER_KIND = 200


def run_demo(out: Path, *, seed: int, iterations: int | None, threads: int) -> dict[str, Any]:
    """Run the demonstration in the folder `out`, replacing an earlier one there, and return the report."""
    if (out / "demo.json").exists():
        raise ConfigError(
            f"demo folder {out}: holds the demo of a pretrained model, hours of work that this one would replace. "
            "Give another --out."
        )
    RunFolder(out, "demo").claim()
    console, started = Console(highlight=False), time.monotonic()
    if threads:
        torch.set_num_threads(threads)
    world = World.load()
    counterfactual = world.counterfactual("test")
    console.print(
        f"[bold]medagent demo[/bold]: {len(world.conditions)} conditions, {len(world.passages()):,} passages of "
        "medical teaching. A small language model, taught on made-up names only, learns to search them."
    )
    corpora = {
        "index-train": world.passages(("train", "validation")),
        "index": world.passages(),
        "index-counterfactual": counterfactual.passages(),
    }
    for name, passages in corpora.items():
        build_starter_index(out / name, passages, overwrite=True)
    retriever = HybridRetriever(str(out / "index"))
    questions = world.questions("test", limit_per_kind=QUESTIONS_PER_KIND)
    console.print(f"Indexes built. {len(questions)} test questions on conditions that training never sees.\n")

    examiner = _Examiner(questions, retriever, seed=seed)
    console.print("[bold]1. Before training[/bold]")
    before = examiner.examine(load_agent(Path(model_path(STARTER)), retriever=retriever))
    _print_row(console, before)

    console.print("\n[bold]2. Training with ST-PPO[/bold] (turn-level ratios, clipping-bias correction)")
    train_started = time.monotonic()
    train(_train_arguments(out, seed=seed, iterations=iterations, threads=threads))
    train_s = time.monotonic() - train_started

    console.print("\n[bold]3. After training[/bold]")
    agent = load_agent(out / "agent", retriever=retriever)
    after = examiner.examine(agent)
    _print_row(console, after)
    after["counterfactual"] = _follow_corpus(agent, world, counterfactual, out / "index-counterfactual", seed=seed)

    _print_table(console, before, after)
    chosen = showcase(examiner.rollouts)
    console.print("\n[bold]4. One question aloud[/bold]")
    show_question(console, chosen.question)
    printer = TurnPrinter(console, agent.protocol, agent.retriever)
    for turn in chosen.turns:
        printer(turn)
    show_answer(console, checked(chosen, EvidenceCheck(shown="all")))

    report = {
        "before": before,
        "after": after,
        "train_seconds": round(train_s, 1),
        "total_seconds": round(time.monotonic() - started, 1),
        "seed": seed,
        "iterations": len(read_metrics(out)),
        "threads": torch.get_num_threads(),
    }
    write_json(out / "report.json", report)
    _write_page(out, report, chosen, examiner.rollouts)
    write_examples(out / "agent", questions)
    search_whole_corpus(out)
    console.print(f"\nReport: {out / 'report.html'} (for programs: {out / 'report.json'}). Agent: {out / 'agent'}.")
    console.print(
        "Next:\n"
        f"  medagent ask --agent {out / 'agent'} 'What is the first-line drug for gout?'\n"
        f"  medagent serve --agent {out / 'agent'}      # a page at http://127.0.0.1:8080\n"
        "  README: train on your own model and corpus."
    )
    return report


def write_examples(agent: Path, questions: list[Question]) -> None:
    """Write the questions that the page of `medagent serve` offers, and those of its study mode.

    The page offers three test questions of each kind, the third without its options. Study takes all.
    """
    rows = []
    for kind in sorted({each.kind for each in questions}):
        for number, each in enumerate([each for each in questions if each.kind == kind][:3]):
            rows.append({"question": each.text, "options": each.options if number < 2 else []})
    quiz = [{"question": each.text, "options": each.options, "answer": each.answer} for each in questions]
    (agent / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in quiz), encoding="utf-8")
    (agent / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class _Examiner:
    """Measures an agent the same way before and after training, and keeps the last greedy rollouts."""

    def __init__(self, questions: list[Question], retriever: HybridRetriever, *, seed: int) -> None:
        self._questions, self._seed = questions, seed
        self._unrelated = UnrelatedRetriever(retriever.passages, seed=seed)
        self.rollouts: list[Rollout] = []

    def _run(self, agent: Agent, *, temperature: float = 0.0, force_search: bool = False) -> list[Rollout]:
        return run_benchmark(
            agent, self._questions, temperature=temperature, seed=self._seed, force_search=force_search
        )

    def examine(self, agent: Agent) -> dict[str, Any]:
        """Greedy accuracy and its controls, as the report has them."""
        self.rollouts = self._run(agent)
        greedy = summarize(self.rollouts)
        sampled = summarize(self._run(agent, temperature=1.0))
        forced = summarize(self._run(agent, force_search=True))
        blind = summarize(self._run(replace(agent, retriever=self._unrelated)))
        return {
            **flat_summary(greedy),
            "sampled_accuracy": sampled.overall.accuracy,
            "sampled_by_type": {kind: part.accuracy for kind, part in sampled.by_type.items()},
            "forced_search_accuracy": forced.overall.accuracy,
            "no_search_accuracy": blind.overall.accuracy,
            "no_search_unparsed": blind.unparsed + blind.no_answer,
        }


def flat_summary(summary: Summary) -> dict[str, Any]:
    """A summary with plain accuracies by type, and their intervals beside them."""
    row = summary.to_json()
    row["by_type_intervals"] = row["by_type"]
    row["by_type"] = {kind: part.accuracy for kind, part in summary.by_type.items()}
    row["unparsed"] = summary.unparsed + summary.no_answer
    return row


def _train_arguments(out: Path, *, seed: int, iterations: int | None, threads: int) -> list[str]:
    """The command line that a person would give `medagent train`."""
    overrides: dict[str, object] = {
        "trainer.default_root_dir": out,
        "data.retriever.init_args.retriever.init_args.index": out / "index-train",
        "data.seed": seed,
        "seed_everything": seed,
        "threads": threads,
        "overwrite": "true",
    }
    if iterations is not None:
        overrides["trainer.max_epochs"] = iterations
    configs = [argument for path in demo_configs() for argument in ("--config", str(path))]
    return [*configs, *(f"--{name}={value}" for name, value in overrides.items())]


def demo_configs() -> list[Path]:
    """The configuration files of the demonstration.

    They set the task, the algorithm, its rate and length, what its critic sees, and the collapse monitor.
    """
    configs = Path(__file__).parents[1] / "configs"
    names = (
        "starter.yaml",
        "algorithms/st_ppo.yaml",
        "schedules/demo.yaml",
        "critic/group.yaml",
        "collapse/report.yaml",
    )
    return [configs / name for name in names]


def _follow_corpus(agent: Agent, world: World, changed: World, index: Path, *, seed: int) -> dict[str, Any]:
    """Ask about a corpus of permuted facts. The answers show whether the agent follows what it reads."""
    questions = changed.questions("test", limit_per_kind=QUESTIONS_PER_KIND, lures=world)
    rollouts = run_benchmark(replace(agent, retriever=HybridRetriever(str(index))), questions, seed=seed)
    summary = summarize(rollouts)
    truths = {condition.name: condition.facts for condition in world.conditions}
    to_truth = 0
    for rollout in rollouts:
        meta, letter = rollout.question.meta, grade(rollout).letter
        truth = truths[meta["condition"]][meta["relation"]]
        to_truth += letter is not None and rollout.question.options[rollout.question.letters.index(letter)] == truth
    return {
        "follows_corpus": summary.overall.accuracy,
        "ci_low": summary.overall.ci_low,
        "ci_high": summary.overall.ci_high,
        "follows_world": to_truth / len(rollouts),
        "n": len(rollouts),
    }


def search_whole_corpus(out: Path) -> None:
    """Let the exported agent search the whole corpus; it was trained on a part of it."""
    spec = read_spec(out / "agent")
    assert spec.retriever is not None
    write_spec(out / "agent", replace(spec, retriever=replace(spec.retriever, index=str((out / "index").resolve()))))


def _print_row(console: Console, row: dict[str, Any]) -> None:
    kinds = ", ".join(f"{kind.replace('_', '-')} {share:.0%}" for kind, share in row["by_type"].items())
    console.print(
        f"   accuracy {row['accuracy']:.1%} (95% interval {row['ci_low']:.1%} to {row['ci_high']:.1%}, n = "
        f"{row['n']}): {kinds}; {row['searches_per_question']:.2f} searches per question"
    )


def _rows(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    def interval(row: dict[str, Any]) -> str:
        return f"{row['accuracy']:.1%} [{row['ci_low']:.1%}, {row['ci_high']:.1%}]"

    rows = [("accuracy, greedy [95% interval]", interval(before), interval(after))]
    for name, key in (("one-hop", "one_hop"), ("two-hop", "two_hop")):
        rows.append((f"  {name} questions", f"{before['by_type'][key]:.1%}", f"{after['by_type'][key]:.1%}"))
    shares = {
        "accuracy, sampled": "sampled_accuracy",
        "with a search forced on the first turn": "forced_search_accuracy",
        "searches return unrelated passages (chance 25%)": "no_search_accuracy",
        "answers that cite a passage": "cited_share",
    }
    rows += [(name, f"{before[key]:.1%}", f"{after[key]:.1%}") for name, key in shares.items()]
    rows.append(
        ("searches per question", f"{before['searches_per_question']:.2f}", f"{after['searches_per_question']:.2f}")
    )
    rows.append(("unparsed or missing answers", str(before["unparsed"]), str(after["unparsed"])))
    follows = after["counterfactual"]["follows_corpus"]
    rows.append(("follows a corpus of permuted facts", "", f"{follows:.1%}"))
    return rows


def _print_table(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    table = RichTable("test questions, conditions never trained on", "before", "after")
    for row in _rows(before, after):
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console.print(table)


def showcase(rollouts: list[Rollout]) -> Rollout:
    """A right two-hop answer with a citation, if there is one; the same for a given seed."""
    good = [r for r in rollouts if grade(r).correct and r.question.kind == "two_hop" and r.num_searches > 1]
    return random.Random(0).choice(good or rollouts)


def _write_page(out: Path, report: dict[str, Any], chosen: Rollout, rollouts: list[Rollout]) -> None:
    metrics = read_metrics(out)

    def curve(name: str) -> list[float]:
        return [row[name] for row in metrics if name in row]

    charts = [
        Chart("success of sampled rollouts", {"training": curve("reward/success")}, percent=True),
        Chart("searches per question", {"training": curve("rollout/searches")}),
        Chart(
            "clip fraction and correction scale",
            {n: curve(f"policy/{n}") for n in ("clip_fraction", "clip_bias_scale")},
        ),
        Chart("critic: explained variance", {"fresh rollouts": curve("critic/explained_variance")}),
        Chart("KL to the base policy (k3)", {"per token": curve("kl/reference")}),
        Chart("entropy (nats per token)", {"policy": curve("policy/entropy")}),
    ]
    wrong = [rollout for rollout in rollouts if not grade(rollout).correct][:3]
    right = [rollout for rollout in rollouts if grade(rollout).correct][:3]
    write_html(
        out / "report.html",
        title="medagent demo",
        summary=f"A small language model learnt to search a medical corpus in {report['train_seconds']:.0f} s of "
        f"training (seed {report['seed']}). Test questions are about conditions that it never saw. "
        f"{describe_alarms(out)}",
        tables=[Table("Before and after", ("", "before", "after"), _rows(report["before"], report["after"]))],
        charts=charts,
        rollouts={"One question": [chosen], "Answered rightly": right, "Answered wrongly": wrong},
    )
