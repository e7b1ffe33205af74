"""A run's folder with hostile texts in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from medagent.evaluation.evaluator import Evaluation
from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.rollout_files import write_lines
from medagent.evaluation.viewer.recorded import write_summaries
from medagent.types import Limits, Rollout, StopReason, Turn
from tests.evaluation.support import QUESTIONS

SUMMARY = {  # of the first rollout
    "question_id": "q0",
    "sample": 0,
    "verdict": "correct",
    "stop_reason": "answered",
    "reward": 1.0,
    "searches": 1,
    "passages": 1,
    "gold": True,
    "tokens": 6,
    "clipped": 1.0,
}
HOSTILE = "</script><img src=x onerror=hacked=1><b>\u202eabc\u2066</b>"


def numbers(count: int, ratio: float) -> dict[str, list[float]]:
    names = "rollout_logprob old_logprob logprob clipped advantage entropy weight value kl".split()
    return {"counts": [1.0] * count, "ratio": [ratio] * count} | {name: [0.125] * count for name in names}


def rollout(question: str, sample: int, *, right: bool, iteration: int = 0, words: int = 4) -> dict[str, Any]:
    texts = [f" word{n}" for n in range(words)] + [HOSTILE]
    passage = {"id": "p1", "title": HOSTILE, "text": HOSTILE * 3, "source": "x", "score": 0.5}
    search = {"text": "".join(texts), "query": "gout", "passages": [passage], "tokens": len(texts), "reward": 0.0}
    answer = {"text": "<answer>x</answer>", "query": None, "passages": [], "tokens": 1, "reward": 0.0}
    return {
        "question": f"{question} {HOSTILE}",
        "options": {"A": "colchicine", "B": "insulin"},
        "gold": "A",
        "gold_passage_ids": ["p1"],
        "turns": [
            {**search, "given": "", "token_texts": texts, "numbers": numbers(len(texts), 1.0 + 0.1 * iteration)},
            {**answer, "given": "", "token_texts": ["<answer>x</answer>"], "numbers": numbers(1, 0.5)},
        ],
        "answer": "x",
        "prompt": f"Question: {HOSTILE}",
        "verdict": "correct" if right else "wrong",
        "reward": float(right),
        "stop_reason": "answered",
        "question_id": question,
        "sample": sample,
        "clip_bias_scale": 0.75,
    }


def write_iteration(run: Path, iteration: int, rows: list[dict[str, Any]]) -> None:
    place = run / "rollouts" / f"iteration_{iteration:04d}.jsonl.gz"
    write_lines(place, rows)
    write_summaries(place, rows)


def write_run(run: Path, *, iterations: int = 3, questions: int = 3) -> Path:
    """Iterations of a few questions with two samples each, whose second one is wrong at first."""
    for iteration in range(iterations):
        rows = [
            rollout(f"q{n}", sample, right=sample == 0 or iteration > 1, iteration=iteration)
            for n in range(questions)
            for sample in range(2)
        ]
        write_iteration(run, iteration, rows)
    logs = run / "logs" / "version_0"
    logs.mkdir(parents=True)
    lines = [f"{n},{n},{n / iterations},{0.1 * n}" for n in range(iterations)]
    (logs / "metrics.csv").write_text("epoch,step,reward/success,policy/clip_fraction\n" + "\n".join(lines) + "\n")
    (run / "collapse.json").write_text(json.dumps([{"iteration": 2, "signs": ["success fell"], "action": "report"}]))
    return run


def write_evaluation(folder: Path) -> Path:
    """Six questions in two modes, of which four are answered rightly and the more surely, with the reports."""
    asked = [replace(question, text=f"{question.text} {HOSTILE}") for question in QUESTIONS[:6]]
    log, reports = PredictionLog(folder / "predictions.jsonl"), {}
    folder.mkdir()
    for mode in (Mode.SEARCH, Mode.CLOSED_BOOK):
        answers = [Turn((), (), "", answer=f"({'A' if number < 4 else 'B'})") for number in range(6)]
        rollouts = [Rollout(q, (), (turn,), StopReason.ANSWERED) for q, turn in zip(asked, answers, strict=True)]
        found = [Prediction(mode.value, 0, each, 0.3 + 0.6 * (n < 4)) for n, each in enumerate(rollouts)]
        reports[mode] = report_mode(found)
        for prediction in found:
            log.append(prediction)
    settings = {"agent": HOSTILE, "benchmark": "medqa", "limits": {"max_turns": 4}}
    Evaluation(settings, asked, [], reports, {}, {}, Limits()).write(folder)
    return folder
