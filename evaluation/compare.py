"""What `medagent compare`, `grade` and `contamination` do and print."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from evaluation.benchmarks.source import Source
from evaluation.contamination import contamination, question_texts
from evaluation.corpora import corpus_passages
from evaluation.grading.grade import grade
from evaluation.grading.raw_replies import read_replies, summarize_replies, write_readings
from evaluation.predictions import Prediction, PredictionLog
from evaluation.statistics import PairedComparison, compare_paired
from medagent.errors import InputError


def compare_runs(a: Path, b: Path, *, mode: str | None, mode_b: str | None = None, seed: int) -> PairedComparison:
    """Compare two evaluations on the questions that both asked, by the first sample of each, and say which modes.

    Without `mode` it is the first of A's that B has too; `mode_b` is another mode of B's.
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
            f"{a} holds the modes {', '.join(modes[0])}, {b} {', '.join(modes[1])}: none in common. Name one of each with --mode and --mode_b."
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


def comparison_text(result: PairedComparison) -> str:
    """A comparison as two lines for people."""
    verdict = "differ" if result.p_mcnemar < 0.05 else "cannot be told apart"
    p = f"= {result.p_mcnemar:.4f}" if result.p_mcnemar >= 0.0001 else "< 0.0001"
    return (
        f"A {result.accuracy_a:.1%}, B {result.accuracy_b:.1%}: B - A = {result.difference:+.1%} [{result.ci_low:+.1%}, {result.ci_high:+.1%}] "
        f"(paired bootstrap, 95%), n = {result.n}\n"
        f"Right in A only: {result.only_a}, in B only: {result.only_b}; McNemar's exact p {p}: at 5% they {verdict}."
    )


def compare_aloud(a: Path, b: Path, *, mode: str | None, mode_b: str | None, seed: int, as_json: bool) -> None:
    """Compare and print."""
    result = compare_runs(a, b, mode=mode, mode_b=mode_b, seed=seed)
    if as_json:
        print(json.dumps(asdict(result)))
        return
    print(f"A: {a}, {result.mode_a}\nB: {b}, {result.mode_b}\n{comparison_text(result)}")


def grade_aloud(path: Path, *, letters: str, out: str | None) -> None:
    """Grade raw replies and print the counts as JSON; `out` takes one line a reply."""
    target = Path(out) if out is not None else None
    if target is not None and (target.is_dir() or target.resolve() == path.resolve()):
        raise InputError(
            f"--out {out}: is {'a folder' if target.is_dir() else 'the file of the replies'}; give a file of its own."
        )
    replies = read_replies(path, letters=letters)
    if target is not None:
        write_readings(target, replies)
    print(json.dumps(summarize_replies(replies)))


def contamination_aloud(test: Source, train: Source | None, corpus: str | None, *, threshold: float, show: int) -> None:
    """Compare a test benchmark with training questions, or with a corpus, and list the near-duplicates."""
    if (train is None) == (corpus is None):
        raise InputError("wanted training questions (--train PATH) or a corpus (--corpus NAME), one of them.")
    tests = test.open().questions()
    if train is not None:
        texts = question_texts(train.open().questions())
    else:
        passages = corpus_passages(corpus or "")
        texts = ((passage.id, passage.indexed_text) for passage in passages)
    report = contamination(tests, texts, threshold=threshold)
    for pair in report.near_duplicates[:show]:
        print(f"{pair.overlap:6.1%}  {pair.test_id}  {pair.train_id}")
    print(
        f"{len(report.near_duplicates)} of {report.tested} test questions ({report.share:.2%}) are near-duplicates among {report.texts} texts; "
        f"{report.common_stretches} share 64 characters with one (stock phrases do: this number decides nothing)."
    )
