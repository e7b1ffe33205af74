"""The report of a study with a budget: a row per cell, a table, and one sentence that follows from them.

The accuracy on a kind of question of a measured set is a column SET/KIND, such as seen/one_hop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from medagent.evaluation.viewer.recorded import read_metrics
from medagent.training.default_callbacks import budget_units
from studies.design import EXAMPLES, RL, Budget, Cell, Study
from studies.report import Row, by_arm, column, table
from studies.statistics import half_interval, interval, percent

MOST_NAMED = 3  # arms in a sentence


@dataclass(frozen=True)
class Spent:
    """Tokens that a run has read, and its iterations."""

    forward: float = 0.0
    backward: float = 0.0
    iterations: int = 0

    @property
    def units(self) -> float:
        """Both in units of one token read forward."""
        return budget_units(self.forward, self.backward)


def spent_by(run: Path) -> Spent:
    """The tokens that a run has spent according to its metrics; zero without a run."""
    rows = read_metrics(run)
    return (
        Spent(rows[-1]["compute/forward_tokens"], rows[-1]["compute/backward_tokens"], len(rows)) if rows else Spent()
    )


def units_of(row: Row) -> float:
    """The compute that a cell spent, in tokens read forward."""
    return budget_units(row["sft_forward"] + row["rl_forward"], row["sft_backward"] + row["rl_backward"])


def budget_row(study: Study, cell: Cell) -> Row:
    """The numbers of a finished cell, from its files; `kind` is that of its demonstrations, empty without them."""
    assert study.budget is not None
    first = study.arms[cell.arm].first
    sft, rl = spent_by(cell.folder / EXAMPLES), spent_by(cell.folder / RL)
    row: Row = {"arm": cell.arm, "seed": cell.seed}
    row |= {"kind": first.kind if first else "", "share": first.share if first else 0.0}
    row |= {"sft_forward": round(sft.forward), "sft_backward": round(sft.backward)}
    row |= {"rl_forward": round(rl.forward), "rl_backward": round(rl.backward), "rl_iterations": rl.iterations}
    row |= {"wall_s": cell.wall_s}
    for name in study.budget.measured:
        report = json.loads((cell.folder / name / "report.json").read_text(encoding="utf-8"))
        row |= {f"{name}/{kind}": float(part["accuracy"]) for kind, part in sorted(report["by_type"].items())}
    return row


def accuracy(row: Row, name: str) -> float:
    """The accuracy on a set, all kinds of questions weighing the same."""
    return mean(value for key, value in row.items() if key.startswith(f"{name}/"))


def recommendation(rows: Sequence[Row], name: str) -> str:
    """The arm that ends highest on a set, and those that the seeds do not tell from it, in one sentence.

    Two arms are told apart where the 95% interval of their paired difference over the seeds leaves 0 out.
    """
    arms = {arm: {seed: accuracy(row, name) for seed, row in runs.items()} for arm, runs in by_arm(rows).items()}
    score = {arm: mean(runs.values()) for arm, runs in arms.items()}
    best = max(score, key=score.__getitem__)
    head, seeds, alike = f"Take {best} ({score[best]:.1%} right, {name})", len(arms[best]), []
    if seeds < 2:
        return f"{head}; one seed tells no arm from it."
    for arm, runs in arms.items():
        differences = [arms[best][seed] - runs[seed] for seed in sorted(runs.keys() & arms[best].keys())]
        if arm != best and (len(differences) < 2 or abs(mean(differences)) <= half_interval(differences)):
            alike.append(arm)
    if not alike:
        return f"{head}; {seeds} seeds tell all others from it."
    *others, last = alike
    named = f"{', '.join(others)} and {last}" if others else last
    if len(alike) > MOST_NAMED:
        named = f"{len(alike)} of the other {len(arms) - 1} arms"
    return f"{head}; {seeds} seeds do not tell {named} from it."


def budget_report(title: str, budget: Budget, rows: Sequence[Row]) -> str:
    """The table and the recommendation, as text; the last measured set decides."""
    asked = [name for name in rows[0] if "/" in name]
    head = ["arm", "seeds", *(name.replace("/", ", ").replace("_", "-") for name in asked), "M tokens forward"]
    lines = []
    for arm, by_seed in by_arm(rows).items():
        runs = list(by_seed.values())
        forward, backward, units = (
            f"{mean(values) / 1e6:.2f}"
            for values in (
                [run["sft_forward"] + run["rl_forward"] for run in runs],
                [run["sft_backward"] + run["rl_backward"] for run in runs],
                [units_of(run) for run in runs],
            )
        )
        iterations, minutes = f"{mean(column(runs, 'rl_iterations')):.1f}", [run["wall_s"] / 60 for run in runs]
        accuracies = (percent(column(runs, name)) for name in asked)
        lines.append((arm, len(runs), *accuracies, forward, backward, units, iterations, interval(minutes)))
    return "\n".join(
        [
            f"# {title}",
            "",
            *table((*head, "backward", "M units", "RL iterations", "minutes"), lines),
            "",
            f"Right answers in percent, mean ± half the 95% t-interval over seeds. The budget was {budget.units:,.0f} "
            "units: tokens forward plus twice those backward. Minutes are of the whole cell, measuring and all.",
            "",
            recommendation(rows, list(budget.measured)[-1]),
        ]
    )
