"""The work and the output of `medagent rubric`, `acceptance` and `questions make`, which ask a model for long."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from medagent.api import LoadedAgent
from medagent.cli.ask import opened
from medagent.cli.commands.evaluate import AcceptanceCommand
from medagent.cli.evaluate import shown_table
from medagent.cli.safe_text import escape
from medagent.errors import InputError, MedagentError
from medagent.evaluation.acceptance import Acceptance, ask_all, read_acceptance, read_results
from medagent.evaluation.benchmarks.source import source_named
from medagent.evaluation.fingerprints import agent_fingerprint, index_fingerprint
from medagent.evaluation.question_making.making import Making, make_questions, question_row
from medagent.evaluation.question_making.writer import Writer
from medagent.evaluation.reports.tables import Table, interval, short
from medagent.evaluation.rubrics.judging import PROMPTS_SHA256, Asking, JudgeSettings, RubricReport
from medagent.evaluation.rubrics.responder import Responder
from medagent.evaluation.statistics import Accuracy, Estimate
from medagent.files import write_whole
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import RunFolder

NO_VERDICT = (
    "A model judged these texts by written criteria. That is no medical verdict, and says nothing of the safety of "
    "an answer."
)


@contextmanager
def progress_of(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def print_rubric(report: RubricReport, out: Path, console: Console) -> None:
    """Print the figures."""
    for table in tables(report):
        console.print(shown_table(table))
    console.print(
        f"{report.verdicts} verdicts, {report.unread} of them unreadable, for which {report.left_out} rows are left "
        f"out. {report.empty} replies are empty. Prompts {PROMPTS_SHA256[:12]}.\n{NO_VERDICT}\n"
        f"Report: {out / 'report.json'}",
        markup=False,
    )


def tables(report: RubricReport) -> list[Table]:
    """The figures as tables."""
    found: list[Table] = []
    rows: list[tuple[str, ...]]
    if report.scores:
        rows = [
            (name, f"{each.value:.3f} [{each.ci_low:.3f}, {each.ci_high:.3f}]", str(each.n))
            for name, each in report.scores.items()
        ]
        found.append(Table("Score by rubric", ("", "score [95%]", "cases"), rows))
    if report.agreement:
        rows = [
            ("judge and a person agree", _counted(report.agreement.agreed)),
            ("macro F1 of the judge", f"{report.agreement.macro_f1:.3f}"),
            ("two people agree", _counted(report.agreement.people)),
        ]
        found.append(Table("Agreement with people", ("", ""), rows))
    return found


def _counted(share: Estimate | None) -> str:
    """A share with its interval, and over how many rows."""
    return f"{interval(share)}, {share.n}" if share else "-"


SHOWN = 160  # characters of an answer that changed


def acceptance(command: AcceptanceCommand) -> None:
    """Ask the questions, print shares and changed answers, and apply the stop rule.

    Raises:
        MedagentError: the update is not accepted; the message names each reason.
    """
    questions, out = read_acceptance(Path(command.questions)), Path(command.out)
    before = {each.id: each for each in read_results(Path(command.before))} if command.before else {}
    if before and not before.keys() & {each.id for each in questions}:
        raise InputError(f"{command.before}: has none of the {len(questions)} questions of {command.questions}.")
    agent, check = opened(command)
    parts = (command.agent, command.model, agent_fingerprint(command.agent), index_fingerprint(agent.retriever))
    asked_of = sha256("\0".join(parts).encode()).hexdigest()
    console = Console(highlight=False)
    with LoadedAgent(agent, check) as loaded, progress_of(console) as show:
        results = ask_all(loaded, questions, out, asked_of, lambda done: show("questions", done, len(questions)))
    found = Acceptance.of(results, before, min_found=command.min_found, max_wrong_stated=command.max_wrong_stated)
    _print(found, console)
    print(f"{out}: the results. Give it as --before after the next update.")
    if found.stops:
        raise MedagentError(f"not accepted: {'; '.join(found.stops)}.")
    print("Accepted.")


def _print(found: Acceptance, console: Console) -> None:
    for told, share in (
        ("an expected sentence is shown first", found.first),
        ("an expected sentence is shown", found.found),
        ("stated on no expected source", found.wrong_stated),
    ):
        console.print(f"{told:<38}{_share(share)}")
    if found.changed or found.worse or found.better:
        console.print(f"Changed answers: {len(found.changed)}; newly wrong {found.worse}, newly right {found.better}.")
    for old, now in found.changed:
        mark = "newly wrong" if old.right and not now.right else "newly right" if now.right and not old.right else ""
        console.print(f"[bold]{escape(now.question)}[/bold]  {escape(now.id)} {mark}", soft_wrap=True)
        for label, each in (("was", old), ("is", now)):
            console.print(f"  {label:<4}{each.kind}: {escape(each.text[:SHOWN])}", soft_wrap=True)


def _share(share: Accuracy) -> str:
    return f"{short(share)} of {share.n}" if share.n else "no question"


PRINTED = 5  # questions that are also printed


def make_with_progress(
    index: str,
    out: Path,
    making: Making,
    responder: Callable[[], Responder],
    asking: JudgeSettings,
    test_sets: Sequence[str] | None,
) -> None:
    """Make questions with progress, and say what was dropped and why."""
    if out.is_dir():
        raise InputError(f"--out {out}: is a folder, wanted a file such as questions.jsonl.")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist. Make it first, or choose another.")
    if not (Path(index) / "manifest.json").exists():
        raise InputError(f"{index}: holds no index. Build one with: medagent index build CORPUS --out {index}")
    tests = [question for name in test_sets or () for question in source_named(name).questions()[0]]
    begun, console, folder = time.monotonic(), Console(highlight=False), Path(f"{out}.replies")
    with ExitStack() as open_now:
        retriever = open_now.enter_context(closing(HybridRetriever(index)))
        show = open_now.enter_context(progress_of(console))
        open_now.enter_context(RunFolder(folder, "replies").sole_writer())
        writer = Writer(responder(), Asking(folder, asking, show))
        made = make_questions(retriever, writer, making, show, tests=tests)
    rows = [question_row(each) for each in made.questions]
    print(f"{made.drafts:,} drafts, {len(rows):,} kept. Dropped:")
    for reason, number in made.dropped.most_common():
        print(f"  {number:7,}  {reason}")
    if not rows:
        raise InputError(
            f"{index}: no question is left; the counts above say what was dropped. Give a larger instruct model as "
            "--writer, or more --passages."
        )
    write_whole(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    for row in rows[:PRINTED]:
        console.print(f"[bold]{escape(row['question'])}[/bold]", soft_wrap=True)
        console.print(f"   {escape(row['answer'])}  [dim]{escape(row['gold_passage_ids'][0])}[/dim]", soft_wrap=True)
    print(f"{out}: {len(rows):,} questions in {time.monotonic() - begun:.0f} s.")
