"""What `medagent compare`, `grade` and `contamination` print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from evaluation.benchmarks.source import BenchmarkSource
from evaluation.compare import compare_runs
from evaluation.contamination import contamination, question_texts
from evaluation.corpora import corpus_passages
from evaluation.grading.raw_replies import read_replies, summarize_replies, write_readings
from evaluation.statistics import PairedComparison
from medagent.errors import InputError


def comparison_text(result: PairedComparison) -> str:
    """A comparison as two lines for people."""
    verdict = "differ" if result.p_mcnemar < 0.05 else "cannot be told apart"
    p = f"= {result.p_mcnemar:.4f}" if result.p_mcnemar >= 0.0001 else "< 0.0001"
    return (
        f"A {result.accuracy_a:.1%}, B {result.accuracy_b:.1%}: B - A = {result.difference:+.1%} "
        f"[{result.ci_low:+.1%}, {result.ci_high:+.1%}] (paired bootstrap, 95%), n = {result.n}.\nRight in A only: "
        f"{result.only_a}, in B only: {result.only_b}. McNemar's exact p {p}: at 5% they {verdict}."
    )


def print_comparison(a: Path, b: Path, *, mode: str | None, mode_b: str | None, seed: int, as_json: bool) -> None:
    """Compare and print."""
    result = compare_runs(a, b, mode=mode, mode_b=mode_b, seed=seed)
    if as_json:
        print(json.dumps(asdict(result)))
        return
    print(f"A: {a}, {result.mode_a}\nB: {b}, {result.mode_b}\n{comparison_text(result)}")


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
        f"among {report.texts} texts. {report.common_stretches} share 64 characters with one of them; stock phrases do "
        "so too, so this number decides nothing."
    )
