"""`medagent ask` and `medagent chat`: one question at a time, in front of a person."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from medagent.agent import Agent, Job
from medagent.answers import Steps, checked
from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.errors import InputError
from medagent.protocol import NOT_ADVICE
from medagent.types import LETTERS, Question, Rollout


def question_of(text: str, options: Sequence[str] = ()) -> Question:
    """A question as a person types it, checked."""
    if not text.strip():
        raise InputError("the question is empty. Give some text, in quotes.")
    if len(options) > len(LETTERS):
        raise InputError(f"found {len(options)} options, wanted at most {len(LETTERS)}.")
    return Question("asked", text.strip(), tuple(options))


async def print_answer(agent: Agent, question: Question, *, temperature: float, console: Console) -> Rollout:
    """Roll out one question, printing each turn as it ends."""
    show_question(console, question)
    rollout = await agent.run(Job(question, temperature=temperature), on_turn=TurnPrinter(console, agent.protocol))
    show_answer(console, rollout)
    return rollout


async def answer_as_json(agent: Agent, question: Question, *, temperature: float) -> dict[str, Any]:
    """The JSON of POST /v1/answers: the turns' events and the checked answer."""
    rollout = await agent.run(Job(question, temperature=temperature))
    tell = Steps(agent.protocol)
    return {
        "question": question.text,
        "turns": [tell(turn) for turn in rollout.turns],
        "answer": checked(rollout).to_json(),
    }


def chat_loop(agent: Agent, *, temperature: float, as_json: bool) -> None:
    """Ask until an empty line or the end of input. `as_json` prints one JSON line per question and no prompt."""
    console = Console(highlight=False, quiet=as_json)
    console.print(f"Ask a medical question; an empty line ends. [dim]{NOT_ADVICE}[/dim]")
    while True:
        try:
            text = input() if as_json else console.input("\n[bold]> [/bold]")
        except EOFError:
            return
        if not text.strip():
            return
        question = question_of(text)
        if as_json:
            print(json.dumps(asyncio.run(answer_as_json(agent, question, temperature=temperature))), flush=True)
        else:
            asyncio.run(print_answer(agent, question, temperature=temperature, console=console))
