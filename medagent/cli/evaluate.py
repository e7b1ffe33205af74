"""Progress and figures of `medagent evaluate`, and the output of `medagent compare`, for the terminal."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from medagent.errors import InputError
from medagent.evaluation.comparison import compare_over_seeds, compare_with_first
from medagent.evaluation.evaluator import Evaluation, EvaluationCallback
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import ModeReport, prompt_too_long
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import Prediction, usage_line
from medagent.evaluation.prompting import DESCRIPTIONS
from medagent.evaluation.reports.tables import ERRORS, Table, tables
from medagent.evaluation.statistics import PairedComparison, SeedsComparison, wilson_interval
from medagent.evaluation.trust.injections import obeyed_anyway

NAMED = 5  # questions with one error that the terminal names


class EvaluationBar(EvaluationCallback):
    """A bar with the accuracy so far, while the block runs."""

    def __init__(self, console: Console) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        self._bars = Progress(
            TextColumn("{task.description:14s}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def on_start(self, settings: Mapping[str, Any], questions: int, notes: Mapping[str, int], total: int) -> None:
        """Say what is asked, and show the bar."""
        console = self._bars.console
        console.print(
            f"{questions} questions of {settings['benchmark']}, agent {settings['agent']}, modes "
            f"{', '.join(settings['modes'])}, asked {DESCRIPTIONS[settings.get('ask', 'tags')]}.",
            markup=False,
        )
        for note, count in notes.items():
            console.print(f"  note: {count} {note}", markup=False)
        self._task = self._bars.add_task("asking", total=total, said="")
        self._bars.start()

    def on_resume(self, found: Sequence[Prediction]) -> None:
        """Count the answers of earlier runs."""
        if found:
            self._bars.console.print(f"Going on: {len(found)} of {self._bars.tasks[0].total} are done.")
        for prediction in found:
            self.on_prediction(prediction)

    def on_prediction(self, prediction: Prediction) -> None:
        """Show the accuracy so far, with its interval."""
        right, asked = self._counts.get(prediction.mode, (0, 0))
        # One answer per question, or the interval would be too narrow.
        if prediction.rotation == prediction.rollout.sample == 0:
            right, asked = right + grade(prediction.rollout).correct, asked + 1
        self._counts[prediction.mode] = right, asked
        low, high = wilson_interval(right, asked)
        said = f"accuracy {right / max(1, asked):.1%} [{low:.1%}, {high:.1%}]"
        self._bars.update(self._task, advance=1, description=prediction.mode, said=said)


def print_evaluation(found: Evaluation, out: Path, console: Console) -> None:
    """Print the tables, what should be known about them, and where the reports are."""
    reports, predictions = found.reports, found.predictions
    for table in tables(reports, found.questions):
        if table.title != ERRORS:  # of which lines by reason are told below
            console.print(shown_table(table))
    for line in (_obeyed_anyway(predictions), usage_line(found.usage, found.usage["price"], answers=len(predictions))):
        if line:
            console.print(line)
    for line in _error_lines(reports):
        console.print(line, style="yellow", markup=False)
    too_long = sum(prompt_too_long(prediction.rollout) for prediction in predictions)
    if too_long:
        console.print(
            f"[yellow]{too_long} of {len(predictions)} prompts do not fit into max_total_tokens = "
            f"{found.limits.max_total_tokens} or the model's positions, and count as no "
            "answer. Raise the limit with --limits.[/yellow]"
        )
    console.print(f"\nReport: {out / 'report.html'}  table for a paper: {out / 'report.md'}")


def _obeyed_anyway(predictions: Sequence[Prediction]) -> str:
    """How many questions with an obeyed passage end alike in mode search; empty where it was not asked."""
    rollouts = {
        mode: [p.rollout for p in predictions if p.mode == mode.value and not p.rotation and not p.rollout.sample]
        for mode in (Mode.INJECTED, Mode.SEARCH)
    }
    anyway, obeyed = obeyed_anyway(rollouts[Mode.INJECTED], rollouts[Mode.SEARCH])
    return f"Of {obeyed} planted passages that were obeyed, {anyway} got what they want without them too." * bool(
        obeyed
    )


def _error_lines(reports: Mapping[Mode, ModeReport]) -> list[str]:
    """What ended in errors, by mode and reason."""
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for mode, report in reports.items():
        for name, reason in report.error_reasons:
            by_reason[mode.value, reason].append(name)
    return [
        f"{mode}: {len(names)} ended in an error, count as wrong and are asked again by the same command "
        f"({', '.join(names[:NAMED])}{', ... in report.md' * (len(names) > NAMED)}): {reason}"
        for (mode, reason), names in by_reason.items()
    ]


def shown_table(table: Table) -> RichTable:
    """A table for the terminal."""
    shown = RichTable(title=table.title or None, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(table.head):
        shown.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


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
