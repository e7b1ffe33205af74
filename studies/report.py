"""The report of a study, computed from its runs' metrics alone: a row per run, a table with intervals, tests.

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
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from medagent.errors import ConfigError
from medagent.training.callbacks.collapse_monitor import HELD_OUT, TIE, CollapseDetector, Thresholds
from studies.design import Cell, Study
from studies.statistics import holm, interval, paired, percent, prediction_interval, spread

LEARNT = 0.9  # held-out accuracy
GAIN = 0.05  # of the best over the first iteration's sampled success, below which a run never learnt
FALL = 0.75  # final / best below which a run has collapsed: a quarter is four standard errors of 240 answers
MONITOR = Thresholds(held_out_decides=True)  # every iteration of a study is measured on held-out questions
TEXTS = ("arm", "kind")
Row = dict[str, Any]  # a run: its arm, its seed, and numbers; without those that it does not have


def outcome(rows: Sequence[Mapping[str, float]], watched: str = HELD_OUT) -> Row:
    """Sum up a run from its metrics, one row per iteration, by the `watched` accuracy.

    `learnt`, `collapse_start` and `alarm` are iterations, 1 the first. `learnt`: the first at which two held-out
    accuracies in a row average 90%. `alarm`: where the monitor first speaks. `kl` is the median in nats per token,
    `mean` the accuracy averaged over all iterations, `scale` the correction's mean scale.
    """
    if any(watched not in row for row in rows):
        raise ConfigError(
            f"study: found an iteration of an arm without {watched}, wanted it of each. For {HELD_OUT} add a "
            "data.val_benchmark to its task, and trainer.check_val_every_n_epoch 1."
        )
    accuracy = [row[watched] for row in rows]
    pairs = [(a + b) / 2 for a, b in pairwise(accuracy)] or accuracy
    best, final = max(pairs), pairs[-1]
    never_learnt = best < rows[0]["reward/success"] + GAIN - TIE
    start = None
    if final < FALL * best - TIE and not never_learnt:
        start = len(rows)
        while start > 1 and accuracy[start - 2] < FALL * best - TIE:
            start -= 1
    detector = CollapseDetector(MONITOR if watched == HELD_OUT else Thresholds())
    scales = [row["policy/clip_bias_scale"] for row in rows if "policy/clip_bias_scale" in row]
    found = {
        "best": best,
        "final": final,
        "mean": mean(accuracy),
        "never_learnt": int(never_learnt),
        "learnt": next((number for number, pair in enumerate(pairs, start=2) if pair > LEARNT - TIE), None),
        "collapse_start": start,
        "alarm": next((number for number, row in enumerate(rows, start=1) if detector.observe(row).alarm), None),
        "clip_fraction": mean(row["policy/clip_fraction"] for row in rows),
        "token_clip_fraction": mean(row.get("policy/token_clip_fraction", math.nan) for row in rows),
        "kl": median(row.get("kl/reference", math.nan) for row in rows),
        "grad_norm_p95": float(np.quantile([row["policy/grad_norm"] for row in rows], 0.95)),
        "scale": mean(scales) if scales else None,
    }
    return {name: value for name, value in found.items() if value is not None and not math.isnan(value)}


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Rows as CSV, numbers with nine significant digits."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            values = (row.get(name, "") for name in columns)
            writer.writerow(f"{value:.9g}" if isinstance(value, float) else value for value in values)


def read_rows(path: Path) -> list[Row]:
    """The inverse of `write_rows`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: x if name in TEXTS else float(x) for name, x in row.items() if x or name in TEXTS} for row in rows]


