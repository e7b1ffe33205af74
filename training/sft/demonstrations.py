"""Dialogues to imitate: successful ones that an agent sampled (rejection sampling), or given ones.

Source: RFT, arXiv 2308.01825.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerBase

from evaluation.benchmarks import Benchmark
from evaluation.grading.grade import Verdict, grade
from evaluation.modes import Mode
from evaluation.predictions import PredictionLog
from evaluation.rollout_files import rollout_from
from evaluation.run import Plan, run_plan
from medagent.agent import Agent
from medagent.agent_folder import URL
from medagent.errors import ConfigError
from medagent.loading import open_agent
from medagent.protocol import Piece, TurnProtocol, encode
from medagent.types import Rollout, StopReason, Turn
from retrieval.retriever import Retriever
from training.agent_data import AgentSettings


class Demonstrations(ABC):
    """A source of dialogues."""

    def make(self, settings: AgentSettings, retriever: Retriever, folder: Path) -> None:  # noqa: B027
        """Write to `folder` what is not there yet; one process does so. Given dialogues need nothing."""

    @abstractmethod
    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """The dialogues as texts; every process reads them.

        Their tokens are made later, with the tokenizer of the model that imitates.
        """


class GivenDialogues(Demonstrations):
    """Dialogues of JSON lines, such as those that `medagent evaluate` and rollout records write.

    A line has at least "question" and "turns". A turn has "text" and, after a search, "passages". A passage has "text"
    and optionally "id", "title" and "source". Where lines have a "verdict", only the correct ones count, unless
    `all_verdicts`.
    """

    def __init__(self, path: str, min_searches: int = 0, all_verdicts: bool = False) -> None:
        self._path, self._min_searches, self._all = Path(path), min_searches, all_verdicts
        if not self._path.exists():
            raise ConfigError(f"demonstrations {path}: there is no such file. Give JSON lines.")

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """See `Demonstrations.read`."""
        found = []
        with self._path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    row = json.loads(line)
                    rollout = rollout_from(_completed(row, number, protocol))
                except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
                    raise ConfigError(
                        f"{self._path}, line {number}: found {line[:80]!r} ({error!r}), wanted a JSON object with "
                        "question and turns."
                    ) from error
                if self._all or row.get("verdict", "correct") == "correct":
                    found.append(rollout)
        return [rollout for rollout in found if rollout.num_searches >= self._min_searches]


def _completed(row: dict[str, Any], number: int, protocol: TurnProtocol) -> dict[str, Any]:
    """A row with everything that a hand-written one may leave out."""
    turns = [
        {
            "query": protocol.parse(str(turn["text"])).query,
            **turn,
            "passages": [
                {"id": f"{number}.{at}", "title": "", "source": "", "score": 0.0, **passage}
                for at, passage in enumerate(turn.get("passages", []))
            ],
        }
        for turn in row["turns"]
    ]
    plain = {"options": {}, "gold": "", "kind": "all", "gold_passage_ids": [], "meta": {}, "aliases": []}
    outcome = {
        "answer": None,
        "policy_version": 0,
        "sample": 0,
        "reward": 0.0,
        "verdict": "correct",
        "stop_reason": "answered",
    }
    return {"question_id": f"line {number}", **plain, **outcome, **row, "turns": turns}


class RejectionSampled(Demonstrations):
    """Asks an agent every question `samples` times and keeps what was answered right.

    `agent` is named as for `medagent evaluate`: an exported folder, "starter", "hf:MODEL" or the address of a chat
    endpoint. An endpoint needs `model`, and its key is read from MEDAGENT_API_KEY. The agent follows this run's
    protocol and searches this run's index.

    Of a question's right answers the `keep` with fewest turns count. Only those with `min_searches` count at all, as a
    lucky guess is no demonstration. A run that was stopped goes on with what it has.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        agent: str,
        model: str = "",
        samples: int = 4,
        temperature: float = 1.0,
        keep: int = 1,
        min_searches: int = 1,
        force_search: bool = False,
        concurrency: int = 64,
        seed: int = 0,
    ) -> None:
        self._questions = benchmark.questions()
        self._name, self._model, self._keep, self._min_searches = agent, model, keep, min_searches
        mode = Mode.FORCED_SEARCH if force_search else Mode.SEARCH
        self._plan = Plan(modes=(mode,), samples=samples, temperature=temperature, seed=seed)
        self._concurrency = concurrency

    def make(self, settings: AgentSettings, retriever: Retriever, folder: Path) -> None:
        """See `Demonstrations.make`."""
        asked = open_agent(self._name, index=None, lockstep=True, model=self._model, retriever=retriever)
        # A chat endpoint's limits count bytes, so its own stay; only the number of turns is this run's.
        limits = replace(asked.limits, max_turns=settings.limits.max_turns)
        agent = Agent(
            asked.policy,
            retriever,
            settings.protocol,
            limits if self._name.startswith(URL) else settings.limits,
            settings.top_k,
        )
        total = len(self._questions) * self._plan.samples
        columns = (
            TextColumn("sampling demonstrations"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[right]} right"),
            TimeRemainingColumn(),
        )
        with Progress(*columns) as bars:
            task = bars.add_task("", total=total, right=0)
            right = 0

            def show(rollouts: Iterable[Rollout]) -> None:
                nonlocal right
                for rollout in rollouts:
                    right += grade(rollout).verdict is Verdict.CORRECT
                    bars.update(task, advance=1, right=right)

            run_plan(
                agent,
                self._questions,
                self._plan,
                folder,
                identity={
                    "agent": self._name,
                    "model": self._model,
                    "samples": self._plan.samples,
                    "temperature": self._plan.temperature,
                    "seed": self._plan.seed,
                    "rules": asdict(settings),
                },
                concurrency=self._concurrency,
                on_found=lambda found: show(p.rollout for p in found),
                on_done=lambda made: show([made.rollout]),
            )

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """See `Demonstrations.read`."""
        rollouts = [each.rollout for each in PredictionLog(folder / "predictions.jsonl").read()]
        taken: Counter[str] = Counter()
        kept = []
        for rollout in sorted(rollouts, key=lambda rollout: (len(rollout.turns), rollout.sample, rollout.question.id)):
            good = rollout.success and rollout.num_searches >= self._min_searches
            if good and taken[rollout.question.id] < self._keep:
                taken[rollout.question.id] += 1
                kept.append(rollout)
        return sorted(kept, key=lambda rollout: (rollout.question.id, rollout.sample))


