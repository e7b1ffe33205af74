"""A long-lived service gives back the memory that it does not use.

Glibc keeps freed blocks, and batches of ever other sizes leave many.
"""

from __future__ import annotations

import asyncio
import ctypes
import platform

EVERY_S = 5.0


async def trim_memory(every_s: float = EVERY_S) -> None:
    """Ask glibc again and again for what is free (malloc_trim(3), some milliseconds).

    Returns at once where there is another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(library.malloc_trim, 0)
