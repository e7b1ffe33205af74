"""Silent, slow and oversized connections hurt nobody."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from medagent.agent import Agent
from medagent.serving import middleware
from medagent.serving.app import make_app
from tests.medagent.serving.support import Corpus, served, soon

SILENT = 60
Connect = Callable[[], socket.socket]


@pytest.fixture
def url(policy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(middleware, "HEAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.5)
    with served(make_app(Agent(policy, Corpus()), hosts=("*",)), http=middleware.BoundedConnection) as url:
        yield url


@pytest.fixture
def connect(url: str) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections, which the test's end closes."""
    host, port = url.removeprefix("http://").split(":")
    with ExitStack() as opened:
        yield lambda: opened.enter_context(socket.create_connection((host, int(port)), timeout=10))


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_silent_and_trickling_connections_are_closed_while_others_are_served(url: str, connect: Connect) -> None:
    silent = [connect() for _ in range(SILENT)]
    trickling = connect()
    trickling.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
    assert httpx.post(f"{url}/v1/answers", json={"question": "What treats gout?"}).status_code == 200
    soon(lambda: all(closed(each) for each in (*silent, trickling)))


def test_a_kept_connection_serves_again_after_a_pause_of_work(url: str) -> None:
    with httpx.Client() as client:
        for _ in range(3):
            assert client.get(f"{url}/healthz").status_code == 200
            time.sleep(0.3)


def test_a_huge_head_and_a_slow_body_are_refused(connect: Connect) -> None:
    huge = connect()
    try:
        huge.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1_000_000)
        assert b" 400 " in huge.recv(4096)
    except (BrokenPipeError, ConnectionResetError):
        assert closed(huge)
    slow = connect()
    slow.sendall(
        b"POST /v1/answers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    assert b" 408 " in slow.recv(4096)


def test_no_more_connections_than_files(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "max_connections", lambda: 1)
    connect()
    assert closed(connect())
