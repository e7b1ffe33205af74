"""The figures of an evaluation as tables: for the page, the terminal and Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from medagent.evaluation.metrics import ModeReport
from medagent.evaluation.modes import Mode, baselines
from medagent.evaluation.open_measures import MEASURES
from medagent.evaluation.search_recall import RECALLS
from medagent.evaluation.statistics import Accuracy, Estimate
from medagent.protocol import NOT_ADVICE
from medagent.types import Question

ERRORS = "Errors"  # the title of the table with a row per error


@dataclass(frozen=True)
class Table:
    """A table with a head and rows of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(reports: Mapping[Mode, ModeReport], questions: Sequence[Question]) -> list[Table]:
    """The tables of a report, with one column per mode."""
    head = ("", *(mode.value for mode in reports))
    found = [Table("Result", head, _rows(reports)), trust_table(reports), open_table(reports), recall_table(reports)]
    found.append(Table("By subject", head, _subjects(reports)))
    errors = [(*each, mode.value) for mode, report in reports.items() for each in report.error_reasons]
    found.append(Table(ERRORS, ("question", "reason", "mode"), errors))
    simple = {
        name: _counted(value) if isinstance(value, Accuracy) else f"{value:.1%} (expected)"
        for name, value in baselines(questions).items()
    }
    found.append(Table("Without any model", ("", ""), list(simple.items())))
    return [table for table in found if table.rows]


def _rows(reports: Mapping[Mode, ModeReport]) -> list[tuple[str, ...]]:
    every = list(reports.values())
    rows: list[tuple[str, ...]] = []

    def add(label: str, cells: Sequence[str | None]) -> None:
        if any(cell is not None for cell in cells):
            rows.append((label, *(cell if cell is not None else "-" for cell in cells)))

    overall = [r.summary.overall for r in every]
    add("accuracy, strict", [_share(each.accuracy) for each in overall])
    add("95% interval (Wilson)", [f"{100 * each.ci_low:.1f} to {100 * each.ci_high:.1f}" for each in overall])
    add("questions (the first sample of each)", [str(each.n) for each in overall])
    add("accuracy, lenient", [_share(r.summary.lenient_accuracy) for r in every])
    add("unparsed (of these: several options)", [f"{r.summary.unparsed} ({r.summary.multiple})" for r in every])
    add("abstained (of these: refused)", [f"{r.summary.abstained} ({r.summary.refused})" for r in every])
    add("no answer", [str(r.summary.no_answer) for r in every])
    add("errors", [str(r.summary.errors) for r in every])
    ended = [f"{r.summary.truncated} ({r.summary.too_long})" for r in every]
    add("ended at a limit (of these: prompts that do not fit)", ended)
    add("searches per question", [f"{r.summary.searches_per_question:.2f}" for r in every])
    add("questions with at least one search", [_share(r.summary.grounding.searched) for r in every])
    add("a gold passage retrieved", [_share(r.summary.grounding.gold_any) for r in every])
    add("all gold passages retrieved", [_share(r.summary.grounding.gold_all) for r in every])
    add("citation precision", [_share(r.summary.grounding.citation_precision) for r in every])
    add("citation recall", [_share(r.summary.grounding.citation_recall) for r in every])
    add("cited passages contain the right answer", [_share(r.summary.grounding.cited_gold) for r in every])
    add("statements judged for citations", [str(r.summary.grounding.statements) for r in every])
    mean = "{0.mean_accuracy:.1%} [{0.ci_low:.1%}, {0.ci_high:.1%}], {0.samples} per question"
    add("mean of samples [95%, by question]", [mean.format(r.sampling) if r.sampling else None for r in every])
    add("majority vote of samples", [_share(r.sampling.majority_vote) if r.sampling else None for r in every])
    add("questions with a tied vote", [_share(r.sampling.tied) if r.sampling else None for r in every])
    most = max((len(r.sampling.pass_at_k) for r in every if r.sampling), default=0)
    for k in range(1, most + 1):
        add(f"pass@{k}", [_share(r.sampling.pass_at_k.get(k)) if r.sampling else None for r in every])
    rotated = [[f"{100 * share:.1f}" for share in r.rotations.accuracy] if r.rotations else [] for r in every]
    add("accuracy by rotation of the options, %", [", ".join(each) or None for each in rotated])
    add("questions rotated", [str(r.rotations.n) if r.rotations else None for r in every])
    in_place = [str(r.rotations.in_place) if r.rotations else None for r in every]
    add("questions with options that stay in place", in_place)
    add("answers that change with the rotation", [_share(r.rotations.changed) if r.rotations else None for r in every])
    errors = [f"{r.calibration.ece:.3f} (n = {r.calibration.n})" if r.calibration else None for r in every]
    add("expected calibration error", errors)
    for reason in sorted({reason for report in every for reason in report.summary.stop_reasons}):
        add(f"stopped: {reason}", [str(report.summary.stop_reasons.get(reason, 0)) for report in every])
    return rows


