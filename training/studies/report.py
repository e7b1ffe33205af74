"""What a study found, computed from its runs' metrics alone.

It writes a CSV, a table with intervals over seeds, figures, and how the collapse monitor did.

A run has collapsed if its last two held-out accuracies average less than three quarters of the best two in a row. The
collapse starts at the first iteration after that best from which held-out accuracy stays below three quarters of it.

A run never learnt if its best is not five points above the sampled success of the first iteration. It has nothing to
lose, and its ups and downs are noise.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from scipy.stats import t as student_t
from scipy.stats import ttest_rel

from medagent.training.callbacks.collapse_signs import TIE, WATCHED, CollapseDetector, Thresholds
from medagent.training.callbacks.export import read_metrics
from medagent.training.studies.figures import curves_figure, summary_figure
from medagent.training.studies.study import Cell, Study

LEARNT = 0.9  # held-out accuracy
GAIN = 0.05  # of the best over the first iteration's sampled success, below which a run never learnt
FALL = 0.75  # final / best below which a run has collapsed: a quarter is four standard errors of 240 answers
MONITOR = Thresholds(held_out_decides=True)  # every iteration of a study is measured on held-out questions
MONITOR_DELAY = 3  # iterations from a collapse's start within which its alarm is in time
COLUMNS = (
    *WATCHED,
    "validation/accuracy",
    "policy/clip_bias_scale",
    "policy/approx_kl",
    "time/rollout",
    "time/update",
    "policy/token_clip_fraction",
)
Row = dict[str, float]


@dataclass(frozen=True)
class RunOutcome:
    """One run in numbers.

    `learnt`, `start` and `alarm` are iterations, 1 the first, or none. `learnt`: the first at which two held-out
    accuracies in a row average 90%. `start`: where a collapse begins. `alarm`: where the monitor first speaks. `kl` is
    the median in nats per token, `mean` the accuracy averaged over all iterations.
    """

    best: float
    final: float
    mean: float
    never_learnt: bool
    learnt: int | None
    start: int | None
    alarm: int | None
    clip_fraction: float
    token_clip_fraction: float
    kl: float
    grad_norm_p95: float

    @property
    def kept(self) -> float:
        """What is left of the best: final / best."""
        return self.final / self.best if self.best > 0 else 0.0

    @property
    def collapsed(self) -> bool:
        """Whether the run ended below three quarters of its best."""
        return self.start is not None


def outcome(rows: Sequence[Row], thresholds: Thresholds = MONITOR) -> RunOutcome:
    """Sum up a run from its rows, one per iteration."""
    accuracy = [row["validation/accuracy"] for row in rows]
    pairs = [(a + b) / 2 for a, b in pairwise(accuracy)] or accuracy
    best, final = max(pairs), pairs[-1]
    never_learnt = best < rows[0]["reward/success"] + GAIN - TIE
    start = None
    if final < FALL * best - TIE and not never_learnt:
        start = len(rows)
        while start > 1 and accuracy[start - 2] < FALL * best - TIE:
            start -= 1
    detector = CollapseDetector(thresholds)
    alarm = next((number for number, row in enumerate(rows, start=1) if detector.observe(row).alarm), None)
    return RunOutcome(
        best=best,
        final=final,
        mean=mean(accuracy),
        never_learnt=never_learnt,
        learnt=next((number for number, pair in enumerate(pairs, start=2) if pair > LEARNT - TIE), None),
        start=start,
        alarm=alarm,
        clip_fraction=mean(row["policy/clip_fraction"] for row in rows),
        token_clip_fraction=mean(row.get("policy/token_clip_fraction", math.nan) for row in rows),
        kl=median(row["kl/reference"] for row in rows),
        grad_norm_p95=float(np.quantile([row["policy/grad_norm"] for row in rows], 0.95)),
    )


def interval(values: Sequence[float]) -> str:
    """Mean ± half the 95% t-interval over seeds, or nothing where a metric was not logged."""
    if any(map(math.isnan, values)):
        return ""
    if len(values) < 2:
        return f"{values[0]:.3g}"
    half = float(student_t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{mean(values):.3g} ± {half:.2g}"


def another(values: Sequence[float]) -> str:
    """The 95% prediction interval of the accuracy of a run with another seed, or on another machine.

    Nothing for one run.
    """
    if len(values) < 2:
        return ""
    half = float(student_t.ppf(0.975, len(values) - 1)) * stdev(values) * math.sqrt(1 + 1 / len(values))
    return f"{max(0.0, mean(values) - half):.2f} to {min(1.0, mean(values) + half):.2f}"


def spread(values: Sequence[float]) -> str:
    """Median and range over seeds, for heavy-tailed metrics; nothing where a metric was not logged."""
    if any(map(math.isnan, values)):
        return ""
    return f"{median(values):.2g} ({min(values):.2g} to {max(values):.2g})"


def write_report(study: Study, cells: Iterable[Cell], out: Path) -> str:
    """Write metrics.csv, runs.csv, figures.svg and report.md to `out`; return the text of report.md."""
    cells = list(cells)
    runs = {(cell.arm, cell.seed): read_metrics(cell.folder) for cell in cells}
    wall = {(cell.arm, cell.seed): cell.wall_s for cell in cells if cell.finished}
    _write_metrics(out / "metrics.csv", runs)
    text = "\n".join([report(study, runs, wall, out), "", *origins(cells)])
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    return text


def origins(cells: Iterable[Cell]) -> list[str]:
    """What the runs were made with, and a caution where they differ in it."""
    starts = [
        {k: v for k, v in start.items() if k not in ("wall_s", "returncode")} for c in cells for start in c.starts
    ]
    different = {json.dumps(start, sort_keys=True): start for start in starts}
    lines = ["Made with " + ", ".join(f"{k} {v}" for k, v in start.items()) + "." for start in different.values()]
    if len(lines) > 1:
        lines.append(
            "**The runs differ in what made them**: arms may differ by that and not by their settings. Another "
            "folder (--out) repeats them all."
        )
    return lines


def report(
    study: Study, runs: Mapping[tuple[str, int], Sequence[Row]], wall_s: Mapping[tuple[str, int], float], out: Path
) -> str:
    """The table, comparisons and monitor's record of runs by (arm, seed), as text.

    Writes runs.csv, figures.svg and summary.svg to `out`.
    """
    outcomes = {key: outcome(rows) for key, rows in runs.items()}
    _write_outcomes(out / "runs.csv", outcomes, wall_s)
    curves_figure(list(study.arms), runs, out / "figures.svg")
    points = {arm: [(o.best, o.final) for (name, _), o in outcomes.items() if name == arm] for arm in study.arms}
    summary_figure(points, out / "summary.svg")
    return "\n".join(
        [
            f"# {study.title}",
            "",
            *_table(study, outcomes, wall_s),
            "",
            "Mean ± half the 95% t-interval over seeds. Final of another run: the 95% prediction interval for one "
            "more. Best and final are means of two held-out accuracies in a row; mean is over all iterations. "
            "Collapsed: final / best below three quarters. Tokens beyond 0.2: what token weights at 0.2 would clip, "
            "whatever the arm's own level and range. KL is a run's median over iterations, as single tokens decide "
            "its mean. Gradient norms are means of an iteration's steps. For both, the median over seeds and the "
            "range are given.",
            "",
            *_compared(study, outcomes),
            *_monitor(outcomes),
        ]
    )


def _write_metrics(path: Path, runs: Mapping[tuple[str, int], Sequence[Row]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arm", "seed", "iteration", *COLUMNS))
        for (arm, seed), rows in runs.items():
            for number, row in enumerate(rows, start=1):
                writer.writerow((arm, seed, number, *(f"{row[n]:.6g}" if n in row else "" for n in COLUMNS)))


def _write_outcomes(
    path: Path, outcomes: Mapping[tuple[str, int], RunOutcome], wall_s: Mapping[tuple[str, int], float]
) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        header = ("best", "final", "final/best", "mean", "learnt", "collapse_start", "alarm", "wall_s")
        writer.writerow(("arm", "seed", *header))
        for (arm, seed), o in outcomes.items():
            accuracies = (f"{value:.4f}" for value in (o.best, o.final, o.kept, o.mean))
            iterations = (o.learnt or "", o.start or "", o.alarm or "")
            writer.writerow((arm, seed, *accuracies, *iterations, wall_s.get((arm, seed), "")))


def _table(
    study: Study, outcomes: Mapping[tuple[str, int], RunOutcome], wall_s: Mapping[tuple[str, int], float]
) -> list[str]:
    def of(arm: str) -> list[RunOutcome]:
        return [o for (name, _), o in outcomes.items() if name == arm]

    floor = mean(o.best for o in of(study.tuned)) - 0.05 if study.tuned and of(study.tuned) else None
    lines = [
        (
            "| arm | seeds | best | final | final of another run | final / best | mean | iterations to 90% | "
            "collapsed | stable | clip fraction | tokens beyond 0.2 | KL | grad norm p95 | minutes |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in study.arms:
        some = of(arm)
        if not some:
            continue
        collapsed = sum(o.collapsed for o in some)
        if collapsed:
            stable = "no"
        elif floor is None:
            stable = ""  # nobody says what can be learnt
        else:
            stable = "yes" if mean(o.best for o in some) >= floor else "no (learns less)"
        never = sum(o.never_learnt for o in some)
        minutes = [wall_s[key] / 60 for key in outcomes if key[0] == arm and key in wall_s]
        cells = (
            arm,
            str(len(some)),
            *(interval([getattr(o, name) for o in some]) for name in ("best", "final")),
            another([o.final for o in some]),
            *(interval([getattr(o, name) for o in some]) for name in ("kept", "mean")),
            _reached([o.learnt for o in some]),
            f"{collapsed} of {len(some)}" + (f" ({never} never learnt)" if never else ""),
            stable,
            *(interval([getattr(o, name) for o in some]) for name in ("clip_fraction", "token_clip_fraction")),
            *(spread([getattr(o, name) for o in some]) for name in ("kl", "grad_norm_p95")),
            interval(minutes) if minutes else "",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Two arms on the same seeds: mean difference, half its 95% t-interval, two-sided p of a paired t-test."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    half = float(student_t.ppf(0.975, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    return mean(differences), half, float(ttest_rel(ours, theirs).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979, step-down), in the order given."""
    corrected, least = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, p[place] * (len(p) - rank)))
        corrected[place] = least
    return corrected


