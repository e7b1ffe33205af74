"""Keeps a long-lived service's memory level.

Glibc keeps freed blocks, and gives each thread an arena of its own. Batches of changing sizes leave holes in each.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform

EVERY_S = 5.0
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share_one_arena() -> None:
    """Let all threads allocate from one arena of glibc; call it before there are threads.

    Python's lock lets one thread at a time do most of the work, so they hardly wait for each other.
    It changes nothing with another C library, or where the environment has settings of its own.
    """
    own = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not own:
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


async def trim_memory(every_s: float = EVERY_S) -> None:
    """Return free memory to the system at intervals (malloc_trim(3), some milliseconds each).

    Ends at once where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(library.malloc_trim, 0)
