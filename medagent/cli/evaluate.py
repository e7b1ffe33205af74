"""The work of `medagent evaluate`, with its progress and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from medagent.agent import Agent
from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource, benchmark_digest
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import ModeReport, report_mode
from medagent.evaluation.modes import FINDING, SEARCHING, Mode, baselines
from medagent.evaluation.names import Ask
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.prompting import TOLD, asked_so, solved_examples
from medagent.evaluation.reports.conclusions import conclusions
from medagent.evaluation.reports.html import Table, write_evaluation_html, write_json
from medagent.evaluation.reports.tables import curves, markdown, open_table, overview, recall_table, tables, trust_table
from medagent.evaluation.run import Plan, run_plan
from medagent.evaluation.search_recall import question_rankings
from medagent.evaluation.statistics import wilson_interval
from medagent.evaluation.trust.injections import obeyed_anyway
from medagent.evaluation.usage import counted, read_usage, usage_line
from medagent.evidence.support import Entailment, LexicalRule, NLIModel
from medagent.loading import open_agent
from medagent.models.base_models import STARTER, base_sha256, is_gguf, model_path
from medagent.models.text_length import check_text_length
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.passages import Passage
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.sharded import ShardedRetriever
from medagent.retrieval.tools import code_digest, corpus_of
from medagent.types import Question, StopReason

LARGE = 64 * 2**20  # bytes; larger files are compared by size and time


def evaluate_agent(
    agent: str,
    source: BenchmarkSource,
    plan: Plan,
    *,
    index: str | None,
    model: str,
    parameters: dict[str, Any],
    ask: Ask,
    shots: int,
    shots_path: str,
    entailment: str,
    price: Mapping[str, float],
    tools: Sequence[str],
    limits: Mapping[str, int],
    concurrency: int,
    overwrite: bool,
    out: Path,
) -> dict[Mode, ModeReport]:
    """Ask and grade the questions, print the figures, and write predictions, reports and config.json to `out`."""
    if not set(price) <= {"input", "output"} or any(value < 0 for value in price.values()):
        raise InputError(f"price: found {dict(price)}, wanted input and output, each 0 or more per million tokens.")
    console = Console(highlight=False)
    entails: Entailment = NLIModel(entailment) if entailment else LexicalRule()
    questions, passages, notes = source.questions()
    ready = with_limits(
        open_agent(
            agent, index=index, lockstep=True, model=model, parameters=parameters, tools=tools, must_search=False
        ),
        limits,
    )
    ready = asked_so(ready, agent, ask, plan.modes, solved_examples(source, questions, shots, shots_path))
    searched = corpus_of(ready.retriever)
    searching = [mode.value for mode in plan.modes if mode in SEARCHING]
    if isinstance(searched, NoRetriever) and searching:
        raise InputError(
            f"mode {searching[0]}: there is no index to search. Give one with --index, or choose other --modes. "
            "The packaged one is made by: medagent index build starter --out indexes/starter"
        )
    corpus: Sequence[Passage] = searched.passages if isinstance(searched, HybridRetriever | ShardedRetriever) else []
    untrained = agent.startswith("hf:")  # its dtype is the machine's choice
    settings = {
        "agent": agent,
        "agent_sha256": fingerprint(agent),
        "index_sha256": index_fingerprint(ready.retriever),
        "model": model,
        **({"parameters": parameters} if parameters else {}),
        **({"ask": ask} if ask != "tags" else {}),
        **({"shots": shots, "shots_path": shots_path} if shots else {}),
        **({"dtype": str(ready.policy.model.dtype)} if untrained and isinstance(ready.policy, HFPolicy) else {}),
        "index": index,
        **({"tools": {tool: code_digest(tool) for tool in tools}} if tools else {}),
        "limits": asdict(ready.limits),
        **{name: value for name, value in asdict(source).items() if name != "benchmark_args" or value},
        **({"benchmark_sha256": digest} if (digest := benchmark_digest(source.benchmark)) else {}),
        "modes": [mode.value for mode in plan.modes],
        "samples": plan.samples,
        "rotations": plan.rotations,
        "temperature": plan.temperature,
        "seed": plan.seed,
    }
    console.print(
        f"{len(questions)} questions of {source.benchmark}, agent {agent}, modes {', '.join(settings['modes'])}, "
        f"asked {TOLD[ask]}.",
        markup=False,
    )
    for note, count in notes.items():
        console.print(f"  note: {count} {note}", markup=False)
    predictions = _run_with_progress(
        ready, questions, plan, out, settings, corpus or passages, passages, concurrency, overwrite, console
    )
    reports = {mode: report_mode([p for p in predictions if p.mode == mode.value], entails) for mode in plan.modes}
    used = read_usage(out)
    settings["entailment"] = entails.label
    write_reports(out, settings, notes, reports, questions, predictions, {**used, "price": dict(price)})
    console.print(shown_table(overview(reports, questions)))
    console.print("[dim]none: no one option named. gold: all gold passages found. cited: citation recall.[/dim]")
    for table in (trust_table(reports), open_table(reports), recall_table(reports)):
        if table.rows:
            console.print(shown_table(table))
    for line in (_obeyed_anyway(predictions), usage_line(used, price, answers=len(predictions))):
        if line:
            console.print(line)
    for mode, report in reports.items():
        if report.sampling:
            sampled = report.sampling
            console.print(
                f"{mode.value}, {sampled.samples} samples: mean {sampled.mean_accuracy:.1%} "
                f"[{100 * sampled.ci_low:.1f}, {100 * sampled.ci_high:.1f}], majority vote "
                f"{sampled.majority_vote:.1%}, pass@{sampled.samples} {sampled.pass_at_k[sampled.samples]:.1%}; "
                "the table above has the first sample alone."
            )
    too_long = sum(not p.rollout.turns and p.rollout.stop_reason is StopReason.MAX_TOTAL_TOKENS for p in predictions)
    if too_long:
        console.print(
            f"[yellow]{too_long} of {len(predictions)} prompts do not fit into max_total_tokens = "
            f"{ready.limits.max_total_tokens} and count as no answer. Raise it with --limits.[/yellow]"
        )
    console.print(f"\nReport: {out / 'report.html'}  table for a paper: {out / 'report.md'}")
    return reports


def _obeyed_anyway(predictions: Sequence[Prediction]) -> str:
    """What becomes of the questions with an obeyed passage in mode search; empty where it was not asked."""
    rollouts = {
        mode: [p.rollout for p in predictions if p.mode == mode.value and not p.rotation and not p.rollout.sample]
        for mode in (Mode.INJECTED, Mode.SEARCH)
    }
    anyway, obeyed = obeyed_anyway(rollouts[Mode.INJECTED], rollouts[Mode.SEARCH])
    return f"Of {obeyed} planted passages that were obeyed, {anyway} got what they want without them too." * bool(
        obeyed
    )


def with_limits(agent: Agent, limits: Mapping[str, int]) -> Agent:
    """The agent with other limits."""
    known = asdict(agent.limits)
    wrong = {name: value for name, value in limits.items() if name not in known or value < 1}
    if wrong:
        raise InputError(f"limits: found {wrong}, wanted numbers above 0 for some of {', '.join(known)}.")
    changed = replace(agent, limits=replace(agent.limits, **limits))
    if isinstance(agent.policy, HFPolicy):
        check_text_length(agent.policy.model.config, changed.limits.max_total_tokens, "this model")
    return changed


def _run_with_progress(
    agent: Agent,
    questions: Sequence[Question],
    plan: Plan,
    out: Path,
    settings: dict[str, Any],
    corpus: Sequence[Passage],
    passages: Sequence[Passage],
    concurrency: int,
    overwrite: bool,
    console: Console,
) -> list[Prediction]:
    total = len(plan.modes) * sum(len(plan.jobs(question)) for question in questions)
    columns = (
        TextColumn("{task.description:14s}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    counts: dict[str, tuple[int, int]] = {}
    with counted(agent, out) as used, Progress(*columns, console=console) as bars:
        task = bars.add_task("asking", total=total, said="")

        def new(prediction: Prediction) -> None:
            used.asked += 1
            show(prediction)

        def show(prediction: Prediction) -> None:
            right, asked = counts.get(prediction.mode, (0, 0))
            # One answer per question, or the interval would be too narrow.
            if prediction.rotation == prediction.rollout.sample == 0:
                right, asked = right + grade(prediction.rollout).correct, asked + 1
            counts[prediction.mode] = right, asked
            low, high = wilson_interval(right, asked)
            said = f"accuracy {right / max(1, asked):.1%} [{low:.1%}, {high:.1%}]"
            bars.update(task, advance=1, description=prediction.mode, said=said)

        def go_on(found: Sequence[Prediction]) -> None:
            used.goes_on = bool(found)
            if found:
                bars.console.print(f"Going on: {len(found)} of {total} are done.")
            for prediction in found:
                show(prediction)

        evidence = gold_passages(agent.retriever, questions, passages)
        searching = any(mode in FINDING for mode in plan.modes)
        most = agent.limits.max_turns * agent.top_k
        rankings = question_rankings(agent.retriever, questions, most=most) if searching else {}
        return run_plan(
            agent,
            questions,
            plan,
            out,
            identity=settings,
            corpus=corpus,
            evidence=evidence,
            rankings=rankings,
            concurrency=concurrency,
            overwrite=overwrite,
            on_found=go_on,
            on_done=new,
        )


def write_reports(
    out: Path,
    settings: dict[str, Any],
    notes: dict[str, int],
    reports: dict[Mode, ModeReport],
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
    used: Mapping[str, Any],
) -> None:
    """Write report.json, report.md and report.html. In report.json the first mode's figures stand at the top."""
    first = next(iter(reports.values()))
    simple = {
        name: value if isinstance(value, float) else asdict(value) for name, value in baselines(questions).items()
    }
    made_here = _made_here(str(settings["agent"]))
    said = conclusions(reports, questions, benchmark=str(settings["benchmark"]), trained_here=made_here)
    write_json(
        out / "report.json",
        {
            "settings": settings,
            **first.summary.to_json(),
            "baselines": simple,
            "modes": {mode.value: report.to_json() for mode, report in reports.items()},
            "notes": notes,
            "usage": used,
            "conclusions": said,
        },
    )
    title = f"{settings['benchmark']}: {settings['agent']}"
    (out / "report.md").write_text(markdown(title, settings, reports, questions, said), encoding="utf-8")
    write_evaluation_html(
        out / "report.html",
        title=title,
        summary=f"{' '.join(said)} Temperature {settings['temperature']}, seed {settings['seed']}; all settings are in "
        "config.json.",
        tables=tables(reports, questions),
        curves=curves(reports),
        predictions=predictions,
    )