def _compared(study: Study, outcomes: Mapping[tuple[str, int], RunOutcome]) -> list[str]:
    """The pairs that the study compares, by final and by mean held-out accuracy on the seeds that both have."""
    found = []
    for measure in ("final", "mean"):
        for ours, theirs in study.compared:
            seeds = [seed for arm, seed in outcomes if arm == ours and (theirs, seed) in outcomes]
            if len(seeds) < 2:
                continue
            values = [[getattr(outcomes[arm, seed], measure) for seed in seeds] for arm in (ours, theirs)]
            ahead = sum(a - b > TIE for a, b in zip(*values, strict=True))
            found.append((f"{measure} | {ours} less {theirs}", len(seeds), *paired(*values), ahead))
    corrected = holm([p for *_, p, _ in found])
    lines = [
        f"| {pair} | {n} | {difference:+.3f} ± {half:.2g} | {p:.2g} | {holm_p:.2g} | {ahead} of {n} |"
        for (pair, n, difference, half, p, ahead), holm_p in zip(found, corrected, strict=True)
    ]
    head = [
        (
            "| held-out accuracy | arms | seeds | difference | p (paired t, two-sided) | p corrected for the number of "
            "tests (Holm) | seeds ahead |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    return [*head, *lines, ""] if lines else []


def _reached(iterations: Sequence[int | None]) -> str:
    """The median over the runs that reached 90%, and how many did not."""
    there = [number for number in iterations if number is not None]
    missing = len(iterations) - len(there)
    if not there:
        return "never"
    return f"{median(there):.3g}" + (f" ({missing} never)" if missing else "")


def confusion(outcomes: Iterable[RunOutcome]) -> dict[str, int]:
    """How often the monitor's first alarm names a collapse in time, early, late or never, or is false."""
    counts = dict.fromkeys(("named in time", "named early", "named late", "missed", "false alarm", "rightly silent"), 0)
    for o in outcomes:
        if o.start is None:
            counts["rightly silent" if o.alarm is None else "false alarm"] += 1
        elif o.alarm is None:
            counts["missed"] += 1
        else:
            late = o.alarm - o.start
            timing = "late" if late > MONITOR_DELAY else "early" if late < -MONITOR_DELAY else "in time"
            counts[f"named {timing}"] += 1
    return counts


def _monitor(outcomes: Mapping[tuple[str, int], RunOutcome]) -> list[str]:
    counts = confusion(outcomes.values())
    head = f"Collapse monitor (in time: within {MONITOR_DELAY} iterations of the start):"
    return [
        head,
        "",
        "| " + " | ".join(counts) + " |",
        "|" + "---|" * len(counts),
        "| " + " | ".join(map(str, counts.values())) + " |",
    ]
