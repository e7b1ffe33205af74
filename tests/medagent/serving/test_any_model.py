"""Any model answers people: one that calls functions, one that writes tags, and one that only writes prose."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from medagent.agent import Agent
from medagent.any_model import AnyModelProtocol
from medagent.call_syntax import call_of, query_of
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.passages import Hit, Passage
from medagent.serving.app import make_app
from medagent.serving.settings import AdmissionLimits
from tests.medagent.serving.support import CHAT, GOUT, Corpus, events
from tests.medagent.support import ChatServer, byte_level, chat_server

UNKNOWN = "What is the first-line drug for zorbathy?"
SEARCHES = "<search> toe</search>"
ASKED = "What is the first-line drug for gout?"


def searching(query: str, **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": json.dumps({"query": query})}}
    return {"content": None, "tool_calls": [call], **more}


class Noting(Corpus):
    """A corpus that notes what is searched."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], *, top_k: int) -> Any:
        self.queries += queries
        return super().search(queries, top_k=top_k)


def requested(
    policy: Any, *paths: tuple[str, str, Any], corpus: Any = None, trained: bool = False, **settings: Any
) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        app = make_app(Agent(policy, corpus or Corpus(), trained=trained), **settings)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, json=body) for method, path, body in paths]

    return asyncio.run(run())


def endpoint(server: ChatServer, **settings: Any) -> RemotePolicy:
    return RemotePolicy(server.url, "m", backoff_s=0.01, **settings)


def answer_of(policy: Any, corpus: Any = None, question: str = ASKED, **body: Any) -> dict[str, Any]:
    (found,) = requested(policy, ("POST", "/v1/answers", {"question": question, **body}), corpus=corpus)
    assert found.status_code == 200, found.text
    return dict(found.json())


def test_the_question_itself_is_searched_before_any_model_is_asked() -> None:
    corpus = Noting()
    with chat_server("The first-line drug is colchicine [1].") as server:
        found = answer_of(endpoint(server), corpus)
        (message,) = server.asked[0]["messages"]
    assert corpus.queries[0] == ASKED
    assert GOUT.text in message["content"]
    assert message["content"].index(GOUT.text) < message["content"].index(ASKED)
    assert found["turns"][0]["query"] == ASKED
    answer = found["answer"]
    assert (answer["stop_reason"], answer["verdict"]["kind"]) == ("answered", "stated")


def test_an_answer_that_repeats_the_question_is_judged_as_a_sentence() -> None:
    for drug, stated in (("Colchicine", True), ("Insulin", False)):
        policy = ScriptedPolicy(
            byte_level(), lambda read, turn, drug=drug: f"{drug} is the first-line drug for gout [1]."
        )
        answer = answer_of(policy)["answer"]
        assert (answer["verdict"]["kind"] == "stated") is stated
        assert answer["withheld"] is not stated


def test_a_search_that_is_called_as_a_function_is_made_and_its_result_is_the_calls() -> None:
    corpus = Noting()
    with chat_server(searching("gout drug"), "<answer>colchicine [2]</answer>") as server:
        answer = answer_of(endpoint(server), corpus)["answer"]
        first, second = server.asked
    assert corpus.queries[:2] == [ASKED, "gout drug"]
    assert first["tools"][0]["function"]["name"] == "search"
    called, result = second["messages"][1:]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "c1"
    assert result["role"] == "tool"
    assert "[2] " in result["content"]
    assert answer["text"] == "colchicine [2]"


@pytest.mark.parametrize(
    "message",
    [
        {"content": "", "tool_calls": [{"function": {"name": "search", "arguments": {"query": "gout drug"}}}]},
        {"content": None, "function_call": {"name": "search", "arguments": '{"query": "gout drug"}'}},
        {"content": '<tool_call>\n{"name": "search", "arguments": {"query": "gout drug"}}\n</tool_call>'},
        {"content": '<tool_call>{"name": "search", "arguments": {"query": "gout drug"}}'},
        {"content": 'I will look.\n```json\n{"name": "search", "arguments": {"query": "gout drug"}}\n```'},
        {"content": '{"name": "search", "parameters": {"query": "gout drug"}}'},
        {"content": '[TOOL_CALLS][{"name": "search", "arguments": {"query": "gout drug"}}]'},
        {"content": '[search(query="gout drug")]'},
        {"content": "<function=search>\n<parameter=query>\ngout drug\n</parameter>\n</function>"},
        {"content": "Thought: I must look.\nAction: search\nAction Input: gout drug"},
        {"content": "<think>drug?</think>\n<search>gout drug</search>"},
        {"content": "Let me search.\n<search> gout drug"},
    ],
)
def test_searches_are_read_in_every_form_that_models_write(message: dict[str, Any]) -> None:
    corpus = Noting()
    with chat_server(message, "colchicine [2]") as server:
        answer_of(endpoint(server), corpus)
    assert corpus.queries[:2] == [ASKED, "gout drug"]


