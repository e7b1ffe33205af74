"""Progress bars for long work."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Show = Callable[[str, int, int, int], None]  # (stage, done, total, passages so far)
STAGES = {"reading": "reading, embedding", "indexing": "vectors to Chroma", "words": "words to BM25"}
RECOGNIZING = "text recognition"  # counted in pages, and of how many is not known


@contextmanager
def index_bars() -> Iterator[Show]:
    """A bar for each stage of an index's work, with rate and time left, while the block runs."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:18s}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%  {task.fields[count]}, {task.fields[rate]:,.1f}/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bars:
        tasks: dict[str, tuple[int, float, int]] = {}

        def show(stage: str, done: int, total: int, passages: int) -> None:
            so_far = passages if stage == "reading" else done
            count = f"{so_far:,} {'pages' if stage == RECOGNIZING else 'passages'}"
            if stage not in tasks:
                task = bars.add_task(STAGES.get(stage, stage), total=total or None, count=count, rate=0.0)
                tasks[stage] = (int(task), time.monotonic(), so_far)
            number, begun, first = tasks[stage]
            rate = (so_far - first) / max(time.monotonic() - begun, 1e-3)
            bars.update(bars.task_ids[number], completed=done, count=count, rate=rate)

        yield show
