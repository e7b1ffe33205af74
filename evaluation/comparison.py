"""Two evaluations, question by question."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from medagent.errors import InputError
from medagent.evaluation.evaluator import Evaluation
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.statistics import PairedComparison, SeedsComparison, compare_paired, compare_seeds
from medagent.types import Question

Run = str | Path | Evaluation  # the folder of an evaluation, or its result


def compare(a: Run, b: Run, *, mode: str | None = None, mode_b: str | None = None, seed: int = 0) -> PairedComparison:
    """Compare two evaluations on the questions that both asked, by the first sample of each.

    Without `mode` it takes the first mode of A that B has too. `mode_b` is another mode of B's. The result names both
    modes. `seed` is that of the bootstrap.

    Raises:
        InputError: one holds no answers, or they cannot be compared.
    """
    (marks_a, marks_b), modes = _marks([a, b], mode, mode_b)
    return replace(compare_paired(marks_a, marks_b, seed=seed), mode_a=modes[0], mode_b=modes[1])


def compare_over_seeds(
    a: Sequence[Run], b: Sequence[Run], *, mode: str | None = None, mode_b: str | None = None, seed: int = 0
) -> SeedsComparison:
    """Compare as `compare` does, over seeds: `a[i]` with `b[i]`, on the questions that all of them asked.

    Raises:
        InputError: not one run of A and of B per seed, one run twice, or runs that cannot be compared.
    """
    if len(a) != len(b) or not a:
        raise InputError(
            f"found {len(a)} folders of A and {len(b)} of B, wanted one of each per seed, in one order: "
            "'[seed-0/a, seed-1/a]' '[seed-0/b, seed-1/b]'."
        )
    for runs in (a, b):
        if twice := [str(each) for each in runs if runs.count(each) > 1]:
            raise InputError(f"found {twice[0]} for several seeds, wanted a folder of its own for each.")
    marks, modes = _marks([*a, *b], mode, mode_b)
    compared = compare_seeds(marks[: len(a)], marks[len(a) :], seed=seed)
    named = tuple(replace(each, mode_a=modes[0], mode_b=modes[1]) for each in compared.seeds)
    return replace(compared, seeds=named)


def _predictions(run: Run) -> tuple[str, Sequence[Prediction]]:
    """A run's name in errors, and its predictions."""
    if isinstance(run, Evaluation):
        return str(run.settings["agent"]), run.predictions
    if not isinstance(run, str | Path):
        raise InputError(f"found a {type(run).__name__}, wanted an Evaluation as `evaluate` returns it, or its folder.")
    found = PredictionLog(Path(run) / "predictions.jsonl").read()
    if not found:
        raise InputError(
            f"{run}: holds no predictions.jsonl. Give the folders of two evaluations (medagent evaluate --out)."
        )
    return str(run), found


def _marks(
    compared: Sequence[Run], mode: str | None, mode_b: str | None
) -> tuple[list[dict[str, bool]], tuple[str, str]]:
    """By run and by question that all runs asked, whether it is answered correctly; and the modes of A and of B.

    The first half of the runs are A's.
    """
    runs = [_predictions(run) for run in compared]
    modes = [list(dict.fromkeys(prediction.mode for prediction in log)) for _, log in runs]
    chosen = mode or next((name for name in modes[0] if all(name in held for held in modes)), None)
    if chosen is None:
        held = ", ".join(f"{run} holds the modes {', '.join(has)}" for (run, _), has in zip(runs, modes, strict=True))
        raise InputError(f"{held}: none in common. Name one of each with --mode and --mode_b.")
    other = mode_b or chosen
    asked = []
    for number, ((run, log), has) in enumerate(zip(runs, modes, strict=True)):
        wanted = chosen if number < len(runs) // 2 else other
        if wanted not in has:
            raise InputError(f"{run}: holds no answers of mode {wanted!r}, only of {', '.join(has)}.")
        of_mode = [p for p in log if (p.mode, p.rotation, p.rollout.sample) == (wanted, 0, 0)]
        asked.append({p.rollout.question.id: p for p in of_mode})
    names = sorted(set.intersection(*(set(each) for each in asked)))
    differing = [name for name in names if len({_asked(each[name].rollout.question) for each in asked}) > 1]
    if not names or differing:
        other_text = f"question {differing[0]} has another text or answer in each" if differing else ""
        what = other_text or "they have no question in common"
        raise InputError(
            f"{' and '.join(run for run, _ in runs)}: cannot be compared, {what}. Evaluate all on one file."
        )
    if left_out := len(set().union(*asked)) - len(names):
        print(f"note: {left_out} questions that not all of them asked are left out.", file=sys.stderr)
    return [{name: grade(each[name].rollout).correct for name in names} for each in asked], (chosen, other)


def _asked(question: Question) -> tuple[str, tuple[str, ...], str]:
    return question.text, question.options, question.answer
