"""Errors of a user's retriever are named; those of connections and disks are tried again."""

from __future__ import annotations

import asyncio

import pytest

from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.passages import Hit


def test_what_a_users_retriever_raises_is_named_and_an_oserror_tried_again() -> None:
    class CutOff:
        def __init__(self, *failures: Exception) -> None:
            self.failures = list(failures)

        def search(self, queries, *, top_k):
            if self.failures:
                raise self.failures.pop()
            return [[] for _ in queries]

    def found(retriever: CutOff) -> list[Hit]:
        async def ask() -> list[Hit]:
            return await SearchBatcher(retriever, top_k=1, backoff_s=0.001, retries=2).search("gout")

        return asyncio.run(ask())

    assert found(CutOff(ConnectionResetError("reset"), OSError("away"))) == []
    with pytest.raises(RetrieverUnavailableError, match=r"CutOff\.search: ConnectionResetError: reset.*3 times"):
        found(CutOff(*[ConnectionResetError("reset")] * 3))
    with pytest.raises(RetrievalError, match=r"CutOff\.search: KeyError: 'dose'.*'gout'"):
        found(CutOff(KeyError("dose")))
