"""Reloads a served agent when its folder holds a new export.

The folder is watched. A new agent takes the questions that come after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from medagent.agent import Agent
from medagent.serving.admission import Admission

log = logging.getLogger("medagent.serving")
Stamp = tuple[tuple[str, int, int], ...]


def stamp(folder: Path) -> Stamp:
    """What changes when the folder's files do: names, sizes and times. Empty while the folder is being replaced."""
    found = []
    try:
        for path in sorted(folder.rglob("*")):
            status = path.stat()
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    except FileNotFoundError:
        return ()
    return tuple(found)


async def watch(
    folder: Path, served: Stamp, open_again: Callable[[], Agent], admission: Admission, *, every_s: float
) -> None:
    """Look every `every_s` seconds, and exchange the agent once a change has come to rest.

    `served` is the stamp of the open agent. Where the new agent cannot be opened, the reason is logged and the former
    one stays.
    """
    seen = served
    while True:
        await asyncio.sleep(every_s)
        try:
            now = stamp(folder)
            if now and now != served and now == seen:
                served = now
                await admission.replace(await asyncio.to_thread(open_again))
                log.info("agent %s: opened again; new questions go to it.", folder)
            seen = now
        except Exception:  # any library that reads weights or tokenizers; the service goes on and looks again
            log.exception("agent %s: changed, and cannot be opened; the former one goes on.", folder)
