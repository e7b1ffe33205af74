"""Requests that take long: their work stops when the client goes, and their connection is kept alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from fastapi import Request

Found = TypeVar("Found")


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(request: Request, work: Awaitable[Found]) -> Found:
    """The result, or `ClientLeftError` (and the work stopped) once the client has gone."""
    working, gone = asyncio.ensure_future(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def kept_alive(pieces: AsyncGenerator[str], *, silence_s: float) -> AsyncGenerator[str]:
    """The pieces, with a comment after each `silence_s` without one: proxies cut silent connections."""
    following = asyncio.ensure_future(anext(pieces))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=silence_s)
            if not done:
                yield ": working\n\n"
                continue
            try:
                yield following.result()
            except StopAsyncIteration:
                return
            following = asyncio.ensure_future(anext(pieces))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await pieces.aclose()
