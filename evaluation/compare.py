"""Two evaluations, question by question."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from medagent.errors import InputError
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.statistics import PairedComparison, SeedsComparison, compare_paired, compare_seeds


@dataclass(frozen=True)
class _Marks:
    """Which questions each evaluation answered rightly, in the modes that are compared."""

    a: list[dict[str, bool]]
    b: list[dict[str, bool]]
    mode_a: str
    mode_b: str


def compare_runs(a: Path, b: Path, *, mode: str | None, mode_b: str | None = None, seed: int) -> PairedComparison:
    """Compare two evaluations on the questions that both asked, by the first sample of each.

    Without `mode` it takes the first mode of A that B has too. `mode_b` is another mode of B's. The result names both
    modes.
    """
    marks = _marks([a], [b], mode, mode_b)
    return replace(compare_paired(marks.a[0], marks.b[0], seed=seed), mode_a=marks.mode_a, mode_b=marks.mode_b)


def compare_over_seeds(
    a: Sequence[Path], b: Sequence[Path], *, mode: str | None, mode_b: str | None = None, seed: int
) -> SeedsComparison:
    """Compare as `compare_runs` does, over seeds: `a[i]` with `b[i]`, on the questions that all of them asked.

    Raises:
        InputError: not one folder of A and of B per seed, one folder twice, or folders that cannot be compared.
    """
    if len(a) != len(b) or not a:
        raise InputError(
            f"found {len(a)} folders of A and {len(b)} of B, wanted one of each per seed, in one order: "
            "'[seed-0/a, seed-1/a]' '[seed-0/b, seed-1/b]'."
        )
    for folders in (a, b):
        if twice := [str(each) for each in folders if folders.count(each) > 1]:
            raise InputError(f"found {twice[0]} for several seeds, wanted a folder of its own for each.")
    marks = _marks(a, b, mode, mode_b)
    compared = compare_seeds(marks.a, marks.b, seed=seed)
    named = tuple(replace(each, mode_a=marks.mode_a, mode_b=marks.mode_b) for each in compared.seeds)
    return replace(compared, seeds=named)


def _marks(a: Sequence[Path], b: Sequence[Path], mode: str | None, mode_b: str | None) -> _Marks:
    """What was right in each folder, of the questions that all of them asked."""
    folders = [*a, *b]
    logs = {folder: PredictionLog(folder / "predictions.jsonl").read() for folder in folders}
    modes = {folder: list(dict.fromkeys(prediction.mode for prediction in log)) for folder, log in logs.items()}
    for folder, log in logs.items():
        if not log:
            raise InputError(
                f"{folder}: holds no predictions.jsonl. Give the folders of two evaluations (medagent evaluate --out)."
            )
    chosen = mode or next((name for name in modes[a[0]] if all(name in held for held in modes.values())), None)
    if chosen is None:
        held = ", ".join(f"{folder} holds the modes {', '.join(names)}" for folder, names in modes.items())
        raise InputError(f"{held}: none in common. Name one of each with --mode and --mode_b.")
    other = mode_b or chosen
    asked = []
    for folder, name in [(each, chosen) for each in a] + [(each, other) for each in b]:
        if name not in modes[folder]:
            raise InputError(f"{folder}: holds no answers of mode {name!r}, only of {', '.join(modes[folder])}.")
        of_mode = [p for p in logs[folder] if (p.mode, p.rotation, p.rollout.sample) == (name, 0, 0)]
        asked.append({p.rollout.question.id: p for p in of_mode})
    names = sorted(set.intersection(*(set(each) for each in asked)))
    differing = [name for name in names if len({_asked(each[name]) for each in asked}) > 1]
    if not names or differing:
        what = (
            f"question {differing[0]} has another text or answer in each"
            if differing
            else "they have no question in common"
        )
        raise InputError(f"{' and '.join(map(str, folders))}: cannot be compared, {what}. Evaluate all on one file.")
    if left_out := len(set().union(*asked)) - len(names):
        print(f"note: {left_out} questions that not all of them asked are left out.", file=sys.stderr)
    right = [{name: grade(each[name].rollout).correct for name in names} for each in asked]
    return _Marks(right[: len(a)], right[len(a) :], chosen, other)


def _asked(prediction: Prediction) -> tuple[str, tuple[str, ...], str]:
    question = prediction.rollout.question
    return question.text, question.options, question.answer
