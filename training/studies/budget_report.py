"""What a study with a budget found: a CSV row per cell, a table, a figure, and one sentence that follows from them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import matplotlib
from matplotlib.figure import Figure
from scipy.stats import t as student_t

from medagent.training.studies.budget import EXAMPLES, RL, Budget, Spent, measured, spent_by
from medagent.training.studies.report import interval, origins
from medagent.training.studies.study import Cell, Study

matplotlib.use("svg")
Asked = tuple[str, str]  # the name of a set, and a kind of question
FIXED = (
    "arm",
    "seed",
    "kind",
    "share",
    "sft_forward",
    "sft_backward",
    "rl_forward",
    "rl_backward",
    "rl_iterations",
    "wall_s",
)
MOST_NAMED = 3  # arms in a sentence
COLOURS = ("#1f4e9c", "#c2571a", "#2f7d4f", "#7a4fa3")


@dataclass(frozen=True)
class CellResult:
    """One cell in numbers: what it spent on each part, and the accuracy on each kind of question of each set.

    `kind` is that of its demonstrations, empty where it has none.
    """

    arm: str
    seed: int
    kind: str
    share: float
    examples: Spent
    rl: Spent
    wall_s: float
    accuracy: Mapping[Asked, float]

    def on(self, name: str) -> float:
        """The accuracy on a set, all kinds weighing the same."""
        return mean(value for (of, _), value in self.accuracy.items() if of == name)

    @property
    def units(self) -> float:
        """What it spent."""
        return self.examples.units + self.rl.units


def result_of(study: Study, cell: Cell) -> CellResult:
    """The numbers of a finished cell, from its files."""
    assert study.budget is not None
    first = study.arms[cell.arm].first
    return CellResult(
        cell.arm,
        cell.seed,
        first.kind if first else "",
        first.share if first else 0.0,
        spent_by(cell.folder / EXAMPLES),
        spent_by(cell.folder / RL),
        cell.wall_s,
        {(name, kind): value for name in study.budget.measured for kind, value in measured(cell.folder, name).items()},
    )


def write_results(path: Path, results: Sequence[CellResult]) -> None:
    """A row per cell; a column per set and kind, as seen/one_hop."""
    asked = list(dict.fromkeys(key for result in results for key in result.accuracy))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*FIXED, *map("/".join, asked)))
        for result in results:
            spent = (result.examples.forward, result.examples.backward, result.rl.forward, result.rl.backward)
            numbers = (*map(round, spent), result.rl.iterations, result.wall_s)
            accuracies = (f"{result.accuracy[key]:.4f}" for key in asked)
            writer.writerow((result.arm, result.seed, result.kind, result.share, *numbers, *accuracies))


def read_results(path: Path) -> list[CellResult]:
    """The inverse of `write_results`."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            CellResult(
                row["arm"],
                int(row["seed"]),
                row["kind"],
                float(row["share"]),
                Spent(float(row["sft_forward"]), float(row["sft_backward"])),
                Spent(float(row["rl_forward"]), float(row["rl_backward"]), int(row["rl_iterations"])),
                float(row["wall_s"]),
                {
                    (name, kind): float(value)
                    for column, value in row.items()
                    if column not in FIXED
                    for name, _, kind in [column.partition("/")]
                },
            )
            for row in csv.DictReader(file)
        ]


def by_arm(results: Iterable[CellResult]) -> dict[str, dict[int, CellResult]]:
    """Arm -> seed -> result, arms in the order of the results."""
    found: dict[str, dict[int, CellResult]] = {}
    for result in results:
        found.setdefault(result.arm, {})[result.seed] = result
    return found


def recommendation(results: Sequence[CellResult], name: str) -> str:
    """The arm that ends highest on a set, and those that the seeds do not tell from it, in one sentence.

    Two arms are told apart where the 95% interval of their paired difference over the seeds leaves 0 out.
    """
    arms = by_arm(results)
    score = {arm: mean(each.on(name) for each in runs.values()) for arm, runs in arms.items()}
    best = max(score, key=score.__getitem__)
    head, alike, seeds = f"Take {best} ({score[best]:.1%} right, {name})", [], len(arms[best])
    if seeds < 2:
        return f"{head}; one seed tells no arm from it."
    for arm, runs in arms.items():
        both = sorted(runs.keys() & arms[best].keys())
        if arm != best and (len(both) < 2 or not _apart(arms[best], runs, both, name)):
            alike.append(arm)
    named = _listed(alike) if len(alike) <= MOST_NAMED else f"{len(alike)} of the other {len(arms) - 1} arms"
    told = f"{seeds} seeds do not tell {named} from it" if alike else f"{seeds} seeds tell all others from it"
    return f"{head}; {told}."