def by_arm(rows: Iterable[Row]) -> dict[str, dict[int, Row]]:
    """Arm -> seed -> row, arms in the order of the rows."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row["arm"], {})[int(row["seed"])] = row
    return found


def column(rows: Iterable[Row], name: str) -> list[float]:
    """A number of each row, not-a-number where it has none."""
    return [float(row.get(name, math.nan)) for row in rows]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)]


def report(study: Study, runs: Sequence[Row]) -> str:
    """The table of arms and the comparisons of a study, as text."""
    head = "arm, seeds, best, final, final of another run, final / best, mean, iterations to 90%, collapsed, "
    head += "clip fraction, tokens beyond 0.2, KL, grad norm p95, scale, minutes"
    arms = by_arm(runs)
    return "\n".join(
        [
            f"# {study.title}",
            "",
            *table(head.split(", "), (_arm(arm, list(arms[arm].values())) for arm in study.arms if arm in arms)),
            "",
            f"By {study.watched}. Mean ± half the 95% t-interval over seeds. Final of another run: the 95% prediction "
            "interval for one more. Best and final are means of two accuracies in a row; mean is over all iterations. "
            "Collapsed: final / best below three quarters. Tokens beyond 0.2: what token weights at 0.2 would clip, "
            "whatever the arm's own level and range. KL is a run's median over iterations, as single tokens decide "
            "its mean. Gradient norms are means of an iteration's steps. For both, the median over seeds and the "
            "range are given.",
            *_compared(study, arms),
        ]
    )


def _arm(arm: str, runs: Sequence[Row]) -> tuple[object, ...]:
    collapsed, never = sum("collapse_start" in run for run in runs), int(sum(column(runs, "never_learnt")))
    learnt = [run["learnt"] for run in runs if "learnt" in run]
    missing = f" ({len(runs) - len(learnt)} never)" if len(learnt) < len(runs) else ""
    return (
        arm,
        len(runs),
        interval(column(runs, "best")),
        interval(column(runs, "final")),
        prediction_interval(column(runs, "final")),
        interval([run["final"] / run["best"] if run["best"] else 0.0 for run in runs]),
        interval(column(runs, "mean")),
        f"{median(learnt):.3g}{missing}" if learnt else "never",
        f"{collapsed} of {len(runs)}" + (f" ({never} never learnt)" if never else ""),
        interval(column(runs, "clip_fraction")),
        interval(column(runs, "token_clip_fraction")),
        spread(column(runs, "kl")),
        spread(column(runs, "grad_norm_p95")),
        interval(column(runs, "scale")),
        interval([seconds / 60 for seconds in column(runs, "wall_s")]),
    )


def _compared(study: Study, arms: Mapping[str, Mapping[int, Row]]) -> list[str]:
    """The pairs that the study compares, by final and by mean held-out accuracy on the seeds that both have."""
    found = []
    for measure in ("final", "mean"):
        for ours, theirs in study.compared:
            seeds = sorted(arms.get(ours, {}).keys() & arms.get(theirs, {}).keys())
            if len(seeds) > 1:
                values = [column((arms[arm][seed] for seed in seeds), measure) for arm in (ours, theirs)]
                ahead = sum(a - b > TIE for a, b in zip(*values, strict=True))
                found.append(
                    ((measure, f"{ours} less {theirs}", len(seeds)), *paired(*values), f"{ahead} of {len(seeds)}")
                )
    corrected = holm([p for *_, p, _ in found])
    rows = [
        (*names, f"{difference:+.3f} ± {half:.2g}", f"{p:.2g}", f"{holm_p:.2g}", ahead)
        for (names, difference, half, p, ahead), holm_p in zip(found, corrected, strict=True)
    ]
    head = ("held-out accuracy", "arms", "seeds", "difference", "p (paired t, two-sided)")
    return ["", *table((*head, "p corrected for the number of tests (Holm)", "seeds ahead"), rows)] if rows else []


def evaluated_row(study: Study, cell: Cell) -> Row:
    """What a finished cell's agent answered: columns NAME/MODE/MEASURE, strict accuracy and the open measures."""
    row: Row = {"arm": cell.arm, "seed": cell.seed}
    for name in study.asked:
        modes = json.loads((cell.folder / name / "report.json").read_text(encoding="utf-8"))["modes"]
        for mode, found in modes.items():
            row[f"{name}/{mode}/strict"] = float(found["accuracy"])
            measures = found["measures"].items()
            row |= {f"{name}/{mode}/{measure}": float(value["value"]) for measure, value in measures}
            row[f"{name}/{mode}/searches"] = float(found["searches_per_question"])
    return row


def answer_rows(study: Study, cell: Cell) -> list[Row]:
    """A row per answer of a finished cell's agent."""
    shown, rows = ("mode", "question_id", "kind", "verdict", "reward", "answer"), []
    for name in study.asked:
        for line in (cell.folder / name / "predictions.jsonl").read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            rows.append({"arm": cell.arm, "seed": cell.seed, "asked": name, **{key: answer[key] for key in shown}})
    return rows


def evaluated(study: Study, rows: Sequence[Row]) -> list[str]:
    """The table of what the arms' agents answered, strictly, in percent over seeds."""
    arms = by_arm(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row if name.endswith("/strict")))
    lines = (
        (arm, len(arms[arm]), *(percent(column(arms[arm].values(), name)) for name in columns))
        for arm in study.arms
        if arm in arms
    )
    heads = (name.removesuffix("/strict").replace("/", ", ").replace("_", " ") for name in columns)
    return [*table(("arm", "seeds", *heads), lines), "", "Right answers in percent; evaluated.csv has all measures."]


def origins(cells: Iterable[Cell]) -> list[str]:
    """The code and machine that made the runs, and a caution if they differ."""
    starts = (
        {k: v for k, v in start.items() if k not in ("wall_s", "returncode")} for c in cells for start in c.starts
    )
    different = {json.dumps(start, sort_keys=True): start for start in starts}
    lines = ["Made with " + ", ".join(f"{k} {v}" for k, v in start.items()) + "." for start in different.values()]
    if len(lines) > 1:
        lines.append(
            "**The runs differ in what made them**: arms may differ by that and not by their settings. Another "
            "folder (--out) repeats them all."
        )
    return lines
