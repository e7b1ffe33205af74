"""The agent over HTTP: its own /v1/answers, and OpenAI's chat completions for existing tools."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from medagent.agent import Agent, Job
from medagent.errors import MedagentError
from medagent.evidence.check import EvidenceCheck
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.filters import Filter
from medagent.serving import openai_form as openai
from medagent.serving.admission import (
    Admission,
    AdmissionLimits,
    Answering,
    OverloadedError,
    TooLongError,
    TooSlowError,
)
from medagent.serving.feedback import Feedback, Report
from medagent.serving.middleware import MAX_BODY_BYTES, Guards
from medagent.serving.page import Example, add_page, corpus_of
from medagent.serving.quiz import QuizItem, add_quiz
from medagent.serving.request import AnswerRequest
from medagent.serving.rewriting import Rewriter, RuleRewriter
from medagent.serving.schemas import ERRORS, AnswersShape, CompletionShape, answers_with
from medagent.serving.searchable import Searchable
from medagent.serving.streams import ClientLeftError, kept_alive, unless_gone
from medagent.types import Question

log = logging.getLogger("medagent.serving")
LOOPBACK = ("localhost", "127.0.0.1")
CLIENT_LEFT = 499
SILENCE_S = 15.0


class ModelError(MedagentError):
    """The request names another model."""


def make_app(
    agent: Agent,
    *,
    name: str = "medagent",
    limits: AdmissionLimits = AdmissionLimits(),
    check: EvidenceCheck = EvidenceCheck(),
    rewriter: Rewriter = RuleRewriter(),
    hosts: Sequence[str] = LOOPBACK,
    tokens: Sequence[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    examples: Sequence[Example] = (),
    log_questions: bool = False,
    feedback: Feedback | None = None,
    quiz: Sequence[QuizItem] = (),
    background_tasks: Sequence[Callable[[Admission], Coroutine[Any, Any, None]]] = (),
    engine_lives: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """The service over one agent, which it lists as model `name`.

    `check` decides which answers are shown. `rewriter` completes follow-up questions. Requests to hosts outside
    `hosts` are refused. The page offers `examples`. Reported answers go to `feedback`. `quiz` is for study.
    `background_tasks` run as long as the service, such as `reload.watch`.
    """
    admission = Admission(agent, limits, check)
    searchable = Searchable(admission.search)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each(admission)) for each in background_tasks]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await admission.close()

    app = FastAPI(
        title="medagent", description=__doc__, lifespan=lifespan, docs_url=None, redoc_url=None
    )  # whose pages load from elsewhere
    app.state.admission = admission
    app.add_middleware(Guards, tokens=tokens, max_body_bytes=max_body_bytes, hosts=hosts)

    def start(
        question: Question,
        body: AnswerRequest | openai.ChatRequest,
        request: Request,
        *,
        rewritten_question: str | None = None,
        history: Sequence[str] = (),
    ) -> Answering:
        if log_questions:
            asked = {"request": request.state.request_id, "question": question.text, "options": question.options}
            log.info(json.dumps(asked))
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64  # without one, another sample each time
        return admission.start(
            Job(question, seed=seed, temperature=body.temperature or 0.0),
            rewritten_question=rewritten_question,
            history=history,
            asker=request.state.asker,
            where=Filter.parse(body.where or ""),
        )

    async def standing_alone(questions: Sequence[str], request: Request) -> str:
        """The last question completed; a model that rewrites is not asked what would be refused."""
        admission.refuse_too_many(request.state.asker)
        return await unless_gone(request, rewriter(questions, admission.agent.policy))

    @app.post("/v1/answers", responses=answers_with(AnswersShape))
    async def answers(body: AnswerRequest, request: Request) -> Response:
        """An answer with the steps that led to it.

        A stream has the events `id`, `waiting`, `turn`, `answer` and, where it fails, `error`.
        """
        id_, text = f"answer-{uuid4().hex}", body.question.strip()
        whole = await standing_alone([*body.earlier, text], request)
        question = Question(id_, whole, tuple(body.options))
        rewritten = whole if whole != text else None
        answering = start(question, body, request, rewritten_question=rewritten, history=[text])
        keep = partial(feedback.remember, id_, question) if feedback else None
        if body.stream:
            return _stream(_events(answering, request, id_, keep))
        turns, answer = await unless_gone(request, answering.whole())
        if keep:
            keep(turns, answer)
        return JSONResponse({"id": id_, "turns": turns, "answer": answer})

    if feedback is not None:

        @app.post("/v1/feedback", responses=ERRORS)
        async def report(body: Report) -> Response:
            """Report an answer as wrong, by its id. It is written to the operator's file with its whole rollout."""
            if not await asyncio.to_thread(feedback.write, body):
                return _failure(404, "this answer is not remembered any more.", "invalid_request_error", param="id")
            return JSONResponse({"status": "noted"})

    @app.post("/v1/chat/completions", responses=answers_with(CompletionShape))
    async def chat(body: openai.ChatRequest, request: Request) -> Response:
        """OpenAI's chat completions; the agent's steps are in the extra field `medagent`."""
        if body.model != name:
            raise ModelError(f"the model {body.model!r} does not exist here; this is {name!r}.")
        try:
            asked = openai.read_conversation(body, check.emergencies)
        except openai.RefusedError as wrong:
            return _failure(400, str(wrong), "invalid_request_error", param=wrong.param)
        id_ = f"chatcmpl-{uuid4().hex}"
        if asked.chore is not None:
            return (
                _stream(_chore_chunks(id_, name, asked.chore, usage=_wants_usage(body)))
                if body.stream
                else JSONResponse(openai.chore_completion(id_, name, asked.chore))
            )
        whole = await standing_alone([*asked.before, asked.question], request)
        rewritten = whole if whole != asked.question else None
        answering = start(Question(id_, whole), body, request, rewritten_question=rewritten, history=asked.history)
        if body.stream:
            return _stream(_chunks(answering, request, id_, name, usage=_wants_usage(body)))
        turns, answer = await unless_gone(request, answering.whole())
        return JSONResponse(openai.completion(id_, name, answer, turns))

    described = {"id": name, "object": "model", "created": 0, "owned_by": "medagent"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The agent, as OpenAI's API lists models."""
        return {"object": "list", "data": [described]}

    @app.get("/v1/models/{model:path}", responses=ERRORS)
    async def model(model: Annotated[str, Path(max_length=200)]) -> dict[str, Any]:
        """One model by its name."""
        if model != name:
            raise ModelError(f"the model {model!r} does not exist here; this is {name!r}.")
        return described

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "a question would be refused, or its search would fail"}})
    async def readyz() -> JSONResponse:
        """Whether a question would be taken now, and the corpus can be searched."""
        status = "full" if admission.full else "ready" if engine_lives() else "the engine has ended"
        if status == "ready" and not await searchable():
            status = "the corpus cannot be searched"
        return JSONResponse({"status": status}, status_code=200 if status == "ready" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Counts and times in Prometheus's text format."""
        return PlainTextResponse(admission.prometheus())

    if quiz:
        add_quiz(app, quiz, admission.search)
    add_page(
        app,
        name=name,
        examples=examples,
        corpus=lambda: corpus_of(admission.agent.retriever),
        feedback=bool(feedback),
        quiz=bool(quiz),
    )
    _handle_errors(app)
    return app


def _failure(status: int, message: str, kind: str, **more: Any) -> JSONResponse:
    return JSONResponse(openai.error(message, kind, **more), status_code=status)


def _told(failure: Exception, request: Request) -> tuple[int, dict[str, Any]]:
    """Status and body for a failed answer. The cause goes to the log alone."""
    if isinstance(failure, OverloadedError):
        return 429, openai.error(str(failure), "rate_limit_error", code="overloaded")
    if isinstance(failure, TooSlowError):
        return 504, openai.error(str(failure), "server_error", code="timeout")
    if isinstance(failure, TooLongError):
        return 400, openai.error(str(failure), "invalid_request_error", code="context_length_exceeded")
    if isinstance(failure, ModelError):
        return 404, openai.error(str(failure), "invalid_request_error", code="model_not_found", param="model")
    id_ = request.state.request_id
    log.error("request %s failed: %s", id_, failure, exc_info=failure)
    if isinstance(failure, RetrievalError):
        return 503, openai.error(
            f"the corpus cannot be searched now (request {id_}).", "server_error", code="retrieval"
        )
    return 500, openai.error(f"the agent failed (request {id_}); the server's log says why.", "server_error")


def _handle_errors(app: FastAPI) -> None:
    async def failed(request: Request, failure: Exception) -> Response:
        status, body = _told(failure, request)
        waits = {"Retry-After": str(failure.retry_after_s)} if isinstance(failure, OverloadedError) else None
        return JSONResponse(body, status_code=status, headers=waits)

    async def invalid(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, RequestValidationError)
        # FastAPI would repeat the input. It may be long, private, or no text that can be sent.
        wrong = failure.errors()[0]
        if wrong["type"] == "model_attributes_type" or wrong["loc"] == ("body",):
            sent = request.headers.get("content-type", "none")
            json_sent = sent.partition(";")[0].strip().lower() == "application/json"
            told = "" if json_sent else f" (its content type is {sent})"
            header = "" if json_sent else " with the header Content-Type: application/json"
            return _failure(400, f"the body is no JSON object{told}. Send one{header}.", "invalid_request_error")
        if wrong["type"] == "json_invalid":
            return _failure(400, f"the body is no JSON, from character {wrong['loc'][-1]} on.", "invalid_request_error")
        where = ".".join(str(part) for part in wrong["loc"] if part != "body")
        return _failure(400, f"{where}: {wrong['msg']}", "invalid_request_error", param=where or None)

    async def http(request: Request, failure: Exception) -> Response:
        assert isinstance(failure, HTTPException)
        unread = failure.detail == "There was an error parsing the body"  # FastAPI's words
        detail = "the body cannot be read. Send JSON in UTF-8, not compressed." if unread else str(failure.detail)
        told = openai.error(detail, "invalid_request_error")
        return JSONResponse(told, status_code=failure.status_code, headers=failure.headers)

    async def left(request: Request, failure: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    app.add_exception_handler(MedagentError, failed)
    app.add_exception_handler(RetrievalError, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientLeftError, left)


def _stream(pieces: AsyncGenerator[str]) -> StreamingResponse:
    kept = kept_alive(pieces, silence_s=SILENCE_S)
    return StreamingResponse(kept, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _events(
    answering: Answering,
    request: Request,
    id_: str,
    keep: Callable[[list[dict[str, Any]], dict[str, Any]], None] | None,
) -> AsyncGenerator[str]:
    steps, turns = answering.events(), list[dict[str, Any]]()
    try:
        yield f"event: id\ndata: {json.dumps({'id': id_})}\n\n"
        async for kind, data in steps:
            if kind == "turn":
                turns.append(data)
            elif kind == "answer" and keep:
                keep(turns, data)
            yield f"event: {kind}\ndata: {json.dumps(data)}\n\n"
    except (MedagentError, RetrievalError) as failure:
        yield f"event: error\ndata: {json.dumps(_told(failure, request)[1])}\n\n"
    finally:
        await steps.aclose()


async def _chunks(answering: Answering, request: Request, id_: str, model: str, *, usage: bool) -> AsyncGenerator[str]:
    steps = answering.events()
    try:
        yield _data(openai.chunk(id_, model, {"role": "assistant", "content": ""}))
        async for kind, data in steps:
            if kind != "answer":
                thought = openai.thought_of(data) if kind == "turn" else ""
                delta = {"reasoning_content": thought} if thought else {}
                yield _data(openai.chunk(id_, model, delta, extra={kind: data}))
                continue
            yield _data(openai.chunk(id_, model, {"content": openai.content_of(data)}))
            yield _data(openai.chunk(id_, model, {}, finish=openai.finish_reason(data), extra={"answer": data}))
            if usage:
                yield _data(openai.usage_chunk(id_, model, data))
            yield "data: [DONE]\n\n"
    except (MedagentError, RetrievalError) as failure:
        yield _data(_told(failure, request)[1])
    finally:
        await steps.aclose()


def _wants_usage(body: openai.ChatRequest) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


async def _chore_chunks(id_: str, model: str, text: str, *, usage: bool) -> AsyncGenerator[str]:
    yield _data(openai.chunk(id_, model, {"role": "assistant", "content": text}))
    yield _data(openai.chunk(id_, model, {}, finish="stop"))
    if usage:
        yield _data(openai.usage_chunk(id_, model, {"usage": openai.NO_USAGE}))
    yield "data: [DONE]\n\n"


def _data(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
