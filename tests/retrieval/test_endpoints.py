"""Embedding and reranking by an HTTP service, here a small one of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medagent.cli.main import main
from medagent.retrieval import http_service
from medagent.retrieval.embedders import EndpointEmbedder, HashedNgramEmbedder, embedder_from_identity
from medagent.retrieval.errors import IndexMismatchError, RetrievalError, RetrieverUnavailableError
from medagent.retrieval.index import build_index
from medagent.retrieval.maintenance import verify_index
from medagent.retrieval.rerank import EndpointReranker, reranker_named
from medagent.retrieval.search import HybridRetriever
from tests.retrieval.support import PASSAGES


class Stub(ThreadingHTTPServer):
    """Embeds with hashed n-grams and scores by length; `faults` are answers to give first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[tuple[int, Any, dict[str, str]]] = []
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.hashed, self.longest = HashedNgramEmbedder(32), 10_000
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        if self.faults:
            return self.faults.pop(0)
        if path == "/v1/embeddings":
            if max(map(len, body["input"])) > self.longest:
                return 413, {"error": "input too long"}, {}
            vectors = (3 * self.hashed.embed_queries(body["input"])).tolist()
            data = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
            return 200, {"data": data[::-1]}, {}
        if path == "/rerank":
            return 200, [{"index": n, "score": len(t)} for n, t in enumerate(body["texts"])][::-1], {}
        if path == "/v1/rerank":
            found = [{"index": n, "relevance_score": -len(t)} for n, t in enumerate(body["documents"])]
            return 200, {"results": found[::-1]}, {}
        return 404, {"error": "no such path"}, {}


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers.get("Authorization", "")))
        status, answer, headers = self.server.answer(self.path, body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(http_service, "BACKOFF_S", 0.001)
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def embedder(stub: Stub, *prefixes: str) -> EndpointEmbedder:
    return EndpointEmbedder(f"{stub.url}/v1", "demo", *prefixes)


def test_an_index_by_a_service_is_built_searched_and_verified(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEDAGENT_RETRIEVAL_KEY", "secret-key")
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(passage.to_json()) for passage in PASSAGES))
    folder, name = tmp_path / "index", f"openai|{stub.url}/v1/|demo|q: |p: "
    assert main(["index", "build", str(tmp_path / "c.jsonl"), "--out", str(folder), "--embedder", name]) == 0
    assert main(["search", "agent7", "--index", str(folder), "--top_k", "1"]) == 0
    assert "1. condition 7" in capsys.readouterr().out
    assert main(["search", "agent7", "--index", str(folder), "--reranker", f"tei|{stub.url}"]) == 0
    assert stub.asked[-1][0] == "/rerank"
    inputs = [body["input"] for path, body, _ in stub.asked if path == "/v1/embeddings"]
    assert max(map(len, inputs)) == http_service.BATCH
    assert any(some[0].startswith("p: condition") for some in inputs)
    assert any(some == ["q: agent7"] for some in inputs)
    assert {key for _, _, key in stub.asked} == {"Bearer secret-key"}
    assert "secret-key" not in (folder / "manifest.json").read_text()
    assert not [check for check in verify_index(folder, embedder(stub, "q: ", "p: ")) if check.problem]
    stub.hashed = HashedNgramEmbedder(16)
    with pytest.raises(IndexMismatchError, match="its model changed"):
        HybridRetriever(str(folder))


def test_vectors_have_length_one_in_the_order_of_the_texts(stub: Stub) -> None:
    texts = [f"text {number}" for number in range(70)]
    np.testing.assert_allclose(embedder(stub).embed_queries(texts), stub.hashed.embed_queries(texts), atol=1e-6)
    assert embedder(stub).embed_queries([]).shape == (0, 32)
    known = EndpointEmbedder(f"{stub.url}/v1", "intfloat/e5-small")
    assert known.identity == f"openai|{stub.url}/v1|intfloat/e5-small|query: |passage: "
    assert embedder_from_identity(known.identity).identity == known.identity


