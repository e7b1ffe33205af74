"""The MCP tool `ask`, as the official client of both protocol revisions sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import jsonschema
import pytest
from starlette.testclient import TestClient

from medagent.agent import Agent
from medagent.evidence.check import EvidenceCheck
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.passages import Hit, Passage
from medagent.serving import mcp_tool
from medagent.serving.app import make_app
from medagent.serving.middleware import digest
from medagent.serving.settings import AdmissionLimits
from tests.medagent.serving.support import Corpus, Stepwise, holds, says, served

mcp = pytest.importorskip("mcp")
streamable_http = pytest.importorskip("mcp.client.streamable_http")
httpx2 = pytest.importorskip("httpx2")
LEGACY, MODERN = "2025-11-25", "2026-07-28"
MODES = pytest.mark.parametrize(("mode", "revision"), [("legacy", LEGACY), ("auto", MODERN), (MODERN, MODERN)])
ASKED = {"question": "What is the first-line drug for gout?"}
GRADED = Passage.make(
    "gout",
    "Gout hurts. The first-line drug for gout is colchicine. It is old.",
    "guide",
    id="p1",
    about=Bibliography(url="https://example.org", date="2024-02", kind="recommendation", grade="B"),
)


class Graded(Corpus):
    def search(self, queries: Any, *, top_k: int) -> Any:
        if self.failing:
            return super().search(queries, top_k=top_k)
        return [[Hit(GRADED, 0.5)] for _ in queries]


def service(policy: Any = None, corpus: Any = None, **settings: Any) -> Any:
    policy = policy or ScriptedPolicy(byte_tokenizer(), says)
    return make_app(Agent(policy, corpus or Graded()), **settings)


@asynccontextmanager
async def client(url: str, mode: str, token: str = "") -> AsyncIterator[Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http.streamable_http_client(f"{url}/mcp", http_client=http)
        async with mcp.Client(transport, mode=mode) as opened:
            yield opened


@MODES
def test_an_answer_has_markdown_and_structured_content_of_the_declared_schema(mode: str, revision: str) -> None:
    async def run(url: str) -> None:
        async with client(url, mode) as opened:
            assert opened.session.protocol_version == revision
            (tool,) = (await opened.list_tools()).tools
            jsonschema.validate(ASKED, tool.input_schema)
            found = await opened.call_tool("ask", ASKED)
        assert not found.is_error
        told = found.structured_content
        jsonschema.validate(told, tool.output_schema)
        assert told["text"] == "colchicine [1]"
        (cited,) = told["sources"]
        assert (cited["number"], cited["passage"]) == (1, GRADED.to_json())
        assert GRADED.text[slice(*cited["sentence"])].strip() == "The first-line drug for gout is colchicine."
        assert (told["verdict"]["kind"], told["withheld"], told["urgent"]) == ("stated", False, None)
        assert told["notice"] == NOT_ADVICE
        assert found.content[0].text.startswith("colchicine [1]\n\nStated in [1].")
        assert found.content[0].text.endswith(f"*{NOT_ADVICE}*")

    with served(service()) as url:
        asyncio.run(run(url))


@MODES
def test_arguments_reach_the_agent_and_wrong_ones_are_refused(mode: str, revision: str) -> None:
    seen: list[str] = []

    def listens(read: str, turn: int) -> str:
        seen.append(read)
        return says(read, turn) if turn == 0 else "<answer> B) colchicine [1]</answer>"

    async def run(url: str) -> None:
        async with client(url, mode) as opened:
            more = {"options": ["aspirin", "colchicine"], "earlier": ["What causes gout?"]}
            found = await opened.call_tool("ask", {"question": "How is it treated?", **more})
            assert found.structured_content["asked_as"] == "How is gout treated?"
            for wrong, told in [
                ({}, "question: Field required"),
                ({"question": " \u200b"}, "question: wanted text that is not blank"),
                ({**ASKED, "where": "colour=red"}, "where: "),
                ({**ASKED, "where": "year>=2020"}, "the corpus cannot be searched now"),  # this one takes no filters
                ({**ASKED, "filter": "year>=2020"}, "filter: "),
            ]:
                refused = await opened.call_tool("ask", wrong)
                assert refused.is_error
                assert refused.content[0].text.startswith(told)
            with pytest.raises(mcp.MCPError, match="no tool 'tell'"):
                await opened.call_tool("tell", ASKED)

    policy = ScriptedPolicy(byte_tokenizer(), listens)
    with served(service(policy, check=EvidenceCheck(shown="all"))) as url:
        asyncio.run(run(url))
    assert "How is gout treated?" in seen[0]
    assert "colchicine" in seen[0]


@MODES
def test_a_withheld_answer_and_an_emergency_are_told(mode: str, revision: str) -> None:
    async def run(url: str) -> None:
        async with client(url, mode) as opened:
            asked = "I have crushing chest pain. What is the first-line drug for gout?"
            told = (await opened.call_tool("ask", {"question": asked})).structured_content
        assert told["withheld"]
        assert told["sources"] == []
        assert (
            told["quoted"][0]["passage"]["text"][slice(*told["quoted"][0]["sentence"])].strip()
            == "The first-line drug for gout is colchicine."
        )
        assert told["urgent"]

    policy = ScriptedPolicy(byte_tokenizer(), lambda read, turn: "<answer> demoxetine [1]</answer>")
    with served(service(policy)) as url:
        asyncio.run(run(url))


@MODES
def test_tokens_and_hosts_are_asked_for(mode: str, revision: str) -> None:
    async def ask(url: str, token: str) -> Any:
        async with client(url, mode, token) as opened:
            return await opened.call_tool("ask", ASKED)

    with served(service(tokens=[digest("secret")])) as url:
        assert not asyncio.run(ask(url, "secret")).is_error
        for token in ("", "other"):
            with pytest.raises(Exception, match=r"401|token|unhandled errors"):
                asyncio.run(ask(url, token))
        assert httpx.post(f"{url}/mcp", json={}).status_code == 401
        headers = {"Authorization": "Bearer secret", "Host": "evil.example"}
        assert httpx.post(f"{url}/mcp", json={}, headers=headers).json()["error"]["code"] == "unknown_host"
        assert httpx.get(f"{url}/mcp", headers={"Authorization": "Bearer secret"}).status_code == 405


@MODES
def test_too_many_questions_are_refused_and_a_client_that_leaves_frees_its_place(mode: str, revision: str) -> None:
    policy = Stepwise(byte_tokenizer())
    app = service(policy, limits=AdmissionLimits(max_running=1, max_waiting=0))
    admission = app.state.admission

    async def run(url: str) -> None:
        async with client(url, mode) as opened, anyio.create_task_group() as group:
            group.start_soon(opened.call_tool, "ask", ASKED)
            await holds(lambda: policy.open_now == 1)
            refused = await opened.call_tool("ask", ASKED)
            assert refused.is_error
            assert "Try again in" in refused.content[0].text
            group.cancel_scope.cancel()  # the client stays, and gives this call up
        await holds(lambda: admission.running == policy.open_now == 0)
        with anyio.move_on_after(30) as scope:
            async with client(url, mode) as opened, anyio.create_task_group() as group:
                group.start_soon(opened.call_tool, "ask", ASKED)
                await holds(lambda: policy.open_now == 1)
                scope.cancel()
        await holds(lambda: admission.running == policy.open_now == 0)

    with served(app) as url:
        asyncio.run(run(url))
    assert admission.outcomes == {"overloaded": 1, "left": 2}


def test_a_connection_that_is_cut_frees_its_place_in_the_older_revision_too() -> None:
    policy = Stepwise(byte_tokenizer())
    app = service(policy)

    def message(method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    async def run(url: str) -> None:
        headers = {"Accept": "application/json, text/event-stream"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as http:
            about = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            opened = await http.post("/mcp", json=message("initialize", **about))
            http.headers.update({"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": LEGACY})
            await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            asking = asyncio.create_task(http.post("/mcp", json=message("tools/call", name="ask", arguments=ASKED)))
            await holds(lambda: policy.open_now == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await holds(lambda: app.state.admission.running == policy.open_now == 0)

    with served(app) as url:
        asyncio.run(run(url))
    assert app.state.admission.outcomes == {"left": 1}


@MODES
def test_a_failure_names_no_secret(mode: str, revision: str) -> None:
    corpus = Graded()
    corpus.failing = True
    app = service(corpus=corpus)
    app.state.admission._current.search._backoff_s = 0.0

    async def run(url: str) -> Any:
        async with client(url, mode) as opened:
            return await opened.call_tool("ask", ASKED)

    with served(app) as url:
        found = asyncio.run(run(url))
    assert found.is_error
    assert "the corpus cannot be searched now" in found.content[0].text
    assert "secret" not in json.dumps(found.model_dump(mode="json"))


def test_a_service_that_is_started_again_answers_again() -> None:
    app = service()
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    for _ in range(2):
        with TestClient(app, base_url="http://localhost") as opened:
            assert opened.post("/mcp", json=asked, headers={"Accept": "application/json"}).status_code < 500


def test_without_the_package_the_service_serves_the_rest(monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mcp.server.lowlevel", None)
    app = service(policy)
    assert "pip install 'medagent[mcp]'" in app.state.no_mcp
    assert mcp_tool.PATH not in [getattr(route, "path", "") for route in app.routes]
