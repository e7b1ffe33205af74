"""Results across benchmarks, as a table for people and as result files of lm-evaluation-harness."""

from __future__ import annotations

import json
import re
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Any

from medagent.evaluation.reports.tables import interval, short
from medagent.evaluation.results_table import ResultsTable
from medagent.files import write_whole


def markdown_table(found: ResultsTable) -> str:
    """Agents by benchmarks with Wilson's intervals, the macro average, and how much was asked, unparsed and failed."""
    sizes = {name: cell.accuracy.n for cells in found.rows.values() for name, cell in cells.items()}
    columns = (f"{name} (n = {sizes[name]})" for name in found.benchmarks)
    rows = [("agent", *columns, "macro average", "n", "unparsed", "errors")]
    for agent, own in found.rows.items():
        macro = found.macro_average(agent)
        counts = zip(*((each.accuracy.n, each.unparsed, each.errors) for each in own.values()), strict=True)
        cells = [short(own[name].accuracy) if name in own else "-" for name in found.benchmarks]
        rows.append((agent, *cells, interval(macro) if macro else "-", *(str(sum(each)) for each in counts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


def lm_eval_results(found: ResultsTable, agent: str) -> dict[str, Any]:
    """The results of an agent in the form of lm-evaluation-harness (`lm_eval/result_schema.py`): a task per benchmark.

    `acc` is strict, with Wilson's interval and the standard error of a mean, "N/A" for one question. Where the agent
    was measured on every benchmark, the macro average is the group "average".
    """
    own, macro = found.rows[agent], found.macro_average(agent)
    results: dict[str, Any] = {}
    for name, cell in own.items():
        part = cell.accuracy
        error = sqrt(part.accuracy * (1 - part.accuracy) / (part.n - 1)) if part.n > 1 else "N/A"
        figures = {"acc": part.accuracy, "acc_stderr": error, "acc_ci_low": part.ci_low, "acc_ci_high": part.ci_high}
        figures |= {"unparsed": cell.unparsed, "errors": cell.errors}
        results[name] = {"alias": name, **{f"{key},none": each for key, each in figures.items()}, "sample_len": part.n}
    group = {}
    if macro:
        errors = [each["acc_stderr,none"] for each in results.values()]
        error = "N/A" if "N/A" in errors else sqrt(sum(each**2 for each in errors)) / len(errors)
        figures = {"acc": macro.value, "acc_stderr": error, "acc_ci_low": macro.ci_low, "acc_ci_high": macro.ci_high}
        group = {"average": {"alias": "macro average", **{f"{key},none": each for key, each in figures.items()}}}
    settings = next(iter(own.values())).settings
    return {
        "results": results | group,
        "groups": group,
        "group_subtasks": {name: list(own) for name in group},
        "configs": {name: {"task": name, "metadata": cell.settings} for name, cell in own.items()},
        "versions": dict.fromkeys(results, 1),
        "n-shot": {name: cell.settings["shots"] for name, cell in own.items()},
        "higher_is_better": {name: {"acc": True} for name in [*own, *group]},
        "n-samples": {name: dict.fromkeys(("original", "effective"), cell.accuracy.n) for name, cell in own.items()},
        "config": {"model": "medagent", "model_args": {"model": agent, "mode": found.mode}, "limit": settings["limit"]},
        "model_source": "medagent",
        "model_name": agent,
        "model_name_sanitized": re.sub(r'["<>:/|\\?*\[\]]+', "__", agent),  # as lm-evaluation-harness does
    }


def write_lm_eval(found: ResultsTable, folder: Path) -> list[Path]:
    """Write results_TIME.json for each agent, into a folder of its name, as lm-evaluation-harness does."""
    time, written = datetime.now().isoformat().replace(":", "-"), []
    for agent in found.rows:
        row = lm_eval_results(found, agent)
        path = folder / row["model_name_sanitized"] / f"results_{time}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(row, indent=2) + "\n")
        written.append(path)
    return written
