"""Work beside the answers: reloads a new export, returns free memory, and probes whether the corpus can be searched."""

import asyncio
import ctypes
import logging
import os
import platform
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medagent.agent import Agent
from medagent.errors import EndpointError
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policy import Policy
from medagent.serving.admission import Admission

log = logging.getLogger("medagent.serving")
Stamp = tuple[tuple[str, int, int], ...]


def stamp(folder: Path) -> Stamp:
    """Names, sizes and times of the folder's files. Empty while the folder is being replaced."""
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
    """Exchange the agent, whose stamp is `served`, once a change of its folder has come to rest."""
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


EVERY_S = 5.0
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share_one_arena() -> None:
    """Let all threads allocate from one arena of glibc, unless the environment says otherwise.

    Call it before there are threads. Python's lock lets one at a time work, so they hardly wait for each other.
    """
    own = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not own:
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


async def trim_memory(every_s: float = EVERY_S) -> None:
    """Return free memory to the system at intervals (malloc_trim(3)); with another C library than glibc, nothing."""
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(library.malloc_trim, 0)


QUERY = "treatment"  # that a probe searches for
ASKED = [{"role": "user", "content": "Reply with OK."}]  # of a model's server


@dataclass
class Probe:
    """Tries `work` once, and says for `every_s` whether that worked, so that many probes are one. If not, `failing`."""

    failing: str
    work: Callable[[], Coroutine[Any, Any, Any]]
    every_s: float = 10.0
    timeout_s: float = 5.0
    _works: bool = True
    _at: float = field(default=-float("inf"))

    async def __call__(self) -> bool:
        if time.monotonic() - self._at < self.every_s:
            return self._works
        self._at = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.work()
        except Exception as failure:  # whatever a damaged index raises
            if self._works:
                log.error("%s: %r", self.failing, failure)
            self._works = False
        else:
            self._works = True
        return self._works


async def check_model(policy: Policy) -> None:
    """Raise `EndpointError` or `httpx.HTTPError` if it is an endpoint that would take no request now.

    One that answered the last is only asked for its models. Any other is asked for a few tokens.
    """
    if not isinstance(policy, RemotePolicy):
        return
    if policy.endpoint.works:
        answer = await policy.endpoint.get("models")
        if answer.status_code in (401, 403) or answer.status_code >= 500:
            raise policy.endpoint.refusal(answer, policy.model)
        return
    try:
        await policy.complete({"model": policy.model, "messages": ASKED, "max_tokens": 16})
    except EndpointError as refused:
        if refused.status not in (400, 422):  # it reads requests, and dislikes this one
            raise
