"""One process owns an index and answers many clients over HTTP, by an endpoint of its own and that of Search-R1.

Search-R1 (Jin et al., arXiv 2503.09516): POST /retrieve {"queries", "topk", "return_scores"} -> {"result":
[[{"document": {"id", "contents"}, "score"}]]}. The first line of `contents` is the title.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError
from medagent.retrieval.filters import EXAMPLE, Filter
from medagent.retrieval.manifest import embedder_of_index
from medagent.retrieval.passages import Hit, Passage, replace_surrogates
from medagent.retrieval.query_match import operators_note
from medagent.retrieval.rerank import reranker_named
from medagent.retrieval.search import HybridRetriever

MAX_QUERIES, MAX_QUERY_CHARACTERS, MAX_TOP_K = 4096, 10_000, 1000
MAX_HITS = 50_000  # of one request
MAX_WAITING = 16_384  # queries; beyond it callers are told to come back
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
Query = Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS)]
Queries = Annotated[list[Query], Field(max_length=MAX_QUERIES)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]


class Body(BaseModel):
    """Base of the bodies: a field that is not known is an error, as a misspelt filter would filter nothing."""

    model_config = ConfigDict(extra="forbid")


class SearchRequest(Body):
    """The body of POST /search."""

    queries: Queries
    top_k: TopK = 5
    where: Annotated[str, Field(max_length=2000, examples=[EXAMPLE])] = ""


class ReadRequest(Body):
    """The body of POST /read."""

    id: Query
    first: Annotated[int, Field(ge=1)] | None = None
    size: TopK = 5
    where: Annotated[str, Field(max_length=2000)] = ""


class RetrieveRequest(BaseModel):
    """The body of POST /retrieve, as Search-R1's client sends it; `topk` may be absent or null there."""

    queries: Queries
    topk: TopK | None = None
    return_scores: bool = False


def make_app(
    retriever: HybridRetriever, *, max_batch: int = 256, timeout_s: float = 120.0, hosts: Sequence[str] = LOOPBACK
) -> FastAPI:
    """The service over an open index, in common batches. Other host names than `hosts` are refused."""
    batcher = SearchBatcher(retriever, top_k=5, max_batch=max_batch, retries=0, timeout_s=timeout_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        retriever.close()

    app = FastAPI(title="medagent retrieval", description=__doc__, lifespan=lifespan)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))

    async def search_all(queries: list[str], top_k: int, where: Filter) -> list[list[Hit]]:
        if len(queries) * top_k > MAX_HITS:
            raise HTTPException(422, f"{len(queries)} queries x {top_k} passages found, wanted at most {MAX_HITS:,}")
        queries = [replace_surrogates(query) for query in queries]
        if not all(query.strip() for query in queries):
            raise HTTPException(422, "an empty query was found, wanted words to search for")
        if batcher.waiting + len(queries) > MAX_WAITING:
            raise HTTPException(429, "too many queries are waiting; try again", headers={"Retry-After": "1"})
        return await asyncio.gather(*(batcher.search(query, top_k=top_k, where=where) for query in queries))

    @app.exception_handler(RetrieverUnavailableError)
    async def unavailable(request: Request, error: RetrieverUnavailableError) -> JSONResponse:
        logging.getLogger("uvicorn.error").error("search failed: %s", error)
        return JSONResponse({"detail": str(error)}, status_code=503)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input, which FastAPI would repeat: it may be long, private, or no text that can be sent.
        wrong = [{"loc": list(found["loc"]), "msg": found["msg"], "type": found["type"]} for found in error.errors()]
        return JSONResponse({"detail": wrong}, status_code=422)

    @app.post("/search")
    async def search(body: SearchRequest) -> dict[str, Any]:
        """Passages for each query, best first.

        `replaced` names words that no passage has, and what stood for them. `notes` tells of operators in a query.
        """
        where = filter_of(body.where)
        found = await search_all(body.queries, body.top_k, where)
        return {
            "version": retriever.manifest.version,
            "results": [[{"passage": hit.passage.to_json(), "score": hit.score} for hit in hits] for hits in found],
            "replaced": [retriever.replaced(query) for query in body.queries],
            "notes": [operators_note(query) for query in body.queries],
        }

    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest) -> dict[str, Any]:
        """Search-R1's retrieval endpoint."""
        found = await search_all(body.queries, body.topk or 3, Filter())
        if not body.return_scores:
            return {"result": [[contents_of(hit.passage) for hit in hits] for hits in found]}
        scored = [[{"document": contents_of(hit.passage), "score": hit.score} for hit in hits] for hits in found]
        return {"result": scored}

    @app.post("/read")
    def read(body: ReadRequest) -> dict[str, Any]:
        """Passages of the document that holds a passage, in order; null where no such passage is let through."""
        part = retriever.read(body.id, first=body.first, size=body.size, where=filter_of(body.where))
        return {"part": part and {**vars(part), "passages": [each.to_json() for each in part.passages]}}

    @app.get("/passages/{id:path}")
    def passage(id: str) -> dict[str, Any]:
        """One passage by id."""
        found = retriever.passage(id)
        if found is None:
            raise HTTPException(404, f"no passage {id!r} in this index")
        return found.to_json()

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        """The index that is served."""
        manifest = retriever.manifest
        return {
            "status": "ok",
            "passages": manifest.num_passages,
            "embedder": manifest.embedder,
            "version": manifest.version,
        }

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """Counts and waits in Prometheus's text format."""
        stats, p95 = batcher.stats, batcher.stats.metrics()["time/search_p95"]
        values: dict[str, float] = {"queries_total": stats.num_queries, "batches_total": stats.num_batches}
        values |= {"waiting": batcher.waiting, "wait_seconds_p95": p95}
        return PlainTextResponse("".join(f"medagent_search_{name} {value}\n" for name, value in values.items()))

    return app


def filter_of(where: str) -> Filter:
    """The filter of a request; one that is none is the caller's mistake."""
    try:
        return Filter.parse(where)
    except RetrievalError as error:
        raise HTTPException(422, str(error)) from error


def contents_of(passage: Passage) -> dict[str, str]:
    """A passage in Search-R1's form: an id, and contents whose first line is the title."""
    title = " ".join(part for part in (passage.title, passage.section and f"({passage.section})") if part)
    return {"id": passage.id, "contents": f"{title}\n{passage.text}"}


def serve(index: Path, *, host: str, port: int, max_batch: int, reranker: str | None, device: str | None) -> None:
    """Open an index and serve it until interrupted."""
    second = reranker_named(reranker, device) if reranker else None
    retriever = HybridRetriever(str(index), embedder_of_index(index, device), reranker=second)
    print(f"Serving {index} ({len(retriever):,} passages) at http://{host}:{port}; documentation at /docs.", flush=True)
    hosts = LOOPBACK if host in LOOPBACK else ("*",)
    uvicorn.run(make_app(retriever, max_batch=max_batch, hosts=hosts), host=host, port=port, log_level="warning")