def _apart(ours: Mapping[int, CellResult], theirs: Mapping[int, CellResult], seeds: Sequence[int], name: str) -> bool:
    differences = [ours[seed].on(name) - theirs[seed].on(name) for seed in seeds]
    return abs(mean(differences)) > half_interval(differences)


def _listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> _listed(["0%", "20%", "40%"])
    '0%, 20% and 40%'
    """
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


def write_budget_report(study: Study, cells: Iterable[Cell], out: Path) -> str:
    """Write budget.csv, budget.svg and report.md to `out`; return the text of report.md."""
    assert study.budget is not None
    cells = list(cells)
    results = [result_of(study, cell) for cell in cells]
    write_results(out / "budget.csv", results)
    budget_figure(results, out / "budget.svg")
    text = "\n".join([budget_report(study.title, study.budget, results), "", *origins(cells)])
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    return text


def budget_report(title: str, budget: Budget, results: Sequence[CellResult]) -> str:
    """The table and the recommendation, as text; the last measured set decides."""
    asked = list(results[0].accuracy)
    heads = [f"{name}, {kind.replace('_', '-')}" for name, kind in asked]
    spent_heads = ("M tokens forward", "backward", "M units", "RL iterations", "minutes")
    lines = ["| " + " | ".join(("arm", "seeds", *heads, *spent_heads)) + " |", "|---" * (7 + len(heads)) + "|"]
    for arm, by_seed in by_arm(results).items():
        runs = list(by_seed.values())
        accuracies = [percent([run.accuracy[key] for run in runs]) for key in asked]
        spent = (
            mean(run.examples.forward + run.rl.forward for run in runs),
            mean(run.examples.backward + run.rl.backward for run in runs),
            mean(run.units for run in runs),
        )
        numbers = (*(f"{value / 1e6:.2f}" for value in spent), f"{mean(run.rl.iterations for run in runs):.1f}")
        minutes = interval([run.wall_s / 60 for run in runs])
        lines.append("| " + " | ".join([arm, str(len(runs)), *accuracies, *numbers, minutes]) + " |")
    return "\n".join(
        [
            f"# {title}",
            "",
            *lines,
            "",
            f"Right answers in percent, mean ± half the 95% t-interval over seeds. The budget was {budget.units:,.0f} "
            "units: tokens forward plus twice those backward. Minutes are of the whole cell, measuring and all.",
            "",
            recommendation(results, list(budget.measured)[-1]),
        ]
    )


def percent(values: Sequence[float]) -> str:
    """Mean ± half the 95% t-interval, in percent with one digit.

    >>> percent([0.5])
    '50.0'
    """
    half = f" ± {100 * half_interval(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{half}"


def half_interval(values: Sequence[float]) -> float:
    """Half the 95% t-interval of the mean; 0 of one value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    deviation = math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))
    return float(student_t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))


def budget_figure(results: Sequence[CellResult], path: Path) -> None:
    """Accuracy against the share of demonstrations.

    A panel per kind of demonstrations, a line per set and kind of question, bars for the 95% intervals over seeds.
    """
    kinds = list(dict.fromkeys(result.kind for result in results if result.kind)) or [""]
    figure = Figure(figsize=(1.5 + 4.2 * len(kinds), 4), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        runs = by_arm(result for result in results if result.kind in ("", kind))
        shares = {next(iter(seeds.values())).share: list(seeds.values()) for seeds in runs.values()}
        for number, key in enumerate(results[0].accuracy):
            values = [[run.accuracy[key] for run in shares[share]] for share in sorted(shares)]
            aside = 0.6 * (number - 1.5)  # so that bars do not hide each other
            axes.errorbar(
                [100 * share + aside for share in sorted(shares)],
                [100 * mean(each) for each in values],
                yerr=[100 * half_interval(each) for each in values],
                label=f"{key[0]}, {key[1].replace('_', '-')}",
                color=COLOURS[number % len(COLOURS)],
                marker="o",
                markersize=4,
                linewidth=1.5,
                capsize=2,
            )
        axes.set_title(kind, fontsize=10)
        axes.set_xticks([100 * share for share in sorted(shares)])
        axes.set_xlabel("share of the budget spent on demonstrations (%)", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("right, greedy (%)", fontsize=9)
    panels[-1].legend(fontsize=8, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
