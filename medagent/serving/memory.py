"""Returns unused memory of a long-lived service to the system.

Glibc keeps freed blocks, and batches of changing sizes leave many.
"""

from __future__ import annotations

import asyncio
import ctypes
import platform

EVERY_S = 5.0


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
