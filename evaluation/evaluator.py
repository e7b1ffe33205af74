"""Measures an agent on a benchmark: what `medagent evaluate` does, from Python."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from medagent.agent import Agent
from medagent.agent_folder import full_name, open_agent
from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.api import LoadedAgent
from medagent.environment import AgentSettings, Environment
from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource, benchmark_digest, source_named
from medagent.evaluation.fingerprints import agent_fingerprint, index_fingerprint
from medagent.evaluation.metrics import ModeReport, report_mode
from medagent.evaluation.modes import EVIDENCE_MODES, SEARCH_MODES, Mode, baselines, gold_passages, modes_named, orders
from medagent.evaluation.names import ModeName, Prompting
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.prompting import solved_examples, with_prompting
from medagent.evaluation.reports.conclusions import conclusions
from medagent.evaluation.reports.tables import markdown, tables
from medagent.evaluation.run import Plan, run_plan
from medagent.evaluation.search_recall import question_rankings
from medagent.evaluation.statistics import Accuracy
from medagent.evaluation.viewer.recorded import RecordedRun
from medagent.evaluation.viewer.server import exported
from medagent.evidence.answers import checked, left_out
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.judges import RULES, support_judge
from medagent.files import write_json, write_whole
from medagent.models.base_models import STARTER
from medagent.models.text_length import check_text_length
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import NoRetriever, corpus_of
from medagent.retrieval.search import HybridRetriever
from medagent.tools.named import GivenTool
from medagent.types import Limits, Question

LOADED = "loaded agent"  # the name of an agent that was opened before


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    `reports` has the figures of each mode, in the order asked. `notes` counts the corrections in the benchmark's files.
    `usage` counts seconds, and an endpoint's requests and tokens. `limits` are those that the agent ran with.
    """

    settings: Mapping[str, Any]
    questions: Sequence[Question]
    predictions: Sequence[Prediction]
    reports: Mapping[Mode, ModeReport]
    notes: Mapping[str, int]
    usage: Mapping[str, Any]
    limits: Limits

    def __repr__(self) -> str:
        """The figures that a notebook wants; the records are in the fields."""
        return f"Evaluation({self.accuracy}, predictions={len(self.predictions)}, modes={list(self.reports)})"

    @property
    def accuracy(self) -> Accuracy:
        """The strict accuracy in the first mode, with its 95% interval."""
        return next(iter(self.reports.values())).summary.overall

    def write(self, folder: Path) -> None:
        """Write report.json, report.md, and report.html, the viewer's page with all answers of the folder.

        In report.json the first mode's figures stand at the top.
        """
        folder.mkdir(parents=True, exist_ok=True)
        settings, reports, questions = self.settings, self.reports, self.questions
        benchmark, trained_here = str(settings["benchmark"]), _trained_here(str(settings["agent"]))
        said = conclusions(reports, questions, benchmark=benchmark, trained_here=trained_here)
        simple = baselines(questions)
        report = {
            "settings": settings,
            **next(iter(reports.values())).summary.to_json(),
            "baselines": {name: each if isinstance(each, float) else asdict(each) for name, each in simple.items()},
            "modes": {mode.value: report.to_json() for mode, report in reports.items()},
            "notes": self.notes,
            "usage": self.usage,
            "conclusions": said,
            "tables": [asdict(each) for each in tables(reports, questions)],
        }
        write_json(folder / "report.json", report)
        title = f"{settings['benchmark']}: {settings['agent']}"
        (folder / "report.md").write_text(markdown(title, settings, reports, questions, said), encoding="utf-8")
        write_whole(folder / "report.html", exported([RecordedRun(folder)]))


