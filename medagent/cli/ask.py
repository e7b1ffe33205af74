"""`medagent ask` and `medagent chat`: one question at a time, in front of a person."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from rich.console import Console

from medagent.agent import Agent
from medagent.api import job_of, question_of
from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.errors import ConfigError
from medagent.evidence.answers import Steps, answer_job
from medagent.evidence.check import EvidenceCheck
from medagent.models.chat_template import chat_frame
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policy import Policy
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.filters import NO_FILTER, Filter
from medagent.serving.rewriting import DATE, ModelRewriter, Rewriter, RuleRewriter
from medagent.types import Question, Turn


def rewriter_of(name: str, *, model: str, policy: Policy) -> Rewriter:
    """The rewriter of follow-up questions, by the settings of a command: "rules", "agent" or an endpoint's address.

    Raises:
        ConfigError: there is no such rewriter, or the agent's model cannot be one.
    """
    address = name.startswith(("http://", "https://"))
    if bool(model) != address:
        raise ConfigError(
            f"rewriter {name}: found {f'the model {model}' if model else 'no model'}. Give --rewriter "
            "http://HOST:8000/v1 and --rewriter_model NAME together, or neither."
        )
    if address:
        key = os.environ.get("MEDAGENT_API_KEY", "")
        return ModelRewriter(RemotePolicy(name, model, api_key=key, retries=1))
    if name == "rules":
        return RuleRewriter()
    if name != "agent":
        raise ConfigError(f"rewriter {name}: unknown. It is rules, agent or the address of an endpoint, http://...")
    if not isinstance(policy, RemotePolicy) and not policy.tokenizer.chat_template:
        raise ConfigError(
            "rewriter agent: the agent's model has no chat template, so it follows no instructions. Leave --rewriter "
            "out, or give the address of an endpoint."
        )
    if policy.tokenizer.chat_template:
        chat_frame(policy.tokenizer, DATE)  # says at once where the template takes no lone message
    return ModelRewriter()


async def print_answer(
    agent: Agent,
    question: Question,
    *,
    temperature: float,
    console: Console,
    check: EvidenceCheck,
    where: Filter = NO_FILTER,
) -> None:
    """Roll out one question, printing each turn as it ends, and the answer with the verdict of the evidence."""
    show_question(console, question)
    batcher = agent.search_batcher().within(where)
    printer = TurnPrinter(console, agent.protocol, agent.retriever)
    job = job_of(question, temperature)
    show_answer(console, await answer_job(agent, job, check=check, search=batcher, on_turn=printer))


async def answer_as_json(
    agent: Agent, question: Question, *, temperature: float, check: EvidenceCheck, where: Filter = NO_FILTER
) -> dict[str, Any]:
    """The JSON of POST /v1/answers: the turns' events and the checked answer."""
    batcher = agent.search_batcher().within(where)
    turns, job = list[Turn](), job_of(question, temperature)
    answer = await answer_job(agent, job, check=check, search=batcher, on_turn=turns.append)
    tell = Steps(agent.protocol, agent.retriever)
    return {"question": question.text, "turns": [tell(turn) for turn in turns], "answer": answer.to_json()}


def chat_loop(
    agent: Agent,
    *,
    temperature: float,
    as_json: bool,
    check: EvidenceCheck,
    where: Filter = NO_FILTER,
    rewriter: Rewriter = RuleRewriter(),
) -> None:
    """Ask until an empty line or the end of input. `as_json` prints one JSON line per question and no prompt.

    A question that leaves something unsaid takes it from those before it (`medagent.serving.rewriting`).
    """
    console = Console(highlight=False, quiet=as_json)
    console.print(f"Ask a medical question; an empty line ends. [dim]{NOT_ADVICE}[/dim]")
    before: list[str] = []
    while True:
        try:
            text = input() if as_json else console.input("\n[bold]> [/bold]")
        except EOFError:
            return
        if not text.strip():
            return
        question = question_of(asyncio.run(rewriter([*before, text.strip()], agent.policy)))
        before = [question.text]
        if as_json:
            found = answer_as_json(agent, question, temperature=temperature, check=check, where=where)
            print(json.dumps(asyncio.run(found)), flush=True)
        else:
            asyncio.run(
                print_answer(agent, question, temperature=temperature, console=console, check=check, where=where)
            )
