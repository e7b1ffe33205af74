"""Runs an agent over questions, through the same rollout loop as training and serving."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from medagent.agent import Agent, Job
from medagent.errors import ConfigError, PolicyError
from medagent.evaluation.answer_folder import begin
from medagent.evaluation.modes import EVIDENCE_MODES, Mode, agent_for, job_for, orders, rotate, told
from medagent.evaluation.predictions import Key, Prediction, PredictionLog, confidence
from medagent.evaluation.search_recall import recall_of
from medagent.retrieval.passages import Passage
from medagent.run_folder import RunFolder
from medagent.types import Question, Rollout, StopReason, rollout_seed


def run_benchmark(
    agent: Agent, questions: Sequence[Question], *, temperature: float = 0.0, seed: int = 0
) -> list[Rollout]:
    """One rollout per question, in order. Temperature 0 is greedy."""
    jobs = [
        Job(question, seed=rollout_seed(seed, iteration=-1, question_id=question.id, sample=0), temperature=temperature)
        for question in questions
    ]
    return agent.run_all(jobs)


@dataclass(frozen=True)
class Plan:
    """The plan of an evaluation: every question in every mode, `samples` times.

    With `rotations` it is asked once more for each rotation of its options.
    """

    modes: tuple[Mode, ...] = (Mode.SEARCH,)
    samples: int = 1
    rotations: bool = False
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.modes or len(set(self.modes)) != len(self.modes):
            raise ConfigError(f"modes {[mode.value for mode in self.modes]}: wanted one or more, each once.")
        if self.samples < 1 or self.temperature < 0:
            found = f"samples {self.samples}, temperature {self.temperature}"
            raise ConfigError(f"{found}: wanted at least 1, and 0 or more.")
        if self.samples > 1 and self.temperature == 0:
            raise ConfigError("samples above 1 at temperature 0 are all the same. Give a --temperature, such as 0.7.")

    def jobs(self, question: Question) -> list[tuple[Question, int, int]]:
        """(question as asked, rotation, sample) of each prompt in one mode."""
        asked = [(question, 0, sample) for sample in range(self.samples)]
        if self.rotations:
            asked += [(rotate(question, by), by, 0) for by in range(1, orders(question))]
        return asked


def run_plan(
    agent: Agent,
    questions: Sequence[Question],
    plan: Plan,
    folder: Path,
    *,
    identity: Mapping[str, Any],
    corpus: Sequence[Passage] = (),
    evidence: Mapping[str, Passage] | None = None,
    rankings: Mapping[str, Sequence[Passage]] | None = None,
    concurrency: int = 64,
    max_errors: int = 5,
    overwrite: bool = False,
    on_found: Callable[[Sequence[Prediction]], None] = lambda _: None,
    on_done: Callable[[Prediction], None] = lambda _: None,
) -> list[Prediction]:
    """Ask the questions that `folder` has no answers to, and return all predictions in the plan's order.

    `identity` says what is measured (agent, benchmark, settings). A folder begun with another one is refused, or with
    `overwrite` begun anew. Each answer is written to predictions.jsonl as it comes, so an interrupted run goes on where
    it stopped. Seeds follow from question and sample, not from order. `rankings` are those of
    `search_recall.question_rankings`; with them the predictions of searching modes have their recall. `on_found` is
    called once with the predictions that the folder holds already, `on_done` with each new one.

    A question whose endpoint or search fails for good gets a prediction with an `error`, which counts as wrong. The
    next run into the folder asks it again. The run stops where `max_errors` in a row fail, or all do.
    """
    if concurrency < 1 or max_errors < 1:
        raise ConfigError(f"concurrency {concurrency}, max_errors {max_errors}: wanted 1 or more of each.")
    # Made before the first question is asked, so that errors come at once.
    made = partial(job_for, seed=plan.seed, temperature=plan.temperature, told=told(agent), evidence=evidence or {})
    planned = {
        (mode.value, question.id, rotation, sample): made(asked, mode, sample=sample, place=place)
        for mode in plan.modes
        for place, question in enumerate(questions)
        for asked, rotation, sample in plan.jobs(question)
    }
    agents = {mode: agent_for(agent, mode, corpus) for mode in plan.modes}
    written, log = RunFolder(folder, "evaluation"), PredictionLog(folder / "predictions.jsonl")
    with written.sole_writer():
        written.claim()
        identity = {**identity, "questions_sha256": digest(questions)}
        begin(folder, identity, kind="an evaluation", log=log.path, overwrite=overwrite)
        log.repair()
        found = log.read()
        done = {prediction.key: prediction for prediction in found if not prediction.rollout.stop_reason.failed}
        again = len(found) > len(done)
        on_found(list(done.values()))
        try:
            for mode, asked_agent in agents.items():
                left = {key: job for key, job in planned.items() if key[0] == mode.value and key not in done}
                key_of = {id(job): key for key, job in left.items()}

                def keep(job: Job, rollout: Rollout, key_of: dict[int, Key] = key_of) -> None:
                    mode_name, name, rotation, _ = key_of[id(job)]
                    ranking = (rankings or {}).get(name) if mode_name in EVIDENCE_MODES else None
                    sure = confidence(rollout, agent.policy.tokenizer, agent.protocol)
                    recall = None if ranking is None else recall_of(rollout, ranking, top_k=agent.top_k)
                    prediction = Prediction(mode_name, rotation, rollout, sure, recall)
                    log.append(prediction)
                    done[prediction.key] = prediction
                    on_done(prediction)

                if left:
                    asked_agent.stream(list(left.values()), max_open=concurrency, on_done=keep, max_errors=max_errors)
        finally:
            reasons = [each.rollout.error for each in done.values() if each.rollout.stop_reason is StopReason.ERROR]
            if len(reasons) == len(done):
                log.path.unlink(missing_ok=True)  # nothing was measured: the folder takes any other evaluation
            elif again:
                log.compact()
        if reasons and len(reasons) == len(done):
            raise PolicyError(f"no question was answered, {len(reasons)} ended in errors. The last: {reasons[-1]}")
        return [done[key] for key in planned]


def digest(questions: Sequence[Question]) -> str:
    """A fingerprint of the questions: ids, texts, options and answers."""
    rows = [
        [q.id, q.text, list(q.options), q.answer, list(q.aliases)]
        + ([q.form, q.items] if q.form != "text" else [])
        + ([q.bounds] if q.bounds else [])
        for q in questions
    ]
    return sha256(json.dumps(rows).encode()).hexdigest()