class EvaluationCallback:
    """Watches an evaluation. These methods do nothing; override those you want."""

    def on_start(self, settings: Mapping[str, Any], questions: int, notes: Mapping[str, int], total: int) -> None:
        """Called before the first question. `total` counts the answers wanted: per mode, sample and rotation."""

    def on_resume(self, found: Sequence[Prediction]) -> None:
        """Called once, with the answers that the folder holds already."""

    def on_prediction(self, prediction: Prediction) -> None:
        """Called with each new answer."""


def evaluate(
    agent: str | Path | LoadedAgent | Agent,
    benchmark: str | Path | BenchmarkSource = "starter",
    *,
    modes: ModeName | Sequence[ModeName] = "search",
    samples: int = 1,
    rotations: bool = False,
    temperature: float = 0.0,
    seed: int = 0,
    index: str | None = None,
    model: str = "",
    parameters: Mapping[str, Any] | None = None,
    tools: Sequence[GivenTool] = (),
    prompting: Prompting = "tags",
    shots: int = 0,
    shots_path: str = "",
    support: str = RULES,
    price: Mapping[str, float] | None = None,
    limits: Mapping[str, int] | None = None,
    concurrency: int = 64,
    max_errors: int = 5,
    requests_per_minute: float = 0.0,
    out: str | Path | None = None,
    overwrite: bool = False,
    callback: EvaluationCallback | None = None,
) -> Evaluation:
    """Ask an agent the questions of a benchmark, and grade its answers.

    `agent` is what `medagent.load_agent` returns, or a name that it takes. `benchmark` is a packaged name, a file
    of your own questions (JSON lines), or a `BenchmarkSource`. The other settings are those of `medagent evaluate`.

    `out` takes predictions.jsonl, config.json and the reports. An interrupted evaluation into a folder goes on there.

    Raises:
        InputError: a setting, a file or an agent cannot be used. The message names the remedy.
        PolicyError: `max_errors` questions in a row ended in errors, or all.
        ConfigError: `out` holds another evaluation, and `overwrite` is false.
    """
    price, parameters, callback = price or {}, parameters or {}, callback or EvaluationCallback()
    if not set(price) <= {"input", "output"} or any(value < 0 for value in price.values()):
        raise InputError(f"price: found {dict(price)}, wanted input and output, each 0 or more per million tokens.")
    source, plan = source_named(benchmark), Plan(modes_named(modes), samples, rotations, temperature, seed)
    judge = support_judge(support)
    asked = source.open()
    if isinstance(asked, Environment) and (plan.modes != (Mode.SEARCH,) or plan.rotations):
        wanted = "which is asked in mode search alone, without rotations. Leave out --modes and --rotations"
        raise InputError(f"benchmark {type(asked).__name__}: is an environment, {wanted}.")
    questions, passages, notes = source.questions(asked)
    if rotations and (in_place := sum(orders(question) < len(question.options) for question in questions)):
        notes["questions with options that speak of others, which stay in place when rotated"] = in_place
    if isinstance(agent, LoadedAgent | Agent):
        name, opened = LOADED, agent.agent if isinstance(agent, LoadedAgent) else agent
    else:
        name = full_name(str(agent))
        opened = open_agent(
            name, index=index, lockstep=True, model=model, parameters=parameters, tools=tools, must_search=False
        )
    limited, examples = with_limits(opened, limits or {}), solved_examples(source, questions, shots, shots_path)
    ready = with_prompting(limited, name, prompting, plan.modes, examples)
    if requests_per_minute:
        if not isinstance(ready.policy, RemotePolicy) or requests_per_minute < 0:
            wanted = "a number above 0, for an endpoint. Leave it out"
            raise InputError(f"requests_per_minute {requests_per_minute:g}: wanted {wanted}.")
        ready = replace(ready, policy=replace(ready.policy, requests_per_minute=requests_per_minute))
    if isinstance(asked, Environment):
        rules = AgentSettings(ready.protocol, ready.limits)
        asked.check(rules)
        ready = asked.agent(ready.policy, rules)
    searching = [mode.value for mode in plan.modes if mode in SEARCH_MODES and not isinstance(asked, Environment)]
    if isinstance(corpus_of(ready.retriever), NoRetriever) and searching and not ready.tools:
        packaged = "The packaged one is made by: medagent index build starter --out indexes/starter"
        remedy = f"Give one with --index, or choose other --modes. {packaged}"
        raise InputError(f"mode {searching[0]}: there is no index to search. {remedy}")
    untrained = name.startswith("hf:")  # its dtype is the machine's choice
    settings = {
        "agent": name,
        # An open agent has no files to tell it by, so its answers are never mixed with those of another call.
        "agent_sha256": secrets.token_hex(32) if name == LOADED else agent_fingerprint(name),
        "index_sha256": index_fingerprint(ready.retriever),
        "model": model,
        **({"parameters": parameters} if parameters else {}),
        **({"ask": prompting} if prompting != "tags" else {}),
        **({"shots": shots, "shots_path": shots_path} if shots else {}),
        **({"dtype": str(ready.policy.model.dtype)} if untrained and isinstance(ready.policy, HFPolicy) else {}),
        "index": index,
        **({"tools": {tool.name: tool.fingerprint for tool in ready.tools}} if ready.tools else {}),
        "limits": asdict(ready.limits),
        **{key: value for key, value in asdict(source).items() if value or key not in ("benchmark_args", "cop_from")},
        **({"benchmark_sha256": digest} if (digest := benchmark_digest(source.benchmark)) else {}),
        **asdict(plan),
        "modes": [mode.value for mode in plan.modes],
    }
    total = len(plan.modes) * sum(len(plan.jobs(question)) for question in questions)
    callback.on_start(settings, len(questions), notes, total)
    searched = corpus_of(ready.retriever)
    corpus = searched.passages if isinstance(searched, HybridRetriever) else []
    most = ready.limits.max_turns * ready.top_k if set(plan.modes).intersection(EVIDENCE_MODES) else 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if out is None else out)
        predictions = run_plan(
            ready,
            questions,
            plan,
            folder,
            identity=settings,
            corpus=corpus or passages,
            evidence=gold_passages(ready.retriever, questions, passages),
            rankings=question_rankings(ready.retriever, questions, most=most) if most else {},
            concurrency=concurrency,
            max_errors=max_errors,
            overwrite=overwrite,
            on_found=callback.on_resume,
            on_done=callback.on_prediction,
        )
        used = PredictionLog(folder / "predictions.jsonl").used()
    by_mode = {mode: [each for each in predictions if each.mode == mode.value] for mode in plan.modes}
    reports = {mode: with_omissions(report_mode(own, judge), own) for mode, own in by_mode.items()}
    settings["support"] = judge.label
    if isinstance(ready.policy, RemotePolicy) and ready.policy.refused:
        settings["parameters_left_out"] = sorted(ready.policy.refused)
    usage = {**used, "price": dict(price)}
    found = Evaluation(settings, questions, predictions, reports, notes, usage, ready.limits)
    if out is not None:
        found.write(folder)
    return found


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


def with_omissions(report: ModeReport, predictions: Sequence[Prediction]) -> ModeReport:
    """The report with what those answers leave out that serving would show by default, one answer per question."""
    check, counts = EvidenceCheck(), list[int]()
    for rollout in (each.rollout for each in predictions if not each.rotation and not each.rollout.sample):
        if rollout.answer and rollout.hits and not (answer := checked(rollout, check)).withheld:
            counts.append(len(left_out(rollout, answer, check)))
    return replace(report, omitting=Accuracy.of(sum(map(bool, counts)), len(counts)), omitted=sum(counts))


def _trained_here(agent: str) -> bool:
    """Whether all of an agent's training is this project's: the starter policy and what was trained on it."""
    folder = Path(agent)
    return agent == STARTER or ((folder / SPEC_FILE).exists() and read_spec(folder).base_model == STARTER)
