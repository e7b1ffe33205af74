"""Two evaluations, question by question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.grading.grade import grade
from evaluation.predictions import Prediction, PredictionLog
from evaluation.statistics import PairedComparison, SeedsComparison, compare_paired, compare_seeds
from medagent.errors import InputError


@dataclass(frozen=True)
class _Pair:
    """Which questions two evaluations answered rightly, in the modes that are compared."""

    a: dict[str, bool]
    b: dict[str, bool]
    mode_a: str
    mode_b: str


def compare_runs(a: Path, b: Path, *, mode: str | None, mode_b: str | None = None, seed: int) -> PairedComparison:
    """Compare two evaluations on the questions that both asked, by the first sample of each.

    Without `mode` it takes the first mode of A that B has too. `mode_b` is another mode of B's. The result names both
    modes.
    """
    pair = _paired(a, b, mode, mode_b)
    return replace(compare_paired(pair.a, pair.b, seed=seed), mode_a=pair.mode_a, mode_b=pair.mode_b)


def compare_over_seeds(
    a: Sequence[Path], b: Sequence[Path], *, mode: str | None, mode_b: str | None = None, seed: int
) -> SeedsComparison:
    """Compare as `compare_runs` does, over seeds: `a[i]` with `b[i]`, on the questions that all of them asked.

    Raises:
        InputError: not as many folders of A as of B, or two that `compare_runs` refuses.
    """
    if len(a) != len(b):
        raise InputError(f"found {len(a)} folders of A and {len(b)} of B, wanted one of each per seed, in one order.")
    pairs = [_paired(one, other, mode, mode_b) for one, other in zip(a, b, strict=True)]
    names = sorted(set.intersection(*(set(pair.a) for pair in pairs)))
    if not names:
        raise InputError("the seeds have no question in common. Evaluate all of them on the same file.")
    if left_out := sum(len(pair.a) for pair in pairs) - len(names) * len(pairs):
        print(f"note: {left_out} answers to questions that not every seed was asked are left out.")
    compared = compare_seeds(
        [{name: pair.a[name] for name in names} for pair in pairs],
        [{name: pair.b[name] for name in names} for pair in pairs],
        seed=seed,
    )
    each = zip(compared.seeds, pairs, strict=True)
    return replace(compared, seeds=tuple(replace(own, mode_a=pair.mode_a, mode_b=pair.mode_b) for own, pair in each))


def _paired(a: Path, b: Path, mode: str | None, mode_b: str | None) -> _Pair:
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
    right_a, right_b = ({name: grade(kept[name].rollout).correct for name in names} for kept in marks)
    return _Pair(right_a, right_b, chosen, mode_b or chosen)


def _asked(prediction: Prediction) -> tuple[str, tuple[str, ...], str]:
    question = prediction.rollout.question
    return question.text, question.options, question.answer