def _made_here(agent: str) -> bool:
    """Whether all of an agent's training is this project's: the starter policy and what was trained on it."""
    folder = Path(agent)
    return agent == STARTER or ((folder / SPEC_FILE).exists() and read_spec(folder).base_model == STARTER)


def shown_table(table: Table) -> RichTable:
    """A table for the terminal."""
    shown = RichTable(title=table.title or None, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(table.head):
        shown.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def fingerprint(agent: str) -> str:
    """A digest of an agent's own files, or of a local model's files. Empty where there is none to read."""
    name = agent.removeprefix("hf:")
    is_base = name != agent or name == STARTER  # an agent's folder may be called as a base is
    if is_base and is_gguf(name):
        return base_sha256(name)
    folder = Path(model_path(name) if is_base else name)
    total = sha256()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []:
        total.update(str(file.relative_to(folder)).encode() + b"\0")
        stat = file.stat()
        if stat.st_size > LARGE:
            total.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
            continue
        with file.open("rb") as opened:
            total.update(file_digest(opened, "sha256").digest())
    return total.hexdigest() if folder.is_dir() else ""


def gold_passages(
    retriever: Retriever, questions: Sequence[Question], passages: Sequence[Passage]
) -> dict[str, Passage]:
    """The passages that the questions name as their evidence, where the benchmark or the index holds them."""
    retriever = corpus_of(retriever)
    held = {passage.id: passage for passage in passages}
    wanted = {id_ for question in questions for id_ in question.gold_passage_ids}
    if isinstance(retriever, HybridRetriever | ShardedRetriever):
        found = {id_: retriever.passage(id_) for id_ in wanted - set(held)}
        held |= {id_: passage for id_, passage in found.items() if passage is not None}
    return held


def index_fingerprint(retriever: Retriever) -> str:
    """A digest of an index's manifest, or those of several, with the passages' digests. Empty where there is none."""
    retriever = corpus_of(retriever)
    if isinstance(retriever, RemoteRetriever):
        return retriever.version
    if not isinstance(retriever, HybridRetriever | ShardedRetriever):
        return ""
    folders = retriever.folders if isinstance(retriever, ShardedRetriever) else (retriever.folder,)
    return sha256(b"".join((folder / "manifest.json").read_bytes() for folder in folders)).hexdigest()
