"""Whether the corpus can be searched now, for those who ask often."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("medagent.serving")
PROBE = "treatment"


@dataclass
class Searchable:
    """Searches once, and says for `every_s` whether that worked. A search over `timeout_s` did not.

    A probe that comes meanwhile gets the last outcome, so that many probes are one search.
    """

    search: Callable[[str, int], Coroutine[Any, Any, Any]]
    every_s: float = 10.0
    timeout_s: float = 5.0
    _works: bool = True
    _at: float = field(default=-float("inf"))

    async def __call__(self) -> bool:
        """The outcome."""
        if time.monotonic() - self._at < self.every_s:
            return self._works
        self._at = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.search(PROBE, 1)
        except Exception as failure:  # whatever a damaged index raises
            if self._works:
                log.error("the corpus cannot be searched: %r", failure)
            self._works = False
        else:
            self._works = True
        return self._works