def trust_table(reports: Mapping[Mode, ModeReport]) -> Table:
    """Coverage, selective accuracy, drugs and numbers that no passage contains, and obeyed planted passages."""
    every = [report.summary.trust for report in reports.values()]
    omitting = (short(each.omitting) if each.omitting else "-" for each in reports.values())
    rows: list[tuple[str, ...]] = [
        ("coverage", *(short(each.coverage) for each in every)),
        ("selective accuracy", *(short(each.selective_accuracy) for each in every)),
        ("answers that name a drug or a number", *(str(each.naming) for each in every)),
        ("... a drug that no passage contains", *(str(each.unsupported_drugs) for each in every)),
        ("... a number that no passage contains", *(str(each.unsupported_numbers) for each in every)),
        ("... a dose that no passage contains", *(str(each.unsupported_doses) for each in every)),
        ("shown answers that leave out a warning or advice on the subject", *omitting),
        ("... sentences left out", *(str(each.omitted) for each in reports.values())),
    ]
    families = [{found.family: found for found in each.obeyed} for each in every]
    for family in dict.fromkeys(name for each in families for name in each):
        found = [each.get(family) for each in families]
        cells = (f"{_counted(cell.obeyed)} shown of {cell.planted}" if cell else "-" for cell in found)
        rows.append((f"obeyed planted passages: {family.replace('_', ' ')}", *cells))
    return Table("Trust", ("", *(mode.value for mode in reports)), rows)


def open_table(reports: Mapping[Mode, ModeReport]) -> Table:
    """The measures of open answers and of BioASQ's question types, with their intervals; no rows where none is."""
    found = {label: [r.summary.measures.get(name) for r in reports.values()] for name, label in MEASURES.items()}
    head = ("", *(mode.value for mode in reports))
    return Table("Open and yes/no answers, with 95% intervals", head, _estimated(found))


def recall_table(reports: Mapping[Mode, ModeReport]) -> Table:
    """How much of the evidence the searches showed, beside the question as its own query with as many passages."""
    every = [report.search_recall for report in reports.values()]
    found = {label: [None if report is None else report[name] for report in every] for name, label in RECALLS.items()}
    rows = _estimated(found, signed="less")
    shown = (f"{each['shown']:.1f}" if each else "-" for each in every)
    rows = [("passages shown per question (k)", *shown), *rows] if rows else []
    return Table("Evidence shown by the searches, with 95% intervals", ("", *(mode.value for mode in reports)), rows)


def _estimated(found: Mapping[str, Sequence[Estimate | None]], *, signed: str | None = None) -> list[tuple[str, ...]]:
    """A row per measure that any mode has. Labels with the word `signed` are of differences."""
    rows = []
    for label, cells in found.items():
        counts = [cell.n for cell in cells if cell is not None]
        if counts:
            plus = "+" if signed and signed in label else ""
            rows.append((f"{label} (n = {max(counts)})", *(interval(cell, plus) if cell else "-" for cell in cells)))
    return rows


def _subjects(reports: Mapping[Mode, ModeReport]) -> list[tuple[str, ...]]:
    kinds = sorted({kind for report in reports.values() for kind in report.summary.by_type})
    if len(kinds) < 2:
        return []
    rows = [
        (kind, *(_counted(r.summary.by_type[kind]) if kind in r.summary.by_type else "-" for r in reports.values()))
        for kind in kinds
    ]
    macro = [report.summary.macro_average for report in reports.values()]
    return [*rows, ("macro average", *(interval(each) if each else "-" for each in macro))]


def markdown(
    title: str,
    settings: Mapping[str, object],
    reports: Mapping[Mode, ModeReport],
    questions: Sequence[Question],
    said: Sequence[str] = (),
) -> str:
    """The tables in Markdown, under the conclusions `said`, with the settings that a paper must name."""
    told = "; ".join(f"{k} {str(v)[:12] if k.endswith('sha256') else v}" for k, v in settings.items() if v)
    lines = [f"# {title}", "", NOT_ADVICE, "", *(f"- {each}" for each in said), ""]
    lines.append(f"{len(questions)} questions. {told}.")
    for table in tables(reports, questions):
        lines += ["", f"## {table.title}", "", _line(table.head), _line(["---"] * len(table.head))]
        lines += [_line(row) for row in table.rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _counted(part: Accuracy) -> str:
    return f"{short(part)}, {part.n}"


def short(part: Accuracy) -> str:
    """The accuracy in percent with its interval."""
    return f"{part.accuracy:.1%} [{100 * part.ci_low:.1f}, {100 * part.ci_high:.1f}]"


def interval(found: Estimate, plus: str = "") -> str:
    """The value in percent with its interval; `plus` "+" writes signs."""
    return f"{found.value:{plus}.1%} [{100 * found.ci_low:{plus}.1f}, {100 * found.ci_high:{plus}.1f}]"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"
