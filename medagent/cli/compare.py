"""The output of `medagent compare`, `grade` and `contamination`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.comparison import compare_over_seeds, compare_with_first
from medagent.evaluation.contamination import contamination, question_texts
from medagent.evaluation.corpora import corpus_passages
from medagent.evaluation.grading.raw_replies import read_replies, summarize_replies, write_readings
from medagent.evaluation.results_table import lm_eval_results, markdown_table, results_table, write_lm_eval
from medagent.evaluation.statistics import PairedComparison, SeedsComparison


def comparison_text(result: PairedComparison, of: int = 1) -> str:
    """A comparison, one of several with the same A, as two lines for people."""
    verdict = "differ" if result.p_holm < 0.05 else "cannot be told apart"
    adjusted = f", by Holm's method over {of} comparisons {_p(result.p_holm)}" if of > 1 else ""
    return (
        f"A {result.accuracy_a:.1%}, B {result.accuracy_b:.1%}: B - A = {result.difference:+.1%} "
        f"[{result.ci_low:+.1%}, {result.ci_high:+.1%}] (paired bootstrap, 95%), n = {result.n}.\nRight in A only: "
        f"{result.only_a}, in B only: {result.only_b}. McNemar's exact p {_p(result.p_mcnemar)}{adjusted}: "
        f"at 5% they {verdict}."
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
    runs: Sequence[str | list[str]], *, mode: str | None, mode_b: str | None, seed: int, as_json: bool
) -> None:
    """Compare with the first and print. Lists of folders are seeds, and then there are two lists."""
    if any(isinstance(run, list) for run in runs):
        if len(runs) != 2:
            raise InputError(
                f"found {len(runs)} arguments with lists of seeds among them, wanted two. Compare two agents at a time."
            )
        a, b = ([Path(each) for each in ([x] if isinstance(x, str) else x)] for x in runs)
        pooled = compare_over_seeds(a, b, mode=mode, mode_b=mode_b, seed=seed)
        print(json.dumps(asdict(pooled)) if as_json else seeds_text(pooled, a, b))
        return
    found = compare_with_first([str(run) for run in runs], mode=mode, mode_b=mode_b, seed=seed)
    if as_json:
        print(json.dumps(asdict(found[0]) if len(found) == 1 else [asdict(each) for each in found]))
        return
    print(f"A: {runs[0]}, {found[0].mode_a}")
    for run, result in zip(runs[1:], found, strict=True):
        print(f"B: {run}, {result.mode_b}\n{comparison_text(result, of=len(found))}")


def print_table(runs: Sequence[str], *, mode: str | None, as_json: bool, lm_eval: str | None) -> None:
    """Print the table of results, and write lm-evaluation-harness's files into the folder `lm_eval`."""
    found = results_table(runs, mode=mode)
    print(json.dumps([lm_eval_results(found, agent) for agent in found.rows]) if as_json else markdown_table(found))
    for path in write_lm_eval(found, Path(lm_eval)) if lm_eval else ():
        print(path, file=sys.stderr)


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
