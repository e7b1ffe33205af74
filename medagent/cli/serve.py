"""The work of `medagent serve`: open an agent once, and answer over HTTP until interrupted.

And of `medagent replay`: make an answer again from its record, and compare the two.
"""

import asyncio
import difflib
import json
import logging
import signal
import sys
import webbrowser
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from threading import Timer
from typing import Any

import uvicorn
from fastapi import FastAPI
from rich.console import Console

from medagent.agent import Agent, Job
from medagent.agent_folder import NO_MODEL
from medagent.agent_spec import SPEC_FILE, read_spec
from medagent.cli.ask import agent_of, check_of, rewriter_of
from medagent.cli.commands.ask import AgentOptions, ServeCommand
from medagent.cli.commands.index import index_build, index_sync
from medagent.cli.safe_text import escape
from medagent.engines.base import Engine
from medagent.engines.in_process import InProcessEngine
from medagent.engines.servers import ServersEngine
from medagent.engines.vllm import VllmEngine
from medagent.errors import ConfigError, MedagentError
from medagent.evaluation.fingerprints import agent_fingerprint, index_fingerprint
from medagent.evidence.answers import Steps, answer_job
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.vllm.server import VllmSettings
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.filters import Filter
from medagent.retrieval.retriever import Retriever
from medagent.serving.admission import Admission
from medagent.serving.app import make_app
from medagent.serving.background import share_one_arena, stamp, trim_memory, watch
from medagent.serving.mcp_tool import PATH
from medagent.serving.middleware import BoundedConnection, read_api_key_hashes, refuse_busy
from medagent.serving.openai_form import source_line
from medagent.serving.page import Feedback, read_examples
from medagent.serving.records import Records, read_record
from medagent.serving.settings import LOOPBACK
from medagent.tools.named import settings_of
from medagent.types import Question, Turn

GRACE_S = 30  # seconds that running answers may take after the first Ctrl-C
DEMO = "runs/demo/agent"
FILES = ("emergencies", "synonyms")
MATTERING = (*(each.name for each in fields(AgentOptions)), "engine", "servers", "vllm", "emergency_number")


def serve(command: ServeCommand) -> None:
    """Serve an agent. On an address that other machines reach, it asks for tokens."""
    refuse_busy(command.host, command.port)
    opens_page = bool(command.corpus) and sys.stdout.isatty()
    if command.corpus:
        index = str(indexed(command.corpus))
        command = replace(command, corpus=None, index=index, agent=command.agent or NO_MODEL)
    command = replace(command, agent=command.agent or DEMO)
    share_one_arena()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name in ("httpx", "mcp"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with closing(engine_of(command)) as engine:
        app = app_of(command, engine)
        print(
            f"Serving {command.agent} as {command.name!r}: the page is http://{command.host}:{command.port}/, the API "
            f"below /v1. MCP: {app.state.no_mcp or f'the tool `ask` is at {PATH}.'} {NOT_ADVICE}",
            flush=True,
        )
        if opens_page:
            opening = Timer(1.0, webbrowser.open, [f"http://{command.host}:{command.port}{command.root_path}/"])
            opening.daemon = True  # a service that ends at once opens nothing
            opening.start()
        # uvicorn raises the signal again at its end, and the engine must still be closed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(
            app,
            host=command.host,
            port=command.port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            root_path=command.root_path,
            http=BoundedConnection,
        )


def indexed(corpus: str) -> Path:
    """The index of a corpus, made or brought up to date with progress."""
    path = Path(corpus).resolve()
    index = Path("indexes", f"{path.stem}-{sha256(str(path).encode()).hexdigest()[:8]}")
    if (index / "manifest.json").exists():
        index_sync(str(index), corpus)
    else:
        index_build(corpus, str(index))
    return index


def engine_of(command: ServeCommand) -> Engine:
    """The engine of a service, with its settings checked."""
    name, servers, vllm = command.engine, command.servers or [], command.vllm or {}
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
        return ServersEngine(servers, command.model, timeout_s=120.0, retries=1)
    if name == "in_process":
        return InProcessEngine()
    try:
        return VllmEngine(settings=VllmSettings(**vllm))
    except TypeError as error:
        raise ConfigError(f"vllm: {error}. It takes {', '.join(VllmSettings.__dataclass_fields__)}.") from error


def app_of(command: ServeCommand, engine: Engine) -> FastAPI:
    """The service, with the agent opened. Files are checked before that."""
    auth, page, local = command.auth, command.page, command.host in LOOPBACK
    # Any host name, where others reach the service and none are allowed by name.
    hosts = (*LOOPBACK, command.host, *auth.allowed_hosts) if local or auth.allowed_hosts else ("*",)
    tokens = sorted(read_api_key_hashes(Path(auth.api_key_hashes))) if auth.api_key_hashes else []
    folder = Path(command.agent) if (Path(command.agent) / SPEC_FILE).exists() else None
    own = folder / "examples.jsonl" if folder else None
    examples = Path(page.examples) if page.examples else own if own and own.exists() else None
    shown = read_examples(examples) if examples else []
    records = Records(Path(command.records), command.records_kept) if command.records else None
    tasks: list[Callable[[Admission], Coroutine[Any, Any, None]]] = [lambda admission: trim_memory()]
    retriever: Retriever | None = None

    def opened_agent(kept: Retriever | None = None) -> Agent:
        agent = agent_of(command, retriever=kept, engine=engine)
        return replace(agent, made_with=made_with(command, agent)) if records else agent

    if folder and command.poll_interval_s > 0:
        opened, spec = stamp(folder), read_spec(folder)  # before it is opened: an export meanwhile counts as new

        def reopened() -> Agent:
            """The new agent. It keeps the open retriever unless it names another."""
            nonlocal spec, retriever
            now = read_spec(folder)
            kept = retriever if now.retriever == spec.retriever else None
            new = opened_agent(kept)
            spec, retriever = now, new.retriever
            return new

        tasks.append(partial(watch, folder, opened, reopened, every_s=command.poll_interval_s))
    agent = opened_agent()
    retriever = agent.retriever
    return make_app(
        agent,
        name=command.name,
        limits=command.limits,
        check=check_of(command, retriever, number=command.emergency_number),
        rewriter=rewriter_of(command.rewriter, model=command.rewriter_model, policy=agent.policy),
        hosts=hosts,
        tokens=tokens,
        examples=shown,
        feedback=Feedback(Path(page.feedback)) if page.feedback else None,
        records=records,
        background_tasks=tasks,
        engine_lives=engine.is_alive,
    )


