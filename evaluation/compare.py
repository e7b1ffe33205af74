"""Two evaluations, question by question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evaluation.grading.grade import grade
from evaluation.predictions import Prediction, PredictionLog
from evaluation.statistics import PairedComparison, compare_paired
from medagent.errors import InputError


def compare_runs(a: Path, b: Path, *, mode: str | None, mode_b: str | None = None, seed: int) -> PairedComparison:
    """Compare two evaluations on the questions that both asked, by the first sample of each.

    Without `mode` it takes the first mode of A that B has too. `mode_b` is another mode of B's. The result names both
    modes.
    """
    logs = [PredictionLog(folder / "predictions.jsonl").read() for folder in (a, b)]
    for folder, predictions in zip((a, b), logs, strict=True):
        if not predictions:
            raise InputError(
                f"{folder}: holds no predictions.jsonl. Give the folders of two evaluations (medagent evaluate --out)."
            )
    modes = [list(dict.fromkeys(prediction.mode for prediction in predictions)) for predictions in logs]
    chosen = mode or next((name for name in modes[0] if name in modes[1]), None)
    if chosen is None:
        raise InputError(
            f"{a} holds the modes {', '.join(modes[0])}, {b} {', '.join(modes[1])}: none in common. Name one of each "
            "with --mode and --mode_b."
        )
    marks = []
    for folder, predictions, held, name in zip((a, b), logs, modes, (chosen, mode_b or chosen), strict=True):
        if name not in held:
            raise InputError(f"{folder}: holds no answers of mode {name!r}, only of {', '.join(held)}.")
        marks.append(
            {p.rollout.question.id: p for p in predictions if (p.mode, p.rotation, p.rollout.sample) == (name, 0, 0)}
        )
    common = marks[0].keys() & marks[1].keys()
    differing = [name for name in common if _asked(marks[0][name]) != _asked(marks[1][name])]
    if not common or differing:
        what = (
            f"question {differing[0]} has another text or answer in each"
            if differing
            else "they have no question in common"
        )
        raise InputError(f"{a} and {b}: cannot be compared, {what}. Evaluate both on the same file.")
    left_out = len(marks[0]) + len(marks[1]) - 2 * len(common)
    if left_out:
        print(f"note: {left_out} questions that only one of them asked are left out.")
    names = sorted(common)
    result = compare_paired(*({name: grade(kept[name].rollout).correct for name in names} for kept in marks), seed=seed)
    return replace(result, mode_a=chosen, mode_b=mode_b or chosen)


def _asked(prediction: Prediction) -> tuple[str, tuple[str, ...], str]:
    question = prediction.rollout.question
    return question.text, question.options, question.answer
