"""Answers to requests: streams that end when the client goes, and errors in OpenAI's shape."""

import asyncio
import logging
import re
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from chromadb.errors import ChromaError
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from medagent.errors import EndpointError, MedagentError
from medagent.retrieval.errors import RetrievalError
from medagent.serving.admission import Answering, Event
from medagent.serving.errors import ServiceError
from medagent.serving.forms import AnswerForm, ChatForm, ResponseForm

log = logging.getLogger("medagent.serving")
CLIENT_LEFT = 499
_DAMAGED = re.compile(r"malformed|not a database|corrupt|hnsw", re.IGNORECASE)  # words of SQLite and Chroma
MOST_CAUSES = 5  # of an error that are looked at; one may be its own
_REFUSALS = {401: "refused the key", 403: "refused the key", 404: "does not know the address or the model"}
SILENCE_S = 15.0  # between two comments of a stream
Found = TypeVar("Found")


class ClientLeftError(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(request: Request, work: Awaitable[Found]) -> Found:
    """The result, or `ClientLeftError` (and the work stopped) once the client has gone."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work), asyncio.create_task(left())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def stream(pieces: AsyncGenerator[str]) -> StreamingResponse:
    """Server-sent events, which proxies do not buffer."""
    kept = kept_alive(pieces, silence_s=SILENCE_S)
    return StreamingResponse(kept, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def kept_alive(pieces: AsyncGenerator[str], *, silence_s: float) -> AsyncGenerator[str]:
    """The pieces, with a comment after each `silence_s` without one: proxies close silent connections."""
    following = asyncio.ensure_future(anext(pieces))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=silence_s)
            if not done:
                yield ": working\n\n"
                continue
            try:
                yield following.result()
            except StopAsyncIteration:
                return
            following = asyncio.ensure_future(anext(pieces))
    finally:
        following.cancel()
        with anyio.CancelScope(shield=True):  # starlette's scope cancels each further wait, and the answer would go on
            await asyncio.gather(following, return_exceptions=True)
            await pieces.aclose()


async def sent(form: AnswerForm, answering: Answering, request: Request, *, streamed: bool | None) -> Response:
    """The response to a question, at once as a stream or when it is whole."""
    if streamed:
        return stream(told(form, answering, request))
    return JSONResponse(await unless_gone(request, whole(form, answering)))


def said(form: ChatForm | ResponseForm, text: str, *, streamed: bool | None) -> Response:
    """The response to a prompt that no agent is asked for."""
    pieces = [*form.tell(Event("id", {"id": form.id})), *form.say(text)]
    return Response("".join(pieces), media_type="text/event-stream") if streamed else JSONResponse(form.whole)


async def whole(form: AnswerForm, answering: Answering) -> Any:
    """The form once it is whole."""
    async with aclosing(answering.events()) as steps:
        async for event in steps:
            deque(form.tell(event), maxlen=0)
    return form.whole


async def told(form: AnswerForm, answering: Answering, request: Request) -> AsyncGenerator[str]:
    """The stream of the form. The first step is the event `id`; the last may be `error`."""
    steps = answering.events()
    try:
        for piece in form.tell(Event("id", {"id": form.id})):
            yield piece
        async for event in steps:
            for piece in form.tell(event):
                yield piece
    except (MedagentError, RetrievalError) as failure:
        for piece in form.tell(Event("error", failed(failure, request).body)):
            yield piece
    finally:
        answering.task.cancel()  # where the steps have not begun, closing them does nothing
        await steps.aclose()


def failed(failure: Exception, request: Request) -> ServiceError:
    """The error that a client reads of a failed answer. The cause goes to the log alone."""
    if isinstance(failure, ServiceError):
        return failure
    id_ = request.state.request_id
    log.error("request %s failed: %s", id_, failure, exc_info=failure)
    if isinstance(failure, RetrievalError | sqlite3.DatabaseError):
        told = f"the corpus cannot be searched now{_damage(failure)} (request {id_})."
        return ServiceError(told, status=503, code="retrieval")
    upstream, wait_s = _upstream(failure), None
    if upstream is not None:
        wait_s = upstream.retry_after_s
        told = f"{_told_of(upstream)} (request {id_})."
        return ServiceError(told, status=502 if wait_s is None else 503, code="upstream", retry_after_s=wait_s)
    return ServiceError(f"the agent failed (request {id_}); the server's log says why.", status=500)


def _damage(failure: BaseException | None) -> str:
    """The index file behind a failure and what mends it; empty where none is damaged."""
    for _ in range(MOST_CAUSES):
        passages = isinstance(failure, sqlite3.DatabaseError)
        if passages or (isinstance(failure, ChromaError) and _DAMAGED.search(str(failure))):
            file = "passages.sqlite" if passages else "chroma"
            return f": the index's {file} is damaged. Its operator builds the index again with medagent index build"
        failure = failure.__cause__ if failure else None
    return ""


def _upstream(failure: Exception) -> EndpointError | None:
    """The failure of the model's server that is behind a failure."""
    found = (each for each in (failure, failure.__cause__) if isinstance(each, EndpointError) and each.host)
    return next(found, None)


def _told_of(failure: EndpointError) -> str:
    """What happened at the model's server, without its own words, which may hold a key."""
    said = f"status {failure.status}" if failure.status else "no reply"
    if failure.retry_after_s is not None:
        said += f"). It is overloaded or down; try again in {failure.retry_after_s} s"
    else:
        said += f"). It {_REFUSALS.get(failure.status, 'gave no usable answer')}; tell the operator"
    return f"the model's server {failure.host} failed ({said}"


def handle_errors(app: FastAPI) -> None:
    """Give every error OpenAI's shape."""
    app.add_exception_handler(MedagentError, _on_failure)
    app.add_exception_handler(RetrievalError, _on_failure)
    app.add_exception_handler(sqlite3.DatabaseError, _on_failure)  # of what only describes the corpus
    app.add_exception_handler(OSError, _on_failure)  # a report on a full disk
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientLeftError, lambda request, failure: Response(status_code=CLIENT_LEFT))


async def _on_failure(request: Request, failure: Exception) -> Response:
    return failed(failure, request).response()


async def _on_invalid(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestValidationError)
    # FastAPI would repeat the input. It may be long, private, or no text that can be sent.
    wrong = failure.errors()[0]
    if wrong["loc"] == ("body",):
        sent = request.headers.get("content-type", "none")
        json_sent = sent.partition(";")[0].strip().lower() == "application/json"
        told = "" if json_sent else f" (its content type is {sent})"
        header = "" if json_sent else " with the header Content-Type: application/json"
        return ServiceError(f"the body is not a JSON object{told}. Send one{header}.").response()
    if wrong["type"] == "json_invalid":
        return ServiceError(f"the body is not valid JSON, from character {wrong['loc'][-1]} on.").response()
    where = ".".join(str(part) for part in wrong["loc"] if part != "body")
    return ServiceError(f"{where}: {wrong['msg']}", param=where or None).response()


async def _on_http(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    unread = failure.detail == "There was an error parsing the body"  # FastAPI's words
    detail = "the body cannot be read. Send JSON in UTF-8, not compressed." if unread else str(failure.detail)
    if failure.status_code == 404 and detail == "Not Found":
        detail = f"{request.url.path[:100]} is not served here. Send messages to /v1/chat/completions."
    return ServiceError(detail, status=failure.status_code).response(**(failure.headers or {}))
