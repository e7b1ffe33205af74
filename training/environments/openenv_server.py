"""An OpenEnv server over an index and a benchmark: a reset asks a question, a step searches or answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fastapi import FastAPI

from medagent.lazy import packaged
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError, needs_package
from medagent.retrieval.filters import Filter
from medagent.retrieval.retriever import FilteringRetriever, Retriever
from medagent.tool_protocol import NOT_FOUND, ToolProtocol
from medagent.training.rewards import Reward, graded
from medagent.types import Question, Rollout, StopReason, Turn

TOLD = """Answer the medical question. Call search for passages, as often as you need, and then answer once. In the \
answer {naming}."""
TOOLS = packaged("medagent.training.environments", "search_tools.yaml")
IDLE_S = 600.0  # after which a session that nobody uses is closed


@dataclass
class SearchEpisode:
    """A question, what was done for it, and whether it has ended: by its answer, or after `max_turns` calls."""

    question: Question
    retriever: Retriever
    reward: Reward
    max_turns: int
    top_k: int
    turns: list[Turn] = field(default_factory=list)
    calls: int = 0
    done: bool = False

    @property
    def prompt(self) -> str:
        """Instructions, question and options."""
        return "".join(piece.text for piece in ToolProtocol(TOLD).asked(self.question)).strip()

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, float]:
        """What a call shows and earns. One that does not fit says what was wanted, and counts.

        Raises:
            RetrieverUnavailableError: the index cannot be searched.
        """
        if self.done:
            return "error: the episode has ended, wanted a reset", 0.0
        self.calls += 1
        given = {key: str(value).strip() for key, value in arguments.items() if value is not None}
        answer = given.get("text", "") if name == "answer" else ""
        self.done = bool(answer) or self.calls >= self.max_turns
        if answer:
            self.turns.append(Turn((), (), answer, answer=answer))
            shown = "The episode has ended."
        elif name == "search" and given.get("query"):
            try:
                shown = self._search(given["query"], given.get("where", ""))
            except RetrieverUnavailableError:
                raise
            except RetrievalError as error:
                shown = f"error: {error}"
        else:
            shown = f"error: found {name}({dict(arguments)!r:.200}), wanted search(query) or answer(text)"
        stop = StopReason.ANSWERED if answer else StopReason.MAX_TURNS
        rollout = Rollout(self.question, (), tuple(self.turns), stop)
        return shown, graded(self.reward, rollout).total_reward if self.done else 0.0

    def _search(self, query: str, where: str) -> str:
        """The passages, numbered on from those before."""
        if where and not isinstance(self.retriever, FilteringRetriever):
            return "error: found where, and this index takes no filters. Leave it out"
        if where and isinstance(self.retriever, FilteringRetriever):
            (hits,) = self.retriever.search_where([query], top_k=self.top_k, where=Filter.parse(where))
        else:
            (hits,) = self.retriever.search([query], top_k=self.top_k)
        first = 1 + sum(len(turn.hits) for turn in self.turns)
        self.turns.append(Turn((), (), query, query, hits=tuple(hits)))
        return "\n".join(f"[{n}] {hit.passage.shown_text}" for n, hit in enumerate(hits, start=first)) or NOT_FOUND


def make_openenv_app(
    questions: Sequence[Question],
    retriever: Retriever,
    reward: Reward,
    *,
    max_sessions: int,
    max_turns: int,
    top_k: int,
) -> FastAPI:
    """OpenEnv's own service, a session per connection.

    A reset takes the `index` of a task, else that of its `seed`, else the next of all sessions.

    Raises:
        RetrievalError: the package openenv is missing.
    """
    with needs_package("environment serve", "openenv", "openenv"):
        from openenv.core.env_server import Environment, Observation, State, create_app
        from openenv.core.env_server.mcp_types import (
            CallToolAction,
            CallToolObservation,
            ListToolsAction,
            ListToolsObservation,
            Tool,
        )
        from openenv.core.env_server.types import ConcurrencyConfig
    following = count()

    class _Asked(Observation):  # type: ignore[misc]
        prompt: str

    def begun(index: int) -> SearchEpisode:
        return SearchEpisode(questions[index % len(questions)], retriever, reward, max_turns, top_k)

    class _Session(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True
        episode, state = None, State(dataset_size=len(questions))

        def reset(self, seed: int | None = None, episode_id: str | None = None, **task: Any) -> _Asked:
            named = (task.get("index"), task.get("row_index"), seed)  # AgileRL's name of an index is row_index
            index = next((each for each in named if each is not None), None)
            self.episode = begun(next(following) if index is None else index)
            self.state = State(episode_id=episode_id, dataset_size=len(questions))
            return _Asked(prompt=self.episode.prompt)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            if isinstance(action, ListToolsAction):
                return ListToolsObservation(tools=[Tool(**each) for each in TOOLS])
            if self.episode is None:
                raise ValueError("found a step before the first reset, wanted a reset")
            text, reward = self.episode.call(action.tool_name, action.arguments)
            self.state.step_count = self.episode.calls
            result = {"content": [{"type": "text", "text": text}], "data": text, "is_error": text.startswith("error: ")}
            done = self.episode.done
            return CallToolObservation(tool_name=action.tool_name, result=result, reward=reward, done=done)

        def list_splits(self) -> list[str]:
            return ["train"]

        def num_tasks(self, split: str) -> int:
            return len(questions)

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            return {"index": index, "id": questions[index].id, "prompt": begun(index).prompt}

        def list_tasks(self, split: str) -> list[dict[str, Any]]:
            return [self.get_task(split, index) for index in range(len(questions))]

    concurrency = ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=IDLE_S)
    types: Any = (CallToolAction, CallToolObservation)
    app: FastAPI = create_app(
        _Session, *types, "medagent", concurrency_config=concurrency, reset_observation_cls=_Asked
    )
    return app
