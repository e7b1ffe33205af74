"""The output of `medagent compare`, `grade` and `contamination`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.comparison import compare, compare_over_seeds
from medagent.evaluation.contamination import contamination, question_texts
from medagent.evaluation.corpora import corpus_passages
from medagent.evaluation.grading.raw_replies import read_replies, summarize_replies, write_readings
from medagent.evaluation.statistics import PairedComparison, SeedsComparison


def comparison_text(result: PairedComparison) -> str:
    """A comparison as two lines for people."""
    verdict = "differ" if result.p_mcnemar < 0.05 else "cannot be told apart"
    return (
        f"A {result.accuracy_a:.1%}, B {result.accuracy_b:.1%}: B - A = {result.difference:+.1%} "
        f"[{result.ci_low:+.1%}, {result.ci_high:+.1%}] (paired bootstrap, 95%), n = {result.n}.\nRight in A only: "
        f"{result.only_a}, in B only: {result.only_b}. McNemar's exact p {_p(result.p_mcnemar)}: at 5% they {verdict}."
    )


def seeds_text(result: SeedsComparison, a: Sequence[Path], b: Sequence[Path]) -> str:
    """A comparison over seeds: two lines for each, and three for all."""
    lines = [
        f"{one}, {own.mode_a}; {other}, {own.mode_b}:\n  A {own.accuracy_a:.1%}, B {own.accuracy_b:.1%}, right in A "
        f"only {own.only_a}, in B only {own.only_b}, McNemar's exact p {_p(own.p_mcnemar)}."
        for one, other, own in zip(a, b, result.seeds, strict=True)
    ]
    verdict = "differ" if result.p < 0.05 else "cannot be told apart"
    return "\n".join(
        [
            *lines,
            f"All: A {result.accuracy_a:.1%}, B {result.accuracy_b:.1%}: B - A = {result.difference:+.1%} "
            f"[{result.ci_low:+.1%}, {result.ci_high:+.1%}] (bootstrap over questions, 95%), n = {result.n}, "
            f"{len(result.seeds)} seeds.",
            f"Right in A only: {result.only_a}, in B only: {result.only_b}. Exact sign-flip test over questions, p "
            f"{_p(result.p)}: at 5% they {verdict}.",
            "Interval and p are about other questions for these very runs. Other seeds may differ more.",
        ]
    )


def _p(value: float) -> str:
    return f"= {value:.4f}" if value >= 0.0001 else "< 0.0001"


def print_comparison(
    a: Sequence[Path], b: Sequence[Path], *, mode: str | None, mode_b: str | None, seed: int, as_json: bool
) -> None:
    """Compare and print. Several folders of each are seeds."""
    if len(a) == len(b) == 1:
        result = compare(a[0], b[0], mode=mode, mode_b=mode_b, seed=seed)
        text = f"A: {a[0]}, {result.mode_a}\nB: {b[0]}, {result.mode_b}\n{comparison_text(result)}"
        print(json.dumps(asdict(result)) if as_json else text)
        return
    pooled = compare_over_seeds(a, b, mode=mode, mode_b=mode_b, seed=seed)
    print(json.dumps(asdict(pooled)) if as_json else seeds_text(pooled, a, b))


def print_grades(path: Path, *, letters: str, last_line: bool, out: str | None) -> None:
    """Grade raw replies and print the counts as JSON; `out` takes one line per reply."""
    target = Path(out) if out is not None else None
    if target is not None and (target.is_dir() or target.resolve() == path.resolve()):
        raise InputError(
            f"--out {out}: is {'a folder' if target.is_dir() else 'the file of the replies'}; give a file of its own."
        )
    replies = read_replies(path, letters=letters, last_line_asked=last_line)
    if target is not None:
        write_readings(target, replies)
    print(json.dumps(summarize_replies(replies)))


def print_contamination(
    test: BenchmarkSource, train: BenchmarkSource | None, corpus: str | None, *, threshold: float, show: int
) -> None:
    """Compare a test benchmark with training questions, or with a corpus, and list the near-duplicates."""
    if (train is None) == (corpus is None):
        found = "neither --train nor --corpus" if corpus is None else "both --train and --corpus"
        raise InputError(
            f"contamination: found {found}, wanted one of them. Give training questions with --train, or a corpus with "
            "--corpus."
        )
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
        f"{len(report.near_duplicates)} of {report.tested} test questions ({report.share:.2%}) are near-duplicates "
        f"among {report.texts} texts."
    )
