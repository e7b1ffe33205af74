"""The agent over HTTP: its own /v1/answers, and OpenAI's chat completions and responses for existing tools."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from medagent.agent import Agent, Job
from medagent.evidence.answers import asking_back
from medagent.evidence.check import EvidenceCheck
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.filters import Filter
from medagent.serving import openai_form as openai
from medagent.serving.admission import Admission, Answering
from medagent.serving.background import QUERY, Probe, check_model
from medagent.serving.errors import ServiceError
from medagent.serving.forms import PARAMS, REPEATED, AnswerForm, ChatForm, ResponseForm, ResponsesRequest
from medagent.serving.mcp_tool import PATH, ask_sessions
from medagent.serving.middleware import MAX_BODY_BYTES, Guards
from medagent.serving.page import Example, Feedback, Report, add_page, described_corpus
from medagent.serving.records import Records
from medagent.serving.responses import handle_errors, said, sent, unless_gone
from medagent.serving.rewriting import Rewriter, asks_back, rewrite_by_rules
from medagent.serving.schemas import ERRORS, SHAPES, AnswerRequest, answers_with
from medagent.serving.settings import LOOPBACK, AdmissionLimits
from medagent.types import LETTERS, Question

MAX_KEPT = 500  # responses of one token


def make_app(
    agent: Agent,
    *,
    name: str = "medagent",
    limits: AdmissionLimits = AdmissionLimits(),
    check: EvidenceCheck = EvidenceCheck(),
    rewriter: Rewriter = rewrite_by_rules,
    hosts: Sequence[str] = LOOPBACK,
    tokens: Sequence[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    examples: Sequence[Example] = (),
    feedback: Feedback | None = None,
    records: Records | None = None,
    background_tasks: Sequence[Callable[[Admission], Coroutine[Any, Any, None]]] = (),
    engine_lives: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """The service over one agent, which it lists as model `name`.

    Requests to hosts outside `hosts`, or without one of the `tokens` (digests), are refused. The page offers
    `examples`. `background_tasks` run as long as the service.
    """
    admission = Admission(agent, limits, check, [each.keep for each in (feedback, records) if each])
    probes = (
        Probe("the corpus cannot be searched", partial(admission.search, QUERY, 1)),
        Probe("the model's server cannot be asked", lambda: check_model(admission.agent.policy), every_s=3.0),
    )
    service = Service(admission, name, rewriter, examples, feedback, engine_lives, probes)
    try:
        sessions, no_mcp = ask_sessions(name, service.begin), ""
    except RetrievalError as missing:
        sessions, no_mcp = None, f"{missing}."

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each(admission)) for each in background_tasks]
        async with sessions.run() if sessions else nullcontext():
            yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await admission.close()

    app = FastAPI(
        title="medagent", description=__doc__, lifespan=lifespan, docs_url=None, redoc_url=None
    )  # whose pages load from elsewhere
    app.state.admission, app.state.no_mcp = admission, no_mcp
    app.add_middleware(Guards, tokens=tokens, max_body_bytes=max_body_bytes, hosts=hosts)
    service.add_to(app)
    if sessions:  # nothing is sent but answers, so there is no stream to GET
        app.router.routes.append(Route(PATH, sessions, methods=["POST", "DELETE"]))
    add_page(app)
    handle_errors(app)
    return app


@dataclass
class Service:
    """The calls of the API, whose docstrings are in /openapi.json."""

    admission: Admission
    name: str
    rewriter: Rewriter
    examples: Sequence[Example]
    feedback: Feedback | None
    engine_lives: Callable[[], bool]
    probes: Sequence[Probe]
    kept: dict[str, dict[str, tuple[Sequence[str], ResponseForm]]] = field(default_factory=dict)  # by token, by id

    def add_to(self, app: FastAPI) -> None:
        """Route requests to the calls."""
        app.post("/v1/answers", responses=answers_with(SHAPES["answers"]))(self.answers)
        if self.feedback is not None:
            app.post("/v1/feedback", responses=ERRORS)(self.report)
        app.post("/v1/chat/completions", responses=answers_with({"type": "object"}))(self.chat)
        app.post("/v1/responses", responses=answers_with({"type": "object"}))(self.respond)
        app.get("/v1/responses/{id}", responses=ERRORS)(self.response)
        app.get("/v1/agent")(self.agent)
        app.get("/v1/models")(self.models)
        app.get("/v1/models/{model:path}", responses=ERRORS)(self.model)
        app.get("/healthz")(self.healthz)
        app.get("/readyz", responses={503: {"description": "a question would be refused, or would fail"}})(self.readyz)
        app.get("/metrics", response_class=PlainTextResponse)(self.metrics)

    async def answers(self, body: AnswerRequest, request: Request) -> Response:
        """An answer with the steps that led to it.

        A stream has the events `id`, `waiting`, `turn`, `answer` and, if it fails, `error`.
        """
        return await sent(*await self.begin(body, request), request, streamed=body.stream)

    async def begin(self, body: AnswerRequest, request: Request) -> tuple[AnswerForm, Answering]:
        """Begin to answer."""
        form, text = AnswerForm(id=f"answer-{uuid4().hex}"), body.question.strip()
        asked = [*body.earlier, text]
        return form, await self._start(form.id, asked, body, request, options=body.options, history=[text])

    async def report(self, body: Report) -> Response:
        """Report an answer as wrong, by its id. It is written to the operator's file with its whole rollout."""
        assert self.feedback is not None
        if not await asyncio.to_thread(self.feedback.write, body):
            raise ServiceError("this answer is not remembered any more.", status=404, param="id")
        return JSONResponse({"status": "noted"})

    async def chat(self, body: openai.ChatRequest, request: Request) -> Response:
        """OpenAI's chat completions; the agent's steps are in the extra field `medagent`."""
        asked = self._read(body)
        form = ChatForm(
            id=f"chatcmpl-{uuid4().hex}",
            model=self.name,
            warnings=openai.unused(body),
            tells_usage=bool(body.stream_options and body.stream_options.include_usage),
        )
        if asked.utility is not None:
            return said(form, asked.utility, streamed=body.stream)
        answering = await self._start(form.id, [*asked.before, asked.question], body, request, history=asked.history)
        return await sent(form, answering, request, streamed=body.stream)

    async def respond(self, body: ResponsesRequest, request: Request) -> Response:
        """OpenAI's responses; searches are `file_search_call` items, and citations annotations."""
        kept, before = self.kept.setdefault(request.state.asker, {}), body.previous_response_id
        if before is not None and before not in kept:
            wrong = f"Previous response with id {before[:100]!r} not found. Send the whole conversation as input."
            raise ServiceError(wrong, status=404, param="previous_response_id", code="previous_response_not_found")
        earlier = kept[before][0] if before is not None else []
        body.messages[:0] = [openai.ChatMessage(role="user", content=text) for text in earlier]
        try:
            asked = self._read(body)
        except ServiceError as refused:
            refused.param = PARAMS.get(refused.param or "", refused.param)
            raise
        form = ResponseForm(
            id=f"resp_{uuid4().hex}",
            model=self.name,
            warnings=openai.unused(body),
            asked=body.model_dump(include=REPEATED),
        )
        if asked.utility is not None:
            questions, found = earlier, said(form, asked.utility, streamed=body.stream)
        else:
            questions = [*asked.before, asked.question]
            answering = await self._start(form.id, questions, body, request, history=asked.history)
            found = await sent(form, answering, request, streamed=body.stream)
        if body.store is not False:
            kept[form.id] = questions, form
            if len(kept) > MAX_KEPT:
                del kept[next(iter(kept))]
        return found

    async def response(self, id: Annotated[str, Path(max_length=200)], request: Request) -> Response:
        """A response that is kept."""
        _, form = self.kept.get(request.state.asker, {}).get(id, ((), None))
        if form is None or form.whole is None:
            raise ServiceError(f"Response with id {id!r} not found. Only the newest are kept, in memory.", status=404)
        return JSONResponse(form.whole)

    async def agent(self) -> dict[str, Any]:
        """The agent's name, limits and examples, what its corpus covers, and whether it takes reports."""
        return {
            "name": self.name,
            "max_characters": openai.MAX_CHARACTERS,
            "max_options": len(LETTERS),
            "examples": [example.model_dump() for example in self.examples],
            "feedback": self.feedback is not None,
            "corpus": await asyncio.to_thread(described_corpus, self.admission.agent.retriever),
            "notice": NOT_ADVICE,
        }

    async def models(self) -> dict[str, Any]:
        """The agent, as OpenAI's API lists models."""
        return {"object": "list", "data": [self._described()]}

    async def model(self, model: Annotated[str, Path(max_length=200)]) -> dict[str, Any]:
        """One model by its name."""
        self._check_model(model)
        return self._described()

    async def healthz(self) -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    async def readyz(self) -> JSONResponse:
        """Whether a question would be taken now, the corpus can be searched, and the model's server answers."""
        status = "full" if self.admission.full else "ready" if self.engine_lives() else "the engine has ended"
        for probe in self.probes:
            if status == "ready" and not await probe():
                status = probe.failing
        return JSONResponse({"status": status}, status_code=200 if status == "ready" else 503)

    async def metrics(self) -> PlainTextResponse:
        """Counts and times in Prometheus's text format."""
        return PlainTextResponse(self.admission.prometheus())

    def _described(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "medagent"}

    def _read(self, body: openai.ChatRequest) -> openai.Conversation:
        self._check_model(body.model)
        return openai.read_conversation(body, self.admission.check.emergencies)

    def _check_model(self, name: str) -> None:
        if name != self.name:
            told = f"the model {name!r} does not exist here; this is {self.name!r}."
            raise ServiceError(told, status=404, code="model_not_found", param="model")

    async def _start(
        self,
        id_: str,
        questions: Sequence[str],
        body: AnswerRequest | openai.ChatRequest,
        request: Request,
        *,
        options: Sequence[str] = (),
        history: Sequence[str],
    ) -> Answering:
        """Complete the last of a conversation's questions, and begin to answer it."""
        self.admission.refuse_too_many(request.state.asker)  # before a model is asked to rewrite
        text = await unless_gone(request, self.rewriter(questions, self.admission.agent.policy))
        if not options and (back := asks_back(questions, text)):
            return Answering.of(asking_back(back, self.admission.check.emergencies.line_for(*history)))
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64  # without one, another sample each time
        return self.admission.start(
            Job(Question(id_, text, tuple(options)), seed=seed, temperature=body.temperature or 0.0),
            conversation=questions,
            history=history,
            asker=request.state.asker,
            where=Filter.parse(body.where or ""),
        )
