"""The commands by which people ask an agent: `ask`, `chat` and `serve`."""

from __future__ import annotations

import asyncio
from typing import Any

from medagent.serving.names import EngineName


def ask(
    question: str,
    agent: str = "runs/demo/agent",
    options: list[str] | None = None,
    index: str | None = None,
    tools: list[str] | None = None,
    temperature: float = 0.0,
    json: bool = False,
) -> None:
    """Ask one question and watch the agent think, search and answer with its sources.

    Args:
        question: The question.
        agent: Folder of an exported agent, "starter" (the untrained base policy) or "hf:MODEL"; see evaluate.
        options: Answer options for multiple choice, e.g. --options '["aspirin", "colchicine"]'.
        index: Index to search instead of the agent's own.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'. An agent trained with tools needs them.
        temperature: Sampling temperature; 0 is greedy.
        json: Print turns and answer as JSON, as POST /v1/answers has them.
    """
    from json import dumps

    from rich.console import Console

    from medagent.cli.ask import answer_as_json, print_answer, question_of
    from medagent.loading import open_agent

    asked = question_of(question, options or ())
    ready = open_agent(agent, index=index, tools=tools or [])
    if json:
        print(dumps(asyncio.run(answer_as_json(ready, asked, temperature=temperature)), indent=2))
    else:
        asyncio.run(print_answer(ready, asked, temperature=temperature, console=Console()))


def chat(
    agent: str = "runs/demo/agent",
    index: str | None = None,
    tools: list[str] | None = None,
    temperature: float = 0.0,
    json: bool = False,
) -> None:
    """Ask questions one after the other. Each is answered on its own. Empty line or Ctrl-D ends.

    Args:
        agent: Folder of an exported agent, "starter" (the untrained base policy) or "hf:MODEL"; see evaluate.
        index: Index to search instead of the agent's own.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'. An agent trained with tools needs them.
        temperature: Sampling temperature; 0 is greedy.
        json: Read one question per line without a prompt, and print one line of JSON for each.
    """
    from medagent.cli.ask import chat_loop
    from medagent.loading import open_agent

    chat_loop(open_agent(agent, index=index, tools=tools or []), temperature=temperature, as_json=json)


def serve(
    agent: str = "runs/demo/agent",
    index: str | None = None,
    model: str = "",
    tools: list[str] | None = None,
    name: str = "medagent",
    host: str = "127.0.0.1",
    port: int = 8080,
    tokens: str | None = None,
    max_running: int = 64,
    max_waiting: int = 256,
    timeout_s: float = 120.0,
    engine: EngineName = "in_process",
    servers: list[str] | None = None,
    vllm: dict[str, Any] | None = None,
    examples: str | None = None,
    reload_s: float = 5.0,
    log_questions: bool = False,
) -> None:
    """Serve an agent over HTTP, with a page for people and an API for programs.

    POST /v1/answers gives every step. /v1/chat/completions and /v1/models follow OpenAI's API.

    Args:
        agent: Folder of an exported agent, "starter" (the untrained base policy) or "hf:MODEL"; see evaluate.
        index: Index to search instead of the agent's own.
        model: Name of the model at an endpoint, or at the servers.
        tools: Classes of the agent's tools, as --tools '[my_task.Doses]'. An agent trained with tools needs them.
        name: The model's name in the API.
        host: Address to listen on. Any but this machine's own needs tokens.
        port: Port to listen on.
        tokens: File with the SHA-256 digest of one bearer token per line. Requests then need one of them.
        max_running: Questions answered at once.
        max_waiting: Questions that may wait; more are refused with status 429.
        timeout_s: Seconds that an answer may take, waiting included.
        engine: What samples the turns. in_process loads the weights here, vllm starts a vLLM server, servers uses
            running ones.
        servers: Addresses of vLLM servers, as --servers '[http://gpu-1:8000/v1]'. --model names what they serve.
        vllm: How vLLM runs, e.g. --vllm '{"gpu_memory": 0.6, "tensor_parallel": 2}'.
        examples: JSON lines of questions that the page offers. By default it is examples.jsonl in the agent's folder.
        reload_s: Seconds between checks of the agent's folder. A new export there is opened. 0 never checks.
        log_questions: Write questions into the log.
    """
    from medagent.cli.serve import Settings, serve_agent
    from medagent.serving.admission import AdmissionLimits

    settings = Settings(
        name,
        host,
        port,
        tokens,
        AdmissionLimits(max_running, max_waiting, timeout_s),
        examples,
        reload_s,
        log_questions,
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


ASK_COMMANDS: dict[str, Any] = {"ask": ask, "chat": chat, "serve": serve}
