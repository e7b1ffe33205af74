"""The work of `medagent serve`: open an agent once, and answer over HTTP until interrupted."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from medagent.agent import Agent
from medagent.agent_folder import open_agent
from medagent.agent_spec import SPEC_FILE, AgentSpec, read_spec
from medagent.cli.ask import rewriter_of
from medagent.engines.base import Engine
from medagent.engines.in_process import InProcessEngine
from medagent.engines.servers import ServersEngine
from medagent.engines.vllm import VllmEngine
from medagent.errors import ConfigError
from medagent.evidence import Shown
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.emergencies import NUMBER
from medagent.policies.vllm.server import VllmSettings
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.retriever import Retriever
from medagent.serving.admission import Admission
from medagent.serving.app import LOOPBACK, make_app
from medagent.serving.background import share_one_arena, stamp, trim_memory, watch
from medagent.serving.middleware import BoundedConnection, read_api_key_hashes
from medagent.serving.page import Feedback, read_examples, read_quiz
from medagent.serving.settings import AdmissionLimits, AuthSettings, EngineName, PageSettings

GRACE_S = 30  # seconds that running answers may take after the first Ctrl-C
EXAMPLES, QUIZ = "examples.jsonl", "quiz.jsonl"


@dataclass(frozen=True)
class Settings:
    """How an agent is served; see `medagent serve --help`."""

    name: str = "medagent"
    host: str = "127.0.0.1"
    port: int = 8080
    root_path: str = ""
    auth: AuthSettings = AuthSettings()
    limits: AdmissionLimits = AdmissionLimits()
    page: PageSettings = PageSettings()
    poll_interval_s: float = 5.0
    log_questions: bool = False
    shown: Shown = "partly"
    entailment: str | None = None
    emergencies: str | None = None
    emergency_number: str = NUMBER
    rewriter: str = "rules"
    rewriter_model: str = ""

    def __post_init__(self) -> None:
        """Refuse an address that others reach without a token."""
        if self.host not in LOOPBACK and self.auth.api_key_hashes is None:
            raise ConfigError(
                f"host {self.host}: others could reach the agent there, and no bearer token is asked for. Give "
                "--auth.api_key_hashes FILE (a SHA-256 digest per line), or leave --host out."
            )


def serve_agent(
    agent: str,
    *,
    index: str | None,
    model: str,
    tools: Sequence[str],
    engine: EngineName,
    servers: Sequence[str],
    vllm: Mapping[str, Any],
    settings: Settings,
) -> None:
    """Serve an agent. On an address that other machines reach, it asks for tokens."""
    refuse_busy(settings.host, settings.port)
    share_one_arena()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with closing(engine_named(engine, servers=servers, model=model, vllm=vllm)) as sampling:
        app = app_of(agent, index=index, model=model, tools=tools, engine=sampling, settings=settings)
        print(
            f"Serving {agent} as {settings.name!r}: the page is http://{settings.host}:{settings.port}/, the API "
            f"below /v1. {NOT_ADVICE}",
            flush=True,
        )
        # uvicorn raises the signal again at its end, and the engine must still be closed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(
            app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            root_path=settings.root_path,
            http=BoundedConnection,
        )


def refuse_busy(host: str, port: int) -> None:
    """Refuse a port that another program listens on, before anything is loaded.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{host}:{port}: cannot be listened on ({error.strerror or error}). Give another --port, or stop what "
                "holds it."
            ) from error


def engine_named(
    name: EngineName, *, servers: Sequence[str] = (), model: str = "", vllm: Mapping[str, Any] | None = None
) -> Engine:
    """The engine of that name, with its settings checked."""
    if (name == "servers") != bool(servers):
        raise ConfigError(
            f"engine {name}: found {len(servers)} servers. Give --engine servers and --servers "
            "'[http://HOST:8000/v1]' together, or neither."
        )
    if vllm and name != "vllm":
        raise ConfigError(
            f"engine {name}: found settings of vLLM, which it does not start. Give --engine vllm, or leave --vllm out."
        )
    if name == "servers":
        return ServersEngine(list(servers), model, timeout_s=120.0, retries=1)
    if name == "in_process":
        return InProcessEngine()
    try:
        return VllmEngine(settings=VllmSettings(**(vllm or {})))
    except TypeError as error:
        raise ConfigError(f"vllm: {error}. It takes {', '.join(VllmSettings.__dataclass_fields__)}.") from error


def app_of(
    name: str, *, index: str | None, model: str, tools: Sequence[str], engine: Engine, settings: Settings
) -> FastAPI:
    """The service, with the agent opened. Files are checked before that."""
    auth, page = settings.auth, settings.page
    tokens = sorted(read_api_key_hashes(Path(auth.api_key_hashes))) if auth.api_key_hashes else []
    folder = Path(name) if (Path(name) / SPEC_FILE).exists() else None
    examples, quiz = _given_or_own(page.examples, folder, EXAMPLES), _given_or_own(page.quiz, folder, QUIZ)
    asked = read_quiz(quiz) if quiz else []
    shown = read_examples(examples) if examples else []
    opened = stamp(folder) if folder else ()  # before it is opened, so that an export meanwhile counts as new
    spec = read_spec(folder) if folder else None
    agent = open_agent(name, index=index, model=model, tools=tools, engine=engine)
    tasks: list[Callable[[Admission], Coroutine[Any, Any, None]]] = [lambda admission: trim_memory()]
    if folder is not None and spec is not None and settings.poll_interval_s > 0:
        again = _Reopening(name, index, tools, engine, spec, agent.retriever)
        tasks.append(partial(watch, folder, opened, again, every_s=settings.poll_interval_s))
    return make_app(
        agent,
        name=settings.name,
        limits=settings.limits,
        check=EvidenceCheck.over(
            agent.retriever,
            shown=settings.shown,
            entailment=settings.entailment,
            emergencies=settings.emergencies,
            number=settings.emergency_number,
        ),
        rewriter=rewriter_of(settings.rewriter, model=settings.rewriter_model, policy=agent.policy),
        hosts=_served_hosts(settings),
        tokens=tokens,
        examples=shown,
        log_questions=settings.log_questions,
        quiz=asked,
        feedback=Feedback(Path(page.feedback)) if page.feedback else None,
        background_tasks=tasks,
        engine_lives=engine.is_alive,
    )


def _given_or_own(given: str | None, folder: Path | None, name: str) -> Path | None:
    """The file that is given, else the agent's own where there is one."""
    own = folder / name if folder else None
    return Path(given) if given else own if own and own.exists() else None


def _served_hosts(settings: Settings) -> tuple[str, ...]:
    """The host names that requests may name; any, where others reach the service and none are allowed by name."""
    if settings.host in LOOPBACK:
        return (*LOOPBACK, *settings.auth.allowed_hosts)
    return (*LOOPBACK, settings.host, *settings.auth.allowed_hosts) if settings.auth.allowed_hosts else ("*",)


@dataclass
class _Reopening:
    """Opens the agent anew from its folder. It keeps the open retriever unless the agent names another."""

    name: str
    index: str | None
    tools: Sequence[str]
    engine: Engine
    spec: AgentSpec
    retriever: Retriever

    def __call__(self) -> Agent:
        """The agent."""
        now = read_spec(Path(self.name))
        same = (now.retriever, now.tools) == (self.spec.retriever, self.spec.tools)
        kept = self.retriever if same else None
        agent = open_agent(self.name, index=self.index, tools=self.tools, retriever=kept, engine=self.engine)
        self.spec, self.retriever = now, agent.retriever
        return agent
