"""An exported agent that is trained on while it is served: its folder is watched, and what was exported anew takes the next questions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from medagent.agent import Agent
from medagent.errors import MedagentError
from medagent.serving.desk import AnswerDesk
from retrieval.errors import RetrievalError

log = logging.getLogger("medagent.serving")
Stamp = tuple[tuple[str, int, int], ...]


def stamp(folder: Path) -> Stamp:
    """What changes when the folder's files do: names, sizes and times; empty where it is gone."""
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except FileNotFoundError:  # being replaced just now
            return ()
        found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(found)


async def watch(folder: Path, open_again: Callable[[], Agent], desk: AnswerDesk, *, every_s: float) -> None:
    """Look every `every_s` seconds, and exchange the agent once a change has come to rest. An agent that cannot be opened is logged, and the former one stays."""
    served = seen = stamp(folder)
    while True:
        await asyncio.sleep(every_s)
        now = stamp(folder)
        if now and now != served and now == seen:
            served = now
            try:
                await desk.replace(await asyncio.to_thread(open_again))
                log.info("agent %s: opened again; new questions go to it.", folder)
            except (MedagentError, RetrievalError, OSError) as failure:
                log.error("agent %s: changed, and cannot be opened; the former one goes on: %s", folder, failure)
        seen = now
