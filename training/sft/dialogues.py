"""Sources of dialogues to imitate: successful ones that an agent sampled, JSON lines, and mixes of several sources.

Another is `medagent.training.sft.scripted`. Source of rejection sampling: RFT, arXiv 2308.01825.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent
from medagent.agent_folder import open_agent
from medagent.environment import AgentSettings
from medagent.errors import ConfigError, require
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.grading.citations import states_gold
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.evaluation.rollout_files import given_rollout, is_right, read_lines
from medagent.evaluation.run import Plan, run_plan
from medagent.protocol import TurnProtocol
from medagent.retrieval.remote import URL
from medagent.retrieval.retriever import Retriever
from medagent.training.default_callbacks import tokens_to_sample
from medagent.training.sft.data import LeftOutReason, question_key
from medagent.types import Rollout, StopReason, Turn

ABSTENTION = "not found"
READ_TOKENS = "read_tokens.txt"  # of each dialogue that a local model sampled


@contextmanager
def sampling_bar(name: str, total: int) -> Iterator[Callable[[Sequence[Rollout]], None]]:
    """A progress bar over `total` rollouts; the function counts further ones, and how many answer right."""
    right = TextColumn("{task.fields[right]} right")
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), right, TimeRemainingColumn())
    with Progress(*columns) as bars:
        task = bars.add_task("", total=total, right=0)

        def show(rollouts: Sequence[Rollout]) -> None:
            right = bars.tasks[0].fields["right"] + sum(grade(rollout).correct for rollout in rollouts)
            bars.update(task, advance=len(rollouts), right=right)

        yield show


class Demonstrations(ABC):
    """A source of dialogues.

    After `read`, `left_out` counts by reason what it did not take, and `parts` what it took of each of its parts.
    `sampled_tokens` are those that a local model then has read to write the dialogues, wrong ones too.
    """

    left_out: Mapping[LeftOutReason, int] = MappingProxyType({})
    parts: Mapping[str, int] = MappingProxyType({})
    sampled_tokens: int = 0

    def make(  # noqa: B027
        self, settings: AgentSettings, retriever: Retriever, folder: Path, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """Write to `folder` what is not there yet, in one process. `settings.limits` count tokens of `tokenizer`."""

    @abstractmethod
    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """The dialogues as texts, without tokens; every process reads the same."""


class RejectionSampled(Demonstrations):
    """Asks an agent every question `samples` times and keeps what was answered right.

    `agent` is named as for `medagent evaluate`: an exported folder, "starter", "hf:MODEL" or the address of a chat
    endpoint. An endpoint needs `model`, and its key is read from MEDAGENT_API_KEY. The agent follows this run's
    protocol and searches this run's index.

    For each question the `keep` right answers with the fewest turns are kept. An answer with fewer than `min_searches`
    searches is dropped, since a lucky guess is no demonstration. A run that was stopped goes on with what it has.

    The share `abstentions` of all dialogues ends in "not found": the agent is asked again while no search shows the
    evidence, and its answer is replaced, as in R-Tuning (arXiv 2311.09677). Its searches stay its own.
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
        abstentions: float = 0.0,
        concurrency: int = 64,
        seed: int = 0,
    ) -> None:
        require(0 <= abstentions < 1, "RejectionSampled.abstentions", abstentions, "a share below 1")
        self._questions = benchmark.questions()
        if abstentions and not all(question.gold_passage_ids for question in self._questions):
            raise ConfigError(
                f"RejectionSampled.abstentions: found {abstentions} with questions that name no gold passage, wanted "
                "gold_passage_ids for all. Leave such questions out, or set abstentions to 0."
            )
        self._name, self._model, self._keep, self._min_searches = agent, model, keep, min_searches
        self._abstentions, self._seed = abstentions, seed
        modes = (Mode.SEARCH, Mode.WITHOUT_EVIDENCE) if abstentions else (Mode.SEARCH,)
        self._plan = Plan(modes=modes, samples=samples, temperature=temperature, seed=seed)
        self._concurrency = concurrency

    def make(
        self, settings: AgentSettings, retriever: Retriever, folder: Path, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        asked = open_agent(self._name, index=None, lockstep=True, model=self._model, tools=None, retriever=retriever)
        limits, remote = settings.limits, self._name.startswith(URL)
        if remote:  # its limits count bytes, so its own stay; only the number of turns is this run's
            limits = replace(asked.limits, max_turns=settings.limits.max_turns)
        tools = settings.made_tools
        agent = Agent(asked.policy, retriever, settings.protocol, limits, settings.top_k, tools=tools)
        total = len(self._questions) * self._plan.samples * len(self._plan.modes)
        with sampling_bar("sampling demonstrations", total) as show:

            def done(made: Prediction) -> None:
                show([made.rollout])
                if made.rollout.prompt_ids and not remote:
                    with (folder / READ_TOKENS).open("a", encoding="utf-8") as file:
                        file.write(f"{tokens_to_sample([made.rollout])}\n")

            run_plan(
                agent,
                self._questions,
                self._plan,
                folder,
                identity={
                    "agent": self._name,
                    "model": self._model,
                    "rules": asdict(settings),
                    **{name: getattr(self._plan, name) for name in ("samples", "temperature", "seed")},
                },
                concurrency=self._concurrency,
                on_found=lambda found: show([each.rollout for each in found]),
                on_done=done,
            )

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        predictions = PredictionLog(folder / "predictions.jsonl").read()
        if (folder / READ_TOKENS).exists():
            self.sampled_tokens = sum(map(int, (folder / READ_TOKENS).read_text(encoding="utf-8").split()))
        rollouts = [each.rollout for each in predictions if each.mode == Mode.SEARCH.value]
        taken: Counter[str] = Counter()
        left_out: Counter[LeftOutReason] = Counter()
        kept = []
        for rollout in sorted(rollouts, key=lambda rollout: (len(rollout.turns), rollout.sample, rollout.question.id)):
            if not rollout.success:
                left_out[LeftOutReason.WRONG] += 1
            elif rollout.num_searches < self._min_searches:
                left_out[LeftOutReason.FEW_SEARCHES] += 1
            elif taken[rollout.question.id] >= self._keep:
                left_out[LeftOutReason.SURPLUS] += 1
            else:
                taken[rollout.question.id] += 1
                kept.append(rollout)
        self.left_out = left_out
        if self._abstentions:
            asked = [each.rollout for each in predictions if each.mode == Mode.WITHOUT_EVIDENCE.value]
            kept += self._abstaining(asked, protocol, round(len(kept) * self._abstentions / (1 - self._abstentions)))
        return sorted(kept, key=lambda rollout: (rollout.question.id, rollout.sample))

    def _abstaining(self, rollouts: Sequence[Rollout], protocol: TurnProtocol, wanted: int) -> list[Rollout]:
        """So many of these dialogues, one per question, with an abstention for an answer that no passage tells."""
        drawn = sorted(rollouts, key=lambda r: sha256(f"{self._seed}|{r.question.id}|{r.sample}".encode()).digest())
        made: dict[str, Rollout] = {}
        for rollout in drawn:
            searches = tuple(turn for turn in rollout.turns if turn.query is not None)
            told = states_gold(rollout.hits, rollout.question)
            if told or len(searches) < max(1, self._min_searches) or rollout.question.id in made or len(made) == wanted:
                continue
            text = protocol.answer.around(ABSTENTION)
            last = Turn((), (), text, answer=protocol.parse(text).answer)
            made[rollout.question.id] = replace(
                rollout, turns=(*searches, last), stop_reason=StopReason.ANSWERED, success=False
            )
        return list(made.values())


@dataclass(frozen=True)
class Part:
    """A source, and how many of its dialogues count at most; all without a number."""

    demonstrations: Demonstrations
    number: int | None = None

    def __post_init__(self) -> None:
        found = self.number
        require(found is None or found >= 0, "MixedDemonstrations.parts", f"number {found}", "0 or more, or null")


class MixedDemonstrations(Demonstrations):
    """Draws from several sources.

    A question counts in the first part that draws it. Questions are told apart by their texts and options, not by
    their ids. Repetitions within a part, such as several samples, stay.
    """

    def __init__(self, parts: list[Part], seed: int = 0) -> None:
        """`seed` draws the dialogues."""
        self._parts, self._seed = parts, seed

    def make(
        self, settings: AgentSettings, retriever: Retriever, folder: Path, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """See `Demonstrations.make`; each part has a folder of its own."""
        for number, part in enumerate(self._parts, start=1):
            part.demonstrations.make(settings, retriever, folder / f"part-{number}", tokenizer)

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        left_out: Counter[LeftOutReason] = Counter()
        taken: set[tuple[str, ...]] = set()
        mix: list[Rollout] = []
        self.parts, self.sampled_tokens = {}, 0
        for number, part in enumerate(self._parts, start=1):
            rollouts = part.demonstrations.read(folder / f"part-{number}", protocol)
            keys = [question_key(rollout.question) for rollout in rollouts]
            free = [at for at, key in enumerate(keys) if key not in taken]
            size = len(rollouts) if part.number is None else part.number
            drawn = sorted(random.Random(f"{self._seed}|{number}").sample(free, min(size, len(free))))
            left_out.update(part.demonstrations.left_out)
            left_out[LeftOutReason.REPEATED] += len(rollouts) - len(free)
            left_out[LeftOutReason.SURPLUS] += len(free) - len(drawn)
            taken |= {keys[at] for at in drawn}
            mix += [rollouts[at] for at in drawn]
            self.parts[str(number)] = len(drawn)
            self.sampled_tokens += part.demonstrations.sampled_tokens
        self.left_out = left_out
        return mix


class GivenDialogues(Demonstrations):
    """Dialogues of JSON lines, such as those that `medagent evaluate` and rollout records write.

    A line has at least "question" and "turns". A turn has "text" and, after a search, "passages". A passage has "text"
    and optionally "id", "title" and "source". Only right answers count, as a line's "verdict" says. A line without a
    verdict is graded by its "gold" answer, and counts where it has none.
    """

    def __init__(self, path: str, min_searches: int = 0) -> None:
        self._path, self._min_searches = Path(path), min_searches
        if not self._path.exists():
            raise ConfigError(f"demonstrations {path}: there is no such file. Give JSON lines.")

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:

        def judged(row: Any, number: int) -> tuple[Rollout, bool]:
            rollout = given_rollout(row, number, protocol)
            return rollout, is_right(row, rollout)

        found: list[Rollout] = []
        left_out: Counter[LeftOutReason] = Counter()
        for rollout, kept in read_lines(self._path, judged, wanted="a JSON object with question and turns"):
            if not kept:
                left_out[LeftOutReason.WRONG] += 1
            elif rollout.num_searches < self._min_searches:
                left_out[LeftOutReason.FEW_SEARCHES] += 1
            else:
                found.append(rollout)
        self.left_out = left_out
        return found