def made_with(command: ServeCommand, agent: Agent) -> dict[str, Any]:
    """What the service's answers depend on: settings, version, and digests of the agent, the index and files."""
    named = {name: getattr(command, name) for name in MATTERING}
    files = {f"{name}_sha256": sha256(Path(named[name]).read_bytes()).hexdigest() for name in FILES if named[name]}
    return {
        **named,
        **files,
        "tools": settings_of([tool.given for tool in agent.tools]),
        "medagent": version("medagent"),
        "agent_sha256": agent_fingerprint(command.agent),
        "index_sha256": index_fingerprint(agent.retriever),
        "tools_sha256": [tool.fingerprint for tool in agent.tools],
    }


Row = Mapping[str, Any]
NOT_COMPARED = {"logprob", "usage", "nearest"}  # rounding, counts, and passages that `quoted` names


def print_replay(id: str, records: Path, given: Mapping[str, Any]) -> None:
    """Print what differs between a recorded answer and the one given now, by the agent and index `given` if any.

    Raises:
        InputError: there is no record of this id.
        ConfigError: it cannot be read.
        MedagentError: something differs that people or the agent read.
    """
    then = read_record(records, id)
    try:
        served = ServeCommand(**{name: then["made_with"][name] for name in MATTERING if name in then["made_with"]})
        served = replace(served, **{name: value for name, value in given.items() if value is not None})
        job = Job(Question(id, then["question"], tuple(then["options"])), then["seed"], then["temperature"])
        where, history, before, passages = Filter.parse(then["where"]), then["history"], _told(then), _passages(then)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{records / id}.json: {error!r} found, wanted a record of this version.") from error
    with closing(engine_of(served)) as engine:
        agent = agent_of(served, engine=engine)
        tell = Steps(agent.protocol, agent.retriever)

        def on_turn(turn: Turn) -> None:
            tell(turn)

        answering = answer_job(
            agent,
            job,
            check=check_of(served, agent.retriever, number=served.emergency_number),
            search=agent.search_batcher().within(where),
            history=history,
            on_turn=on_turn,
        )
        answer = replace(asyncio.run(answering), rewritten_question=then["answer"]["asked_as"])
        now = json.loads(json.dumps({"turns": tell.turns, "answer": answer.to_json()}))
    causes = list(_changes(then["made_with"], made_with(served, agent)))
    found = [*_moved(passages, _passages(now)), *_changes(before, _told(now))]
    console = Console(highlight=False, soft_wrap=True)
    for line in [f"{then['time']}: {then['question']}", *causes, *found]:
        console.print(escape(line))
    if not found:
        console.print(escape(f"The same answer: {then['answer']['text']}"))
        return
    if isinstance(agent.policy, RemotePolicy) or served.engine != "in_process":
        console.print("A server writes what this agent says. Its sampling cannot be repeated exactly.")
    elif not causes:
        console.print("Nothing that is recorded has changed. Another machine or library may round otherwise.")
    raise MedagentError(f"answer {id}: it differs now. The lines above say in what.")


def _changes(then: Row, now: Row) -> Iterator[str]:
    """Two lines for each name whose value differs. A name that is new with this version is left out."""
    return (f"{name} then: {then[name]}\n{name} now:  {now.get(name)}" for name in then if then[name] != now.get(name))


def _told(row: Row) -> dict[str, Any]:
    """What the agent wrote in each turn, and the fields of the answer that people read; passages as their sentences."""
    turns = {f"turn {number}": turn["text"] or turn["query"] for number, turn in enumerate(row["turns"], start=1)}
    answer = {name: value for name, value in row["answer"].items() if name not in NOT_COMPARED}
    for name in ("sources", "quoted"):
        answer[name] = [each["passage"]["text"][slice(*each["sentence"])].strip() for each in answer[name]]
    return turns | answer


def _passages(row: Row) -> dict[str, list[str]]:
    """The sentences of the passages that the agent or people were shown, by where they are from."""
    shown = [each["passage"] for turn in row["turns"] for each in turn["passages"]]
    shown += [each["passage"] for each in row["answer"]["quoted"]]
    found: dict[str, list[str]] = {}
    for passage in sorted({each["id"]: each for each in shown}.values(), key=lambda each: each["text"]):
        place = ", ".join([source_line(passage), *passage.get("notices", ())])
        found.setdefault(place, []).extend(split_sentences(passage["text"]))
    return found


def _moved(then: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> Iterator[str]:
    """Lines on what is read of each place where that differs."""
    for place in sorted(then.keys() | now.keys()):
        if then.get(place) != now.get(place):
            what = (
                "new, found only now" if place not in then else "changed" if place in now else "gone, found only then"
            )
            lines = [line for line in difflib.ndiff(then.get(place, []), now.get(place, [])) if line[0] in "-+"]
            yield "\n  ".join([f"{place}: {what}", *lines])