def test_what_is_no_search_is_the_answer() -> None:
    protocol = AnyModelProtocol()
    for text, answer in [
        ("Colchicine is used first [1].", "Colchicine is used first [1]."),
        ("**Answer:** colchicine [1]", "colchicine [1]"),
        ("The answer is colchicine [1].", "colchicine [1]."),
        ("It hurts [1].\n\n**Final answer**: colchicine [1]", "colchicine [1]"),
        ("The answer depends on the kidneys [1].", "The answer depends on the kidneys [1]."),
        ("<think>gout</think>\nColchicine [1].", "Colchicine [1]."),
        ("<answer>colchicine [1]", "colchicine [1]"),
        ("So: <answer>colchicine [1]</answer>", "colchicine [1]"),
        ("Colchicine [1].\n<information>\n[9] made up", "Colchicine [1]."),
        ('The dose is {"name": "colchicine", "dose": "0.5 mg"} [1].', None),
        ("Patients do research (gout) first [1].", "Patients do research (gout) first [1]."),
    ]:
        parsed = protocol.parse(text)
        assert (parsed.query, parsed.answer) == (None, answer or text)
    for text in ("", "<think>I do not", "<answer></answer>", "```json\n```"):
        parsed = protocol.parse(text)
        assert (parsed.query, parsed.answer) == (None, None)


def test_a_call_without_a_query_is_none() -> None:
    for call in ({}, [], None, {"name": "search"}, {"name": "search", "arguments": "{}"}, {"function": None}):
        assert query_of(call_of(call)) == ""
    assert query_of(call_of({"name": "search", "arguments": "[" * 20_000})) == ""
    for text in ("{" * 500 + "}", '{"a":' * 2_000, 'Research("gout")'):
        assert AnyModelProtocol().parse(text).query is None
    assert AnyModelProtocol().parse("Action: search\nAction Input: gout drug\nObservation: none").query == "gout drug"
    for arguments in ("gout drug", {"q": "gout drug", "limit": 3}, '{"query": ["gout drug", "x"]}'):
        assert query_of(call_of({"function": {"name": "search", "arguments": arguments}})) == "gout drug"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (400, "registry.ollama.ai/library/gemma does not support tools"),
        (404, "No endpoints found that support tool use."),
        (500, "tools param requires --jinja flag"),
    ],
)
def test_a_server_that_takes_no_functions_is_asked_without_them(status: int, error: str) -> None:
    class Refusing(ChatServer):
        """Refuses requests with functions."""

        @property
        def status(self) -> int:  # type: ignore[override]
            return status if "tools" in self.asked[-1] else 200

    with chat_server("colchicine [1]", kind=Refusing) as server:
        server.error = error
        policy = endpoint(server)
        for _ in range(2):
            assert answer_of(policy)["answer"]["text"] == "colchicine [1]"
    assert ["tools" in asked for asked in server.asked] == [True, False, False]


def test_the_prompt_fits_the_question() -> None:
    with chat_server("(A) [1]") as server:
        answer_of(endpoint(server))
        answer_of(endpoint(server), options=["colchicine", "aspirin"])
        plain, chosen = (asked["messages"][0]["content"] for asked in server.asked)
    assert "letter" not in plain
    assert "option" not in plain
    assert "letter of one option" in chosen


def test_a_local_model_that_writes_prose_answers_and_one_that_was_trained_keeps_its_prompt() -> None:
    read: list[str] = []

    def prose(text: str, turn: int) -> str:
        read.append(text)
        return "Colchicine [1]"

    policy = ScriptedPolicy(byte_level(), prose)
    assert answer_of(policy)["answer"]["text"] == "Colchicine [1]"
    assert GOUT.text in read[0]

    (trained,) = requested(policy, ("POST", "/v1/answers", {"question": ASKED}), trained=True)
    assert trained.json()["answer"]["stop_reason"] == "malformed"
    assert read[1].startswith("You answer medical questions with the help of a search engine")


class Literal(Noting):
    """Finds the passage on gout by the question's own words alone."""

    def search(self, queries: Sequence[str], *, top_k: int) -> Any:
        super().search(queries, top_k=top_k)
        return [
            [Hit(GOUT if query == ASKED else Passage.make("tetanus", "It hurts.", id="p2"), 0.5)] for query in queries
        ]


