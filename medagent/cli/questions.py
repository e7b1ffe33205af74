"""The work and the output of `medagent questions make`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from rich.console import Console

from medagent.cli.rubric import progress_of
from medagent.cli.safe_text import escape
from medagent.errors import InputError
from medagent.evaluation.benchmarks.source import source_named
from medagent.evaluation.question_making.making import Making, make_questions, question_row
from medagent.evaluation.question_making.writer import Writer
from medagent.evaluation.rubrics.judging import Asking, JudgeSettings
from medagent.evaluation.rubrics.responder import Responder
from medagent.files import write_whole
from medagent.retrieval.search import HybridRetriever
from medagent.run_folder import RunFolder

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