def encoded(
    rollouts: Sequence[Rollout], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Rollout], int]:
    """The dialogues in a tokenizer's tokens, all turns as actions, and how many were left out.

    Left out are those that do not fit the limits. The tokens are those that the rollout loop would have shown: prompt
    and passages pass through the same protocol.
    """
    found, left_out = [], 0
    limits, search = settings.limits, settings.protocol.search
    for rollout in rollouts:
        turns, shown = [], 0
        for turn in rollout.turns:
            ids = tuple(encode(tokenizer, [Piece(turn.text)]))
            observation: tuple[int, ...] = ()
            if turn.query is None and turn.hits:
                raise ConfigError(
                    f"demonstration {rollout.question.id}: found passages after a turn that does not search "
                    f"({turn.text[:60]!r}), wanted {search.start}...{search.end}."
                )
            if turn.query is not None:
                passages = [hit.passage for hit in turn.hits]
                inserted, count = settings.protocol.encode_observation(
                    tokenizer, passages, first_number=shown + 1, max_tokens=limits.max_observation_tokens
                )
                observation, shown = tuple(inserted), shown + count
            turns.append(Turn(ids, (0.0,) * len(ids), turn.text, turn.query, turn.answer, turn.hits, observation))
        prompt = tuple(settings.protocol.encode_prompt(tokenizer, rollout.question))
        whole = replace(rollout, prompt_ids=prompt, turns=tuple(turns))
        fits = len(whole.token_ids) <= limits.max_total_tokens and len(turns) <= limits.max_turns
        if fits and turns and rollout.stop_reason is StopReason.ANSWERED:
            found.append(whole)
        else:
            left_out += 1
    return found, left_out