def test_nothing_is_said_to_be_lacking_before_the_question_itself_was_searched(tokenizer: Any) -> None:
    for said, verdict, removed in [
        ("colchicine", "stated", 0),
        ("colchicine [2]", "stated", 1),  # it was shown one passage
        ("insulin", "not_read", 0),  # but a passage is near
    ]:
        corpus = Literal()
        policy = ScriptedPolicy(tokenizer, lambda read, turn, said=said: [SEARCHES, f"<answer> {said}</answer>"][turn])
        (found,) = requested(policy, ("POST", "/v1/answers", {"question": ASKED}), corpus=corpus, trained=True)
        answer = found.json()["answer"]
        assert (answer["verdict"]["kind"], answer["removed_citations"]) == (verdict, removed)
        assert corpus.queries[:2] == ["toe", ASKED]
        assert verdict != "stated" or [source["passage"]["id"] for source in answer["sources"]] == ["p1"]


LATE = {"limits": AdmissionLimits(timeout_s=0.2)}


@pytest.mark.parametrize(
    ("status", "wanted", "told"),
    [
        (401, 502, "refused the key"),
        (403, 502, "refused the key"),
        (404, 502, "does not know"),
        (418, 502, "no usable answer"),
        (429, 503, "try again in"),
        (500, 503, "try again in"),
        (503, 503, "try again in"),
    ],
)
def test_what_the_models_server_refuses_is_told_with_its_name(
    status: int, wanted: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medagent.serving.admission.PATIENCE_S", 0.02)
    body = {"question": ASKED}
    messages = {"model": "medagent", "messages": [{"role": "user", "content": ASKED}]}
    with chat_server("x") as server:
        server.status, server.error = status, "secret sk-123"
        host = server.url.removeprefix("http://").removesuffix("/v1")
        policy = RemotePolicy(server.url.replace("//", "//user:password@"), "m", backoff_s=0.01)
        ready, *found, stream, chat_stream, unready = requested(
            policy,
            ("GET", "/readyz", None),
            ("POST", "/v1/answers", body),
            ("POST", CHAT, messages),
            ("POST", "/v1/answers", {**body, "stream": True}),
            ("POST", CHAT, {**messages, "stream": True}),
            ("GET", "/readyz", None),
        )
    for each in found:
        error = each.json()["error"]
        assert (each.status_code, error["code"]) == (wanted, "upstream")
        assert host in error["message"]
        assert told in error["message"]
        assert ("retry-after" in each.headers) == (wanted == 503)
    kind, failure = events(stream.text)[-1]
    assert (kind, host in failure["error"]["message"]) == ("error", True)
    assert host in chat_stream.text
    assert ready.status_code == unready.status_code == 503
    assert ready.json()["status"] == "the model's server cannot be asked"
    assert not [each for each in (*found, stream, chat_stream) if "secret" in each.text or "password" in each.text]


def test_a_server_that_is_gone_or_silent_is_told_with_its_name() -> None:
    with chat_server("x") as server:
        gone = endpoint(server)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        late = RemotePolicy(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m")
        for policy, settings in ((gone, {}), (late, LATE)):
            (found,) = requested(policy, ("POST", "/v1/answers", {"question": ASKED}), **settings)
            assert found.status_code == 503
            assert httpx.URL(policy.url).netloc.decode() in found.json()["error"]["message"]
            assert int(found.headers["retry-after"]) > 0


def test_readiness_asks_the_models_server_and_not_at_each_probe() -> None:
    with chat_server("colchicine [1]") as server:
        probe = ("GET", "/readyz", None)
        found = requested(endpoint(server), probe, probe, ("POST", "/v1/answers", {"question": ASKED}), probe)
        assert [each.status_code for each in found] == [200] * 4
        assert len(server.asked) == 2, "one probe and one answer"
        server.listing_status = 401
        policy = endpoint(server)
        policy.endpoint.works = True
        assert requested(policy, probe)[0].status_code == 503
    assert requested(policy, probe)[0].status_code == 503, "it is gone"


def test_the_corpus_is_said_to_lack_it_only_after_a_search_that_worked(tokenizer: Any) -> None:
    class Failing(Noting):
        """Fails at the question's own words."""

        def search(self, queries: Sequence[str], *, top_k: int) -> Any:
            if UNKNOWN in queries:
                raise RetrievalError("no such luck")
            return super().search(queries, top_k=top_k)

    def turns(read: str, turn: int) -> str:
        return [SEARCHES, "<answer> insulin [1]</answer>"][turn]

    for corpus, kind in ((Noting(), "not_said"), (Failing(), "not_read")):
        path = ("POST", "/v1/answers", {"question": UNKNOWN})
        (found,) = requested(ScriptedPolicy(tokenizer, turns), path, corpus=corpus, trained=True)
        assert found.json()["answer"]["verdict"]["kind"] == kind
