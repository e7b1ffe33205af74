"""Errors of a user's retriever are named; those of connections and disks are tried again."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from chromadb.errors import InternalError, NotFoundError, RateLimitError

from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.passages import Hit


class ClientError(Exception):
    """What a library raises for a failed connection."""


def raised_from(cause: Exception) -> ClientError:
    error = ClientError("no answer")
    error.__cause__ = cause
    return error


class CutOff:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def search(self, queries, *, top_k):
        if self.failures:
            raise self.failures.pop()
        return [[] for _ in queries]


def found(retriever: CutOff) -> list[Hit]:
    async def ask() -> list[Hit]:
        batcher = SearchBatcher(retriever, top_k=1, backoff_s=0.001, retries=2)
        return await batcher.search("gout", asker="question q7, sample 2")

    return asyncio.run(ask())


PASSING = (
    ConnectionResetError("reset"),
    BrokenPipeError("pipe"),
    TimeoutError("read timed out"),
    socket.gaierror(-3, "Temporary failure in name resolution"),
    PermissionError("a share that comes back"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("Server disconnected without sending a response."),
    InternalError("database is locked"),
    RateLimitError("slower"),
    raised_from(raised_from(ConnectionRefusedError(111, "refused"))),
)


@pytest.mark.parametrize("failure", PASSING, ids=lambda failure: type(failure).__name__)
def test_a_failing_connection_is_tried_again_and_then_named(failure: Exception) -> None:
    assert found(CutOff(failure, failure)) == []
    with pytest.raises(RetrieverUnavailableError) as error:
        found(CutOff(*[failure] * 3))
    said = f"CutOff.search: {type(failure).__name__}: {failure}, for 1 queries, of which the first is 'gout' (question"
    assert str(error.value) == f"{said} q7, sample 2). It was tried 3 times."


@pytest.mark.parametrize("failure", [KeyError("dose"), NotFoundError("no collection"), raised_from(KeyError("x"))])
def test_another_error_is_named_at_once(failure: Exception) -> None:
    retriever = CutOff(failure, failure)
    with pytest.raises(RetrievalError, match=rf"CutOff\.search: {type(failure).__name__}.*'gout' .question q7.*Mend"):
        found(retriever)
    assert len(retriever.failures) == 1
