"""The work of `medagent ask` and `medagent chat`: one question at a time, in front of a person."""

import asyncio
import json
import os

from rich.console import Console

from medagent.agent import Agent
from medagent.agent_folder import open_agent
from medagent.api import job_of, question_of
from medagent.cli.commands.ask import AgentOptions, AskCommand, ChatCommand, QuestionOptions
from medagent.cli.console import TurnPrinter, show_answer, show_question
from medagent.engines.base import Engine
from medagent.errors import ConfigError
from medagent.evidence.answers import Steps, answer_job
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.emergencies import NUMBER
from medagent.models.chat_template import chat_frame
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policy import Policy
from medagent.protocol import NOT_ADVICE
from medagent.retrieval.filters import Filter
from medagent.retrieval.retriever import Retriever
from medagent.serving.rewriting import DATE, ModelRewriter, Rewriter, rewrite_by_rules
from medagent.types import Question, Turn


def rewriter_of(name: str, *, model: str, policy: Policy) -> Rewriter:
    """The rewriter of follow-up questions: "rules", "agent" or an endpoint's address.

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
        return rewrite_by_rules
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


def agent_of(options: AgentOptions, *, retriever: Retriever | None = None, engine: Engine | None = None) -> Agent:
    """The agent that the options name; see `open_agent`."""
    return open_agent(
        options.agent,
        index=options.index,
        model=options.model,
        tools=options.tools or [],
        retriever=retriever,
        engine=engine,
        lines=options.prompting == "lines",
    )


def check_of(options: AgentOptions, retriever: Retriever, *, number: str | None = None) -> EvidenceCheck:
    """The check of answers that the options name. `number` is the one for emergencies."""
    return EvidenceCheck.over(
        retriever,
        shown=options.evidence,
        support=options.support,
        emergencies=options.emergencies,
        synonyms=options.synonyms,
        number=number or NUMBER,
    )


def opened(options: AgentOptions) -> tuple[Agent, EvidenceCheck]:
    """The agent, and the check of its answers."""
    agent = agent_of(options)
    return agent, check_of(options, agent.retriever)


class _Asking:
    """An agent with the options by which it is asked in a terminal."""

    def __init__(self, options: QuestionOptions) -> None:
        self._options, self._where = options, Filter.parse(options.where)
        self.agent, self._check = opened(options)

    def ask(self, question: Question, *, indent: int | None = None) -> None:
        """Print each turn as it ends and the checked answer, or with --json what POST /v1/answers gives."""
        agent, console, turns = self.agent, Console(highlight=False), list[Turn]()
        if not self._options.json:
            show_question(console, question)
        answering = answer_job(
            agent,
            job_of(question, self._options.temperature),
            check=self._check,
            search=agent.search_batcher().within(self._where),
            on_turn=turns.append if self._options.json else TurnPrinter(console, agent.protocol, agent.retriever),
        )
        answer = asyncio.run(answering)
        if not self._options.json:
            show_answer(console, answer)
            return
        tell = Steps(agent.protocol, agent.retriever)
        found = {"question": question.text, "turns": [tell(turn) for turn in turns], "answer": answer.to_json()}
        print(json.dumps(found, indent=indent), flush=True)


def ask(command: AskCommand) -> None:
    """Ask one question."""
    question = question_of(command.question, command.options or ())
    _Asking(command).ask(question, indent=2)


def chat(command: ChatCommand) -> None:
    """Ask until an empty line or the end of input, completing each question from the one before it."""
    asking = _Asking(command)
    policy = asking.agent.policy
    rewriter = rewriter_of(command.rewriter, model=command.rewriter_model, policy=policy)
    console = Console(highlight=False, quiet=command.json)
    console.print(f"Ask a medical question; an empty line ends. [dim]{NOT_ADVICE}[/dim]")
    before: list[str] = []
    while True:
        try:
            text = input() if command.json else console.input("\n[bold]> [/bold]")
        except EOFError:
            return
        if not text.strip():
            return
        question = question_of(asyncio.run(rewriter([*before, text.strip()], policy)))
        before = [question.text]
        asking.ask(question)
