"""The commands by which people ask an agent: `ask`, `chat` and `serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from medagent.errors import InputError
from medagent.evidence import Shown
from medagent.serving.settings import AdmissionLimits, AuthSettings, EngineName, PageSettings


def ask(
    question: str,
    agent: str = "runs/demo/agent",
    options: list[str] | None = None,
    index: str | None = None,
    tools: list[str] | None = None,
    where: str = "",
    temperature: float = 0.0,
    evidence: Shown = "partly",
    entailment: str | None = None,
    emergencies: str | None = None,
    json: bool = False,
) -> None:
    """Ask one question and watch the agent think, search and answer with its sources.

    Args:
        question: The question.
        agent: Folder of an exported agent, "starter" (the untrained base policy), or a model, as in evaluate:
            "org/name" of the hub, or "hf:FOLDER".
        options: Answer options for multiple choice, e.g. --options '["aspirin", "colchicine"]'.
        index: Index to search instead of the agent's own.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'. An agent trained with tools needs them.
        where: Search only passages that fit these conditions, as --where 'year>=2020 type=guideline'; see search.
        temperature: Sampling temperature; 0 is greedy.
        evidence: The answers that are shown: those that a passage states, also partly stated ones, or all.
        entailment: A model that judges whether passages state an answer, as in evaluate. By default words decide.
        emergencies: File of patterns and lines for questions that may be emergencies, instead of the packaged one.
        json: Print turns and answer as JSON, as POST /v1/answers has them.
    """
    from json import dumps

    from rich.console import Console

    from medagent.agent_folder import open_agent
    from medagent.api import question_of
    from medagent.cli.ask import answer_as_json, print_answer
    from medagent.evidence.check import EvidenceCheck
    from medagent.retrieval.filters import Filter

    asked, wanted = question_of(question, options or ()), Filter.parse(where)
    ready = open_agent(agent, index=index, tools=tools or [])
    check = EvidenceCheck.over(ready.retriever, shown=evidence, entailment=entailment, emergencies=emergencies)
    if json:
        found = answer_as_json(ready, asked, temperature=temperature, check=check, where=wanted)
        print(dumps(asyncio.run(found), indent=2))
    else:
        asyncio.run(print_answer(ready, asked, temperature=temperature, console=Console(), check=check, where=wanted))


def chat(
    agent: str = "runs/demo/agent",
    index: str | None = None,
    tools: list[str] | None = None,
    where: str = "",
    temperature: float = 0.0,
    evidence: Shown = "partly",
    entailment: str | None = None,
    emergencies: str | None = None,
    rewriter: str = "rules",
    rewriter_model: str = "",
    json: bool = False,
) -> None:
    """Ask questions one after the other. Empty line or Ctrl-D ends.

    A question that leaves something unsaid ("And how is it treated?") takes it from those before it.

    Args:
        agent: Folder of an exported agent, "starter" (the untrained base policy), or a model, as in evaluate:
            "org/name" of the hub, or "hf:FOLDER".
        index: Index to search instead of the agent's own.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'. An agent trained with tools needs them.
        where: Search only passages that fit these conditions, as --where 'year>=2020 type=guideline'; see search.
        temperature: Sampling temperature; 0 is greedy.
        evidence: The answers that are shown: those that a passage states, also partly stated ones, or all.
        entailment: A model that judges whether passages state an answer, as in evaluate. By default words decide.
        emergencies: File of patterns and lines for questions that may be emergencies, instead of the packaged one.
        rewriter: Completes a question that leaves something unsaid: rules, agent (its own model) or the address of
            an endpoint, whose key is read from MEDAGENT_API_KEY. Questions that a model writes are checked.
        rewriter_model: Name of the model at that endpoint.
        json: Read one question per line without a prompt, and print one line of JSON for each.
    """
    from medagent.agent_folder import open_agent
    from medagent.cli.ask import chat_loop, rewriter_of
    from medagent.evidence.check import EvidenceCheck
    from medagent.retrieval.filters import Filter

    wanted = Filter.parse(where)
    ready = open_agent(agent, index=index, tools=tools or [])
    check = EvidenceCheck.over(ready.retriever, shown=evidence, entailment=entailment, emergencies=emergencies)
    rewrites = rewriter_of(rewriter, model=rewriter_model, policy=ready.policy)
    chat_loop(ready, temperature=temperature, as_json=json, check=check, where=wanted, rewriter=rewrites)


def serve(
    agent: str = "runs/demo/agent",
    index: str | None = None,
    model: str = "",
    tools: list[str] | None = None,
    name: str = "medagent",
    host: str = "127.0.0.1",
    port: int = 8080,
    root_path: str = "",
    auth: AuthSettings = AuthSettings(),
    limits: AdmissionLimits = AdmissionLimits(),
    page: PageSettings = PageSettings(),
    engine: EngineName = "in_process",
    servers: list[str] | None = None,
    vllm: dict[str, Any] | None = None,
    poll_interval_s: float = 5.0,
    log_questions: bool = False,
    evidence: Shown = "partly",
    entailment: str | None = None,
    emergencies: str | None = None,
    emergency_number: str | None = None,
    rewriter: str = "rules",
    rewriter_model: str = "",
) -> None:
    """Serve an agent over HTTP, with a page for people and an API for programs.

    POST /v1/answers gives every step. /v1/chat/completions and /v1/models follow OpenAI's API.

    Args:
        agent: Folder of an exported agent, "starter" (the untrained base policy), or a model, as in evaluate:
            "org/name" of the hub, or "hf:FOLDER".
        index: Index to search instead of the agent's own.
        model: Name of the model at an endpoint, or at the servers.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'. An agent trained with tools needs them.
        name: The model's name in the API.
        host: Address to listen on. Any but this machine's own needs --auth.api_key_hashes.
        port: Port to listen on.
        root_path: Path below which a proxy shows the service, such as /medagent.
        auth: Who may ask.
        limits: How many questions are answered, wait, and for how long.
        page: Files of the page.
        engine: The engine that samples the turns. in_process loads the weights here, vllm starts a vLLM server,
            servers uses running ones.
        servers: Addresses of vLLM servers, as --servers '[http://gpu-1:8000/v1]'. --model names what they serve.
        vllm: How vLLM runs, e.g. --vllm '{"gpu_memory": 0.6, "tensor_parallel": 2}'.
        poll_interval_s: Seconds between checks of the agent's folder. A new export there is opened. 0 never checks.
        log_questions: Write questions into the log.
        evidence: The answers that are shown: those that a passage states, also partly stated ones, or all.
        entailment: A model that judges whether passages state an answer, as in evaluate. By default words decide.
        emergencies: File of patterns and lines for questions that may be emergencies, instead of the packaged one.
        emergency_number: The number that those lines tell people to call.
        rewriter: Completes a question that leaves something unsaid: rules, agent (its own model) or the address of
            an endpoint, whose key is read from MEDAGENT_API_KEY. Questions that a model writes are checked.
        rewriter_model: Name of the model at that endpoint.
    """
    from medagent.cli.serve import Settings, serve_agent
    from medagent.evidence.emergencies import NUMBER

    settings = Settings(
        name=name,
        host=host,
        port=port,
        root_path=root_path,
        auth=auth,
        limits=limits,
        page=page,
        poll_interval_s=poll_interval_s,
        log_questions=log_questions,
        shown=evidence,
        entailment=entailment,
        emergencies=emergencies,
        emergency_number=emergency_number or NUMBER,
        rewriter=rewriter,
        rewriter_model=rewriter_model,
    )
    serve_agent(
        agent,
        index=index,
        model=model,
        tools=tools or [],
        engine=engine,
        servers=servers or [],
        vllm=vllm or {},
        settings=settings,
    )


RENAMED = {
    ("evaluate", "--ask"): "--prompting",
    **{("serve", f"--{name}"): f"--limits.{name}" for name in ("max_running", "max_waiting", "timeout_s")},
    **{("serve", f"--{name}"): f"--page.{name}" for name in ("examples", "quiz", "feedback")},
    ("serve", "--max_per_token"): "--limits.max_per_key",
    ("serve", "--tokens"): "--auth.api_key_hashes",
    ("serve", "--allowed_hosts"): "--auth.allowed_hosts",
    ("serve", "--reload_s"): "--poll_interval_s",
}


def refuse_renamed(arguments: Sequence[str]) -> None:
    """Say the new name of an option that was renamed.

    Raises:
        InputError: one is given by its former name.
    """
    for argument in arguments[1:]:
        old = argument.partition("=")[0]
        if new := RENAMED.get((arguments[0], old)):
            raise InputError(f"{old}: was renamed. Give {new} instead.")


ASK_COMMANDS: dict[str, Any] = {"ask": ask, "chat": chat, "serve": serve}
