"""Agents without a model behind the service.

What they say is scripted, and when they say it is the test's to decide.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn

from medagent.agent import Agent
from medagent.pieces import Block
from medagent.policies.scripted import ScriptedPolicy
from medagent.policy import SampledTurn
from medagent.retrieval.errors import RetrieverUnavailableError
from medagent.retrieval.passages import Hit, Passage
from medagent.serving.app import make_app

CHAT = "/v1/chat/completions"
GOUT = Passage.make("gout", "Gout hurts. The first-line drug is colchicine. It is old.", id="p1")


class Corpus:
    """Answers everything with one passage, or fails."""

    failing = False

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        if self.failing:
            raise RetrieverUnavailableError("secret: 10.0.0.7 is down")
        return [[Hit(GOUT, 0.5)] for _ in queries]


def says(read: str, turn: int) -> str:
    return "<think>drug?</think><search>gout drug</search>" if turn == 0 else "<answer> colchicine [1] [7]</answer>"


class Stepwise(ScriptedPolicy):
    """Says a turn each time it is allowed to, from whichever thread that is, and counts its sessions."""

    def __init__(self, tokenizer: Any, script: Any = says) -> None:
        super().__init__(tokenizer, script)
        self._turns = asyncio.Semaphore(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.opened, self.open_now = 0, 0

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> Any:
        """See `Policy.open`."""
        session, self._loop = (
            super().open(seed=seed, temperature=temperature, blocks=blocks),
            asyncio.get_running_loop(),
        )
        self.opened, self.open_now = self.opened + 1, self.open_now + 1
        sample, closed = session.sample, list[bool]()

        async def stepwise(*, max_tokens: int) -> SampledTurn:
            await self._turns.acquire()
            return await sample(max_tokens=max_tokens)

        def close() -> None:
            self.open_now -= not closed
            closed.append(True)

        session.sample, session.close = stepwise, close
        return session

    def allow(self, turns: int = 1) -> None:
        """Let so many turns be said."""
        soon(lambda: self._loop is not None)
        assert self._loop is not None
        for _ in range(turns):
            self._loop.call_soon_threadsafe(self._turns.release)


def soon(holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Return once it holds; fails where it does not in time."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.01)


async def holds(condition: Callable[[], bool]) -> None:
    """Let the event loop run until it holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def client_of(policy: Any, corpus: Any = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(Agent(policy, corpus or Corpus()), **settings)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def chat(policy: Any, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
    return call(policy, "POST", CHAT, json={"model": "medagent", "messages": messages, **more})


def call(
    policy: Any,
    method: str,
    path: str,
    corpus: Any = None,
    headers: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    **body: Any,
) -> httpx.Response:
    async def run() -> httpx.Response:
        async with client_of(policy, corpus, **(settings or {})) as client:
            return await client.request(method, path, headers=headers, **body)

    return asyncio.run(run())


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@contextmanager
def served(app: Any, **settings: Any) -> Iterator[str]:
    """The service on a port of this machine, and its address; stopped afterwards."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5, **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    soon(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive(), "the service did not end"
