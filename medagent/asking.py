"""One question at a time, in front of a person: the command line's `ask` and `chat`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console

from medagent.agent import Agent, Job
from medagent.causal_lm import STARTER, model_path
from medagent.console import TurnPrinter, show_answer, show_question
from medagent.errors import InputError
from medagent.protocol import NOT_ADVICE
from medagent.records import LETTERS, Question, Rollout
from medagent.saved import load_agent


def open_agent(name: str, *, index: str | None, lockstep: bool = False) -> Agent:
    """An exported agent's folder, or "starter" for the untrained base policy (which then needs an index)."""
    folder = Path(model_path(STARTER)) if name == STARTER else Path(name)
    return load_agent(folder, index=index, lockstep=lockstep)


async def answer_aloud(
    agent: Agent, text: str, options: tuple[str, ...], *, temperature: float, console: Console
) -> Rollout:
    """Roll out one question, printing each turn as it ends."""
    if not text.strip():
        raise InputError("the question is empty. Give some text, in quotes.")
    if len(options) > len(LETTERS):
        raise InputError(f"found {len(options)} options, wanted at most {len(LETTERS)}.")
    question = Question("asked", text.strip(), options)
    show_question(console, question)
    rollout = await agent.run(Job(question, temperature=temperature), on_turn=TurnPrinter(console))
    show_answer(console, rollout)
    return rollout


def chat_loop(agent: Agent, *, temperature: float) -> None:
    """Ask until an empty line or the end of input."""
    console = Console(highlight=False)
    console.print(f"Ask a medical question; an empty line ends. [dim]{NOT_ADVICE}[/dim]")
    while True:
        try:
            text = console.input("\n[bold]> [/bold]")
        except EOFError:
            return
        if not text.strip():
            return
        asyncio.run(answer_aloud(agent, text, (), temperature=temperature, console=console))
