"""What programs and operators of the service rely on: ids, unused fields, addresses, damaged files, private reports."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from chromadb.errors import InternalError

from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.errors import RetrieverUnavailableError
from medagent.serving.page import Feedback, Report
from tests.medagent.serving.support import CHAT, Corpus, call, chat, client_of, events

ASKED = [{"role": "user", "content": "What is the first-line drug for gout?"}]


def test_fields_that_are_not_used_are_named(policy: Any) -> None:
    more = {"max_tokens": 5, "stop": ["\n"], "logit_bias": {"5": 1}, "presence_penalty": 0, "user": None, "seed": 3}
    told = "not used here: max_tokens, stop, logit_bias."
    assert chat(policy, ASKED, **more).json()["medagent"]["warnings"] == [told]
    streamed = chat(policy, ASKED, **more, stream=True).text.split("\n\n")
    assert json.loads(streamed[-3].removeprefix("data: "))["medagent"]["warnings"] == [told]
    assert chat(policy, ASKED, temperature=0.0).json()["medagent"]["warnings"] == []
    system = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert "system messages" in chat(policy, system).json()["medagent"]["warnings"][0]
    many = chat(policy, ASKED, **{"x" * 500 + str(number): 1 for number in range(500)})
    assert len(many.json()["medagent"]["warnings"][0]) < 1_500


def test_the_clients_id_of_a_request_is_taken_up(policy: Any) -> None:
    for given, taken in [("trace-7.a:b/1", True), ("", False), ("a b", False), ("x" * 129, False), ("é", False)]:
        headers = {"X-Request-Id": given.encode("latin-1")} if given else {}
        found = call(policy, "GET", "/healthz", headers=headers).headers["x-request-id"]  # type: ignore[arg-type]
        assert (found == given) is taken
        assert taken or len(found) == 32


def test_an_address_that_is_not_served_names_the_one_that_is(policy: Any) -> None:
    for method, path in [("POST", "/v1/completions"), ("GET", "/v1/nothing")]:
        found = call(policy, method, path, json={"model": "medagent", "prompt": "What treats gout?"})
        assert found.status_code == 404
        assert CHAT in found.json()["error"]["message"]


class Damaged(Corpus):
    """Fails as an index does whose file was damaged while it was served."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    def search(self, queries: Any, *, top_k: int) -> Any:
        raise self.failure


def test_a_damaged_index_file_is_named(policy: Any) -> None:
    chroma = RetrieverUnavailableError("Chroma (/srv/secret) does not answer")
    chroma.__cause__ = InternalError("code: 26, file is not a database")
    for failure, name in [
        (sqlite3.DatabaseError("database disk image is malformed"), "passages.sqlite"),
        (sqlite3.OperationalError("no such table: passages"), "passages.sqlite"),
        (chroma, "chroma"),
    ]:
        for stream in (False, True):

            async def ask(corpus: Any = Damaged(failure), stream: bool = stream) -> Any:
                async with client_of(policy, corpus) as client:
                    client_app = client._transport.app  # type: ignore[attr-defined]
                    client_app.state.admission._current.search._backoff_s = 0.0
                    return await client.post("/v1/answers", json={"question": "What treats gout?", "stream": stream})

            found = asyncio.run(ask())
            error = (events(found.text)[-1][1] if stream else found.json())["error"]
            assert found.status_code == (200 if stream else 503)
            assert f"the index's {name} is damaged" in error["message"]
            assert "secret" not in found.text


@pytest.mark.parametrize("before", [None, 0o644])
def test_reports_can_be_read_by_their_account_alone(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "reports.jsonl"
    if before is not None:
        path.touch(mode=before)
    mask = os.umask(0o022)
    try:
        feedback = Feedback(path)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        feedback.keep({"id": "a1", "question": "What treats gout?", "options": [], "turns": [], "answer": {}})
        assert feedback.write(Report(id="a1", note="Jane Roe, born 1970"))
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Jane Roe" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("question", "said", "kind", "text"),
    [
        ("What is the first-line drug for gout?", "<think>Hm.</think>", "no_answer", "The agent gave no answer"),
        (
            "Was ist das Mittel der ersten Wahl bei Gicht?",
            "<answer> colchicine [1]</answer>",
            "other_language",
            "English",
        ),
    ],
)
def test_the_verdict_says_what_happened(question: str, said: str, kind: str, text: str) -> None:
    policy = ScriptedPolicy(byte_tokenizer(), lambda read, turn: said)
    answer = call(policy, "POST", "/v1/answers", json={"question": question}).json()["answer"]
    assert (answer["verdict"]["kind"], answer["withheld"]) == (kind, True)
    assert text in answer["text"]
    assert kind in call(policy, "GET", "/openapi.json").text