def test_failures_that_may_pass_are_repeated_and_then_name_the_service(stub: Stub) -> None:
    some = embedder(stub)
    stub.faults = [(503, {}, {}), (429, {}, {"Retry-After": "0"}), (500, b"", {})]
    assert some.embed_queries(["gout"]).shape == (1, 32)
    assert not stub.faults
    stub.faults = [(503, {"error": "loading"}, {})] * 9
    with pytest.raises(RetrieverUnavailableError, match=rf"'demo' at {stub.url}/v1: no answer after 5 .*loading"):
        some.embed_queries(["gout"])
    assert len(stub.faults) == 4


def test_a_service_that_went_away_is_named_by_a_search(stub: Stub, tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "i", embedder(stub))
    with closing(HybridRetriever(str(tmp_path / "i"))) as retriever:
        stub.shutdown()
        stub.server_close()
        with pytest.raises(RetrieverUnavailableError, match=stub.url):
            retriever.search(["agent7"], top_k=1)


@pytest.mark.parametrize(
    "answer",
    [
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0, 2.0]}]},
        {"data": [{"index": 1, "embedding": [1.0] * 32}]},
        {"data": [{"index": 0, "embedding": [1.0] * 32}, {"index": 1, "embedding": [1.0] * 32}]},
        {"data": [{"index": 0, "embedding": [1.0] * 31 + [None]}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        ["no"],
    ],
)
def test_an_answer_of_another_shape_is_refused(stub: Stub, answer: Any) -> None:
    some = embedder(stub)
    stub.faults = [(200, answer, {})]
    with pytest.raises(RetrievalError, match=r"lacks 1 vectors of 32 numbers"):
        some.embed_queries(["gout"])


def test_a_text_that_the_service_finds_too_long_is_named(stub: Stub) -> None:
    some, stub.longest = embedder(stub), 60
    long = PASSAGES[5].__class__.make("long", "word " * 20, id="pmid:7")
    with pytest.raises(RetrievalError, match=r"413.*refused 'pmid:7'.*--max_tokens"):
        some.embed_passages([*PASSAGES[:3], long])


def test_wrong_addresses_and_refusals_are_told_before_any_work(stub: Stub) -> None:
    for url in ("localhost:8000", "http://user:key@host/v1", "http://host/v1?api-key=1", ""):
        with pytest.raises(RetrievalError, match="MEDAGENT_RETRIEVAL_KEY") as caught:
            EndpointEmbedder(url, "demo")
        assert "user:key" not in str(caught.value)
    with pytest.raises(RetrievalError, match="status 404"):
        EndpointEmbedder(stub.url, "demo")
    stub.faults = [(401, {"error": "no key"}, {})]
    with pytest.raises(RetrievalError, match=r"status 401.*MEDAGENT_RETRIEVAL_KEY"):
        embedder(stub)
    stub.faults = [(200, b"<html>", {})]
    with pytest.raises(RetrievalError, match="html"):
        embedder(stub)
    with pytest.raises(RetrievalError, match="tei"):
        reranker_named("unknown|http://host")


def test_both_kinds_of_rerankers_score_in_order(stub: Stub) -> None:
    passages = [PASSAGES[0].__class__.make("", "w" * (1 + number)) for number in range(40)]
    longest = [float(len(passage.indexed_text)) for passage in passages]
    assert reranker_named(f"tei|{stub.url}").scores("gout", passages) == longest
    assert reranker_named(f"cohere|{stub.url}/v1|m").scores("gout", passages) == [-each for each in longest]
    assert stub.asked[-1][1]["model"] == "m"
    for answer in ([{"index": 0, "score": 1}], [{"index": 0}, {"index": 1}], {}, [{"index": 0, "score": None}] * 2):
        stub.faults = [(200, answer, {})]
        with pytest.raises(RetrievalError, match="one score for each of 2 texts"):
            EndpointReranker(stub.url).scores("gout", passages[:2])
