"""Desk, HTTP service, remote retriever and MCP server: all find what the library finds."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.filters import Filter
from medagent.retrieval.index import build_index
from medagent.retrieval.maintenance import rebuild_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings
from tests.retrieval.server import Serving
from tests.retrieval.support import SMALL, problems

PASSAGES = [
    Passage(f"pmid:{i}#1", f"condition {i}", f"The drug is agent{i}.", f"source {i % 3}", "Drugs", 2000 + i % 5)
    for i in range(60)
]
QUERIES = [f"condition {i} drug agent{i}" for i in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    build_index(PASSAGES, folder, HashedNgramEmbedder())
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> HybridRetriever:
    return HybridRetriever(str(folder))


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Serving]:
    serving = Serving(folder)
    yield serving
    serving.stop()


def test_a_plain_http_client_finds_what_the_library_finds(served: Serving, library: HybridRetriever) -> None:
    answer = httpx.post(f"{served.url}/search", json={"queries": QUERIES, "top_k": 4}).json()
    expected = library.search(QUERIES, top_k=4)
    assert [[(hit["passage"], hit["score"]) for hit in hits] for hits in answer["results"]] == [
        [(hit.passage.to_json(), hit.score) for hit in hits] for hits in expected
    ]
    assert answer["version"] == library.manifest.version
    one = expected[3][0].passage
    assert httpx.get(f"{served.url}/passages/{one.id.replace('#', '%23')}").json() == one.to_json()
    assert httpx.get(f"{served.url}/passages/unknown").status_code == 404
    assert httpx.get(f"{served.url}/healthz").json()["passages"] == 60
    assert "medagent_search_queries_total" in httpx.get(f"{served.url}/metrics").text
    assert httpx.post(f"{served.url}/search", json={"queries": [], "top_k": 4}).json()["results"] == []


def test_bad_requests_are_refused(served: Serving) -> None:
    lengths = [{"queries": ["x" * 10_001]}, {"queries": ["x"] * 4097}]
    for body in ({"queries": "one"}, {"queries": ["x"], "top_k": 0}, *lengths, {}):
        assert httpx.post(f"{served.url}/search", json=body).status_code == 422
        assert httpx.post(f"{served.url}/retrieve", json={**body, "topk": body.get("top_k", 3)}).status_code == 422
    together = {"queries": ["x"] * 100, "top_k": 1000}  # within each limit, but too much together
    wrong = [{"where": {"sources": ["s"] * 65}}, {"where": {"source": ["s"]}}, {"topk": 3}, {"queries": ["x", " "]}]
    for more in (*wrong, together):
        assert httpx.post(f"{served.url}/search", json={"queries": ["x"], **more}).status_code == 422
    assert httpx.get(f"{served.url}/healthz", headers={"Host": "evil.example"}).status_code == 400
    content, headers = b'{"queries": ["\\ud800 gout"], "top_k": 1}', {"content-type": "application/json"}
    assert httpx.post(f"{served.url}/search", content=content, headers=headers).status_code in (200, 422)


def test_search_r1_shapes(served: Serving, library: HybridRetriever) -> None:
    """As search_r1/llm_agent/generation.py sends its requests and reads the answers."""
    asked = {"queries": QUERIES[:5], "topk": 3, "return_scores": True}
    answer = httpx.post(f"{served.url}/retrieve", json=asked).json()
    assert set(answer) == {"result"}
    for query, found in zip(QUERIES, answer["result"], strict=False):
        hits = library.search([query], top_k=3)[0]
        scored = [(item["document"]["id"], item["score"]) for item in found]
        assert scored == [(hit.passage.id, hit.score) for hit in hits]
        title, *lines = found[0]["document"]["contents"].split("\n")
        assert (title, "\n".join(lines)) == (f"{hits[0].passage.title} (Drugs)", hits[0].passage.text)
    plain = httpx.post(f"{served.url}/retrieve", json={"queries": QUERIES[:1], "topk": None}).json()
    assert [set(document) for document in plain["result"][0]] == [{"id", "contents"}] * 3


def test_a_remote_retriever_is_a_retriever(served: Serving, library: HybridRetriever) -> None:
    remote = RemoteRetriever(served.url + "/")
    assert remote.search(QUERIES, top_k=3) == library.search(QUERIES, top_k=3)
    where = Filter.of(["source 1"], year_from=2002)
    found = [each.search_where(QUERIES[:3], top_k=5, where=where) for each in (remote, library)]
    assert found[0] == found[1]
    assert remote.version == library.manifest.version
    remote.close()
    with pytest.raises(RetrievalError, match="wanted an address"):
        RemoteRetriever("localhost:80")


def test_a_server_that_is_down_is_an_outage_until_it_is_back(folder: Path) -> None:
    serving = Serving(folder)
    remote = RemoteRetriever(serving.url)
    assert remote.search(["agent3"], top_k=1)
    serving.stop()
    with pytest.raises(RetrieverUnavailableError, match=r"cannot be reached.*medagent index serve"):
        remote.search(["agent3"], top_k=1)
    again = Serving(folder, port=serving.port)
    assert remote.search(["agent3"], top_k=1)[0][0].passage.id
    remote.close()
    again.stop()


def test_responses_of_other_services_are_outages_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    status = [503]

    def handle(request: httpx.Request) -> httpx.Response:
        if status[0] == 0:
            raise httpx.ReadTimeout("slow")
        return httpx.Response(status[0], text="whatever")

    remote = RemoteRetriever("http://elsewhere")
    remote._client.close()
    remote._client = httpx.Client(transport=httpx.MockTransport(handle))
    with pytest.raises(RetrieverUnavailableError, match="answered 503: whatever"):
        remote.search(["x"], top_k=1)
    status[0] = 404
    with pytest.raises(RetrievalError, match="Is it a `medagent index serve`"):
        remote.search(["x"], top_k=1)
    status[0] = 0
    with pytest.raises(RetrieverUnavailableError, match="within 60 s"):
        remote.search(["x"], top_k=1)
    with pytest.raises(RetrieverUnavailableError, match="does not say what it serves"):
        print(remote.version)
    remote.close()


class Slow:
    """Answers after a while, remembers its batches, and may fail or hang first."""

    def __init__(self, *, failures: int = 0, pause_s: float = 0.01, hangs: int = 0) -> None:
        self.batches: list[tuple[int, int]] = []
        self.failures, self.pause_s, self.hangs = failures, pause_s, hangs

    def search(self, queries, *, top_k):
        self.batches.append((len(queries), top_k))
        if self.hangs:
            self.hangs -= 1
            time.sleep(0.3)
        if self.failures:
            self.failures -= 1
            raise RetrieverUnavailableError("not now")
        time.sleep(self.pause_s)
        return [[Hit(Passage(query, "", "t"), 1.0)] for query in queries]


def test_waiting_searches_are_batched_and_timed() -> None:
    shelf = Slow(pause_s=0.02)

    async def run() -> SearchBatcher:
        batcher = SearchBatcher(shelf, top_k=2, max_batch=100)
        first = asyncio.create_task(batcher.search("early"))
        await asyncio.sleep(0.005)
        others = [asyncio.create_task(batcher.search(f"q{i}", top_k=3 if i % 50 == 0 else None)) for i in range(150)]
        given_up = asyncio.create_task(batcher.search("given up"))
        await asyncio.sleep(0)
        given_up.cancel()
        hits = await asyncio.gather(first, *others)
        assert [found[0].passage.id for found in hits] == ["early", *(f"q{i}" for i in range(150))]
        return batcher

    batcher = asyncio.run(run())
    assert sorted(shelf.batches) == sorted([(1, 2), (100, 2), (47, 2), (3, 3)])
    assert batcher.stats.num_queries == 151
    metrics = batcher.stats.metrics()
    assert metrics["throughput/queries_per_search"] == 151 / 4
    assert metrics["time/search_p95"] >= metrics["time/search"] >= 0.02


def test_searches_are_retried_and_fail_with_the_reason() -> None:
    async def ask(shelf: Slow, **settings: float) -> SearchBatcher:
        batcher = SearchBatcher(shelf, top_k=1, backoff_s=0.001, **settings)  # type: ignore[arg-type]
        await batcher.search("x")
        return batcher

    assert asyncio.run(ask(Slow(failures=2))).stats.num_retries == 2
    with pytest.raises(RetrieverUnavailableError, match="not now"):
        asyncio.run(ask(Slow(failures=9), retries=2))
    assert asyncio.run(ask(Slow(hangs=1), timeout_s=0.1)).stats.num_retries == 1
    with pytest.raises(RetrieverUnavailableError, match="did not answer 1 queries within"):
        asyncio.run(ask(Slow(hangs=5), retries=1, timeout_s=0.1))


def test_an_mcp_client_finds_what_the_library_finds(folder: Path, library: HybridRetriever) -> None:
    pytest.importorskip("mcp")
    from mcp import Client, StdioServerParameters

    async def talk() -> None:
        arguments = ["-m", "medagent.cli.main", "index", "mcp", str(folder)]
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            assert "medical advice" in (client.instructions or "")
            result = await client.call_tool("search", {"query": QUERIES[4], "top_k": 3})
            found = result.structured_content["passages"]
            hits = library.search([QUERIES[4]], top_k=3)[0]
            assert [(row["id"], row["score"]) for row in found] == [(hit.passage.id, hit.score) for hit in hits]
            resource = await client.read_resource(found[0]["uri"])
            assert Passage.from_json(json.loads(resource.contents[0].text)) == hits[0].passage

    asyncio.run(talk())


def test_mcp_reads_every_uri_that_search_gives_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    from mcp import Client

    from medagent.retrieval.mcp_server import make_server

    ids = ["/guidelines/sepsis.md", "C:/docs/gout.pdf", "a%20b", "guidelines/flu.md", "pmid:1#2", "../up", "ä ö?&=#"]
    passages = [
        Passage.make("", f"Passage {n} on fictospirin.", f"S{n % 2}", id=id_, year=n) for n, id_ in enumerate(ids)
    ]
    build_index(passages, tmp_path, HashedNgramEmbedder(64))

    async def talk() -> None:
        async with Client(make_server(HybridRetriever(str(tmp_path)))) as client:
            asked = {"query": "fictospirin", "top_k": 20}
            rows = (await client.call_tool("search", asked)).structured_content["passages"]
            assert {row["id"] for row in rows} == set(ids)
            for row in rows:
                read = await client.read_resource(row["uri"])
                assert json.loads(read.contents[0].text)["id"] == row["id"]
            some = await client.call_tool("search", {**asked, "sources": ["S1"], "year_from": 3})
            assert {row["year"] for row in some.structured_content["passages"]} == {3, 5}
            for wrong in ({"source": ["S1"]}, {"query": " "}, {"top_k": 5000}):
                assert (await client.call_tool("search", {**asked, **wrong})).is_error
            (tool,) = (await client.list_tools()).tools
            assert (tool.name, tool.input_schema["additionalProperties"]) == ("search", False)
            with pytest.raises(Exception, match=r"(?i)passage|resource|error"):
                await client.read_resource("passage://unknown")

    asyncio.run(talk())


def test_chromas_own_server_holds_the_vectors(tmp_path: Path) -> None:
    with pytest.raises(RetrieverUnavailableError, match="chroma run"):
        build_index(PASSAGES, tmp_path / "early", SMALL, settings=IndexSettings(chroma="http://127.0.0.1:9"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chroma = [str(Path(sys.executable).parent / "chroma"), "run", "--path", str(tmp_path / "server")]
    server = subprocess.Popen([*chroma, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while True:
            try:
                httpx.get(f"{url}/api/v2/heartbeat")
                break
            except httpx.HTTPError:
                assert server.poll() is None, f"chroma ended; another process may have taken port {port} meanwhile"
                assert time.monotonic() < deadline, "chroma never answered"
                time.sleep(0.1)
        settings = IndexSettings(chroma=url)
        build_index(PASSAGES, tmp_path / "index", HashedNgramEmbedder(), settings=settings)
        assert not (tmp_path / "index" / "chroma").exists()
        build_index(PASSAGES, tmp_path / "local", HashedNgramEmbedder(), settings=replace(settings, chroma=""))
        remote, local = (HybridRetriever(str(tmp_path / name)) for name in ("index", "local"))
        far, near = (each.search(QUERIES, top_k=3) for each in (remote, local))
        assert [[hit.passage for hit in hits] for hits in far] == [[hit.passage for hit in hits] for hits in near]
        remote.close()
        assert not problems(tmp_path / "index", HashedNgramEmbedder())
        assert rebuild_index(tmp_path / "index").num_passages == 60
        remote = HybridRetriever(str(tmp_path / "index"), cache_size=0)
        server.terminate()
        server.wait()
        with pytest.raises(RetrieverUnavailableError, match="does not answer"):
            remote.search(["agent9"], top_k=1)
        remote.close()
        with pytest.raises(RetrieverUnavailableError, match="chroma run"):
            HybridRetriever(str(tmp_path / "index"))
        assert Manifest.read(tmp_path / "index").settings.chroma == url
    finally:
        server.kill()
        server.wait()
