"""Evaluations compared with a first one, question by question."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from medagent.errors import InputError
from medagent.evaluation.evaluator import Evaluation
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.statistics import PairedComparison, SeedsComparison, compare_paired, compare_seeds, holm

Run = str | Path | Evaluation  # the folder of an evaluation, or its result


def compare(a: Run, b: Run, *, mode: str | None = None, mode_b: str | None = None, seed: int = 0) -> PairedComparison:
    """Compare two evaluations on the questions that both asked, by the first sample of each.

    Without `mode` it takes the first mode of A that B has too. `mode_b` is another mode of B's. The result names both
    modes. `seed` is that of the bootstrap.

    Raises:
        InputError: one holds no answers, or they cannot be compared.
    """
    return compare_with_first([a, b], mode=mode, mode_b=mode_b, seed=seed)[0]


def compare_with_first(
    runs: Sequence[Run], *, mode: str | None = None, mode_b: str | None = None, seed: int = 0
) -> list[PairedComparison]:
    """Compare each further run (B) with the first (A) as `compare` does, on the questions that all of them asked.

    `p_holm` is Holm's adjustment over these comparisons.
    """
    if len(runs) < 2:
        raise InputError(f"found {len(runs)} evaluation, wanted two or more. Give their folders.")
    (marks_a, *others), modes = _marks(runs[:1], runs[1:], mode, mode_b)
    found = [compare_paired(marks_a, marks, seed=seed) for marks in others]
    adjusted = holm([each.p_mcnemar for each in found])
    return [replace(each, mode_a=modes[0], mode_b=modes[1], p_holm=p) for each, p in zip(found, adjusted, strict=True)]


def compare_over_seeds(
    a: Sequence[Run], b: Sequence[Run], *, mode: str | None = None, mode_b: str | None = None, seed: int = 0
) -> SeedsComparison:
    """Compare as `compare` does, over seeds: `a[i]` with `b[i]`, on the questions that all of them asked.

    Raises:
        InputError: not one run of A and of B per seed, one run twice, or runs that cannot be compared.
    """
    if len(a) != len(b) or not a:
        wanted = "one of each per seed, in one order: '[seed-0/a, seed-1/a]' '[seed-0/b, seed-1/b]'"
        raise InputError(f"found {len(a)} folders of A and {len(b)} of B, wanted {wanted}.")
    for runs in (a, b):
        if twice := [str(each) for each in runs if runs.count(each) > 1]:
            raise InputError(f"found {twice[0]} for several seeds, wanted a folder of its own for each.")
    marks, modes = _marks(a, b, mode, mode_b)
    compared = compare_seeds(marks[: len(a)], marks[len(a) :], seed=seed)
    named = tuple(replace(each, mode_a=modes[0], mode_b=modes[1]) for each in compared.seeds)
    return replace(compared, seeds=named)


def run_predictions(run: Run) -> tuple[str, Sequence[Prediction]]:
    """A run's name in errors, and its predictions."""
    if isinstance(run, Evaluation):
        return str(run.settings["agent"]), run.predictions
    if not isinstance(run, str | Path):
        raise InputError(f"found a {type(run).__name__}, wanted an Evaluation as `evaluate` returns it, or its folder.")
    found = PredictionLog(Path(run) / "predictions.jsonl").read()
    if not found:
        raise InputError(f"{run}: holds no predictions.jsonl. Give folders of evaluations (medagent evaluate --out).")
    return str(run), found


def common_mode(runs: Sequence[tuple[str, Sequence[Prediction]]], remedy: str) -> str:
    """The first mode of the first run that all have."""
    held = [dict.fromkeys(prediction.mode for prediction in log) for _, log in runs]
    for mode in held[0]:
        if all(mode in modes for modes in held):
            return mode
    told = ", ".join(f"{run} holds the modes {', '.join(modes)}" for (run, _), modes in zip(runs, held, strict=True))
    raise InputError(f"{told}: none in common. {remedy}")


def answers_in(mode: str, run: str, log: Sequence[Prediction]) -> list[Prediction]:
    """The answers of a mode that the main figures count: the first sample of each question, as it was written."""
    if found := [p for p in log if (p.mode, p.rotation, p.rollout.sample) == (mode, 0, 0)]:
        return found
    modes = ", ".join(dict.fromkeys(prediction.mode for prediction in log))
    raise InputError(f"{run}: holds no answers of mode {mode!r}, only of {modes}.")


def _marks(
    a: Sequence[Run], b: Sequence[Run], mode: str | None, mode_b: str | None
) -> tuple[list[dict[str, bool]], tuple[str, str]]:
    """By run and by question that all runs asked, whether it is answered correctly; and the modes of A and of B."""
    runs = [run_predictions(run) for run in [*a, *b]]
    chosen = mode or common_mode(runs, "Name one of each with --mode and --mode_b.")
    other = mode_b or chosen
    asked = [
        {p.rollout.question.id: p for p in answers_in(chosen if number < len(a) else other, *run)}
        for number, run in enumerate(runs)
    ]
    names = sorted(set.intersection(*(set(each) for each in asked)))
    questions = {name: [each[name].rollout.question for each in asked] for name in names}
    differing = [name for name, found in questions.items() if len({(q.text, q.options, q.answer) for q in found}) > 1]
    if not names or differing:
        what = "they have no question in common"
        what = f"question {differing[0]} has another text or answer in each" if differing else what
        told = " and ".join(run for run, _ in runs)
        raise InputError(f"{told}: cannot be compared, {what}. Evaluate all on one file.")
    if left_out := len(set().union(*asked)) - len(names):
        print(f"note: {left_out} questions that not all of them asked are left out.", file=sys.stderr)
    return [{name: grade(each[name].rollout).correct for name in names} for each in asked], (chosen, other)
