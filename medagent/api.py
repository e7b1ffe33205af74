"""The agent as a Python library: load one, ask it, read the checked answer (see `medagent`)."""

import asyncio
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medagent.agent import Agent, Job
from medagent.agent_folder import open_agent
from medagent.errors import InputError
from medagent.evidence import Shown
from medagent.evidence.answers import Answer, answer_job
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.judges import RULES
from medagent.retrieval.filters import Filter
from medagent.retrieval.retriever import Retriever
from medagent.tools.named import GivenTool
from medagent.types import LETTERS, Question
from medagent.untrusted_text import is_blank


def question_of(text: str, options: Sequence[str] | Mapping[str, str] | None = None) -> Question:
    """A question as a person types it, with the options in order or by their letters.

    Raises:
        InputError: the text is blank, or the options are too many or not texts.
    """
    if not isinstance(text, str) or is_blank(text):
        raise InputError(f"the question is empty or no text: found {text!r}. Give some text, in quotes.")
    if isinstance(options, Mapping):
        if list(options) != list(LETTERS[: len(options)]):
            raise InputError(f"options: found the letters {', '.join(map(str, options))}, wanted A, B, ... in order.")
        options = list(options.values())
    if isinstance(options, str) or not all(isinstance(option, str) for option in options or ()):
        raise InputError(f'options: found {options!r}, wanted a list of texts, such as ["colchicine", "aspirin"].')
    if options is not None and len(options) > len(LETTERS):
        raise InputError(f"found {len(options)} options, wanted at most {len(LETTERS)}.")
    return Question("asked", text.strip(), tuple(options or ()))


def job_of(question: Question, temperature: float) -> Job:
    """The job of a question. Above temperature 0 each call gives another sample."""
    return Job(question, temperature=temperature, seed=secrets.randbits(63) if temperature else 0)


class LoadedAgent:
    """An agent that answers questions, with the check of its answers. Close it, or use it in a `with` block.

    Answers are made on an event loop in a thread of its own, so several threads and notebooks may call it.
    """

    def __init__(self, agent: Agent, check: EvidenceCheck) -> None:
        """Start the thread of answers."""
        self.agent, self.check = agent, check
        self._search = agent.search_batcher()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="medagent-answers", daemon=True)
        self._thread.start()

    def answer(
        self,
        question: str | Question,
        *,
        options: Sequence[str] | Mapping[str, str] | None = None,
        temperature: float = 0.0,
        where: str = "",
    ) -> Answer:
        """The checked answer to a question, which is multiple choice with `options`.

        `where` says which passages may be found, such as "year>=2020 type=guideline". Greedy at temperature 0.

        Raises:
            InputError: the question is blank, has too many options, or the agent is closed.
            PolicyError: the model failed.
            RetrievalError: the corpus cannot be searched, or `where` cannot be read.
        """
        if self._loop.is_closed():
            raise InputError("this agent is closed. Load it again with medagent.load_agent.")
        asked = question if isinstance(question, Question) else question_of(question, options)
        search = self._search.within(Filter.parse(where))
        made = asyncio.run_coroutine_threadsafe(
            answer_job(self.agent, job_of(asked, temperature), check=self.check, search=search), self._loop
        )
        try:
            return made.result()
        finally:
            made.cancel()  # stops the rollout where the caller was interrupted

    def close(self) -> None:
        """Stop what runs and release the model. Safe to call twice."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.agent.policy.disconnect()
        await asyncio.get_running_loop().shutdown_default_executor()

    def __enter__(self) -> "LoadedAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_agent(
    name: str | Path,
    *,
    index: str | Path | None = None,
    model: str = "",
    parameters: Mapping[str, Any] = MappingProxyType({}),
    tools: Sequence[GivenTool] = (),
    retriever: Retriever | None = None,
    show: Shown = "partly",
    support: str = RULES,
) -> LoadedAgent:
    """An agent that is ready to answer. See `medagent.agent_folder.open_agent` for all but the last two settings.

    `show` says which answers are shown: those that a passage states, also partly stated ones, or all. `support`
    names what judges whether passages state an answer, see `medagent.evidence.judges.support_judge`.

    Raises:
        MedagentError: there is no such agent, or it lacks an index. The message names the remedy.
    """
    if index is not None and not isinstance(index, str | Path):
        raise InputError(f"index: found a {type(index).__name__}, wanted a folder. Give an open one as retriever=.")
    agent = open_agent(
        str(name),
        index=None if index is None else str(index),
        model=model,
        parameters=parameters,
        tools=tools,
        retriever=retriever,
    )
    return LoadedAgent(agent, EvidenceCheck.over(agent.retriever, shown=show, support=support))
