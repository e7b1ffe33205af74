"""Pairs of a right and a wrong rollout of one question: given ones, and those that the policy samples itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, Job, rollout_seed
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.modes import Mode
from medagent.evaluation.rollout_files import given_rollout, is_right, read_lines
from medagent.protocol import TurnProtocol
from medagent.training.agent_data import AgentSettings
from medagent.training.default_callbacks import tokens_to_sample
from medagent.training.rollouts.stale_rollouts import read_rollouts, write_rollouts
from medagent.training.sft.data import encoded
from medagent.training.sft.dialogues import sampling_bar
from medagent.types import Question, Rollout

SEARCHES = (Mode.SEARCH, Mode.FORCED_SEARCH)
QUESTIONS_AT_A_TIME = 64


@dataclass(frozen=True)
class PreferencePair:
    """Two rollouts of one question, in tokens: the `chosen` one answers right, the `rejected` one does not."""

    chosen: Rollout
    rejected: Rollout

    @property
    def question(self) -> Question:
        """The question that both answer."""
        return self.chosen.question

    @property
    def length(self) -> int:
        """Tokens of both."""
        return len(self.chosen.token_ids) + len(self.rejected.token_ids)


class Pairs(ABC):
    """A source of pairs: `data.pairs` names a subclass. After `read`, `left_out` counts in words what gave no pair."""

    left_out: Mapping[str, int] = MappingProxyType({})
    sampled_tokens: int = 0

    @abstractmethod
    def questions(self, protocol: TurnProtocol) -> list[Question]:
        """The questions of the pairs, known before anything is sampled."""

    def missing(self, folder: Path) -> int:
        """Parts of the rollouts that `folder` still lacks, over all ranks: the policy samples them before training."""
        return 0

    def sample(self, agent: Agent, folder: Path, *, temperature: float, rank: int, ranks: int) -> None:
        """Write this rank's share of the missing parts to `folder`."""
        raise NotImplementedError

    @abstractmethod
    def read(self, folder: Path, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> list[PreferencePair]:
        """The pairs; every process reads them, and all read the same."""


@dataclass(frozen=True)
class Pairing:
    """Which right and wrong rollouts make pairs: those that begin with the same prompt.

    At most `per_question` of a prompt, and no rollout is in two. Only right ones with `min_searches` count, as a lucky
    guess is no example. Which ones is drawn by `seed`.
    """

    per_question: int = 1
    min_searches: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what makes no pair."""
        if self.per_question < 1 or self.min_searches < 0:
            raise ConfigError(
                f"data.pairs: found per_question {self.per_question} and min_searches {self.min_searches}, wanted at "
                "least 1 and 0."
            )

    def pairs(self, rollouts: Iterable[Rollout]) -> tuple[list[PreferencePair], Counter[str]]:
        """The pairs, question by question, and how many questions gave none for each reason."""
        right: dict[tuple[int, ...], list[Rollout]] = {}
        wrong: dict[tuple[int, ...], list[Rollout]] = {}
        left_out: Counter[str] = Counter()
        for rollout in rollouts:
            key = rollout.prompt_ids
            if not rollout.num_action_tokens:
                left_out["rollouts without a sampled token"] += 1
            elif not rollout.success:
                wrong.setdefault(key, []).append(rollout)
            elif rollout.num_searches < self.min_searches:
                left_out["right answers that searched less than min_searches"] += 1
            else:
                right.setdefault(key, []).append(rollout)
        found: list[PreferencePair] = []
        for key in dict.fromkeys((*right, *wrong)):
            if key not in right or key not in wrong:
                left_out["questions without a right answer" if key in wrong else "questions without a wrong one"] += 1
                continue
            both = zip(*(sorted(each[key], key=self._place) for each in (right, wrong)), strict=False)
            found += [PreferencePair(*pair) for pair in both][: self.per_question]
        return found, left_out

    def _place(self, rollout: Rollout) -> bytes:
        said = "|".join(turn.text for turn in rollout.turns)
        return sha256(f"{self.seed}|{rollout.sample}|{said}".encode("utf-8", "replace")).digest()


class GivenPairs(Pairs):
    """Pairs of JSON lines.

    A line is one rollout, such as `medagent evaluate` writes into predictions.jsonl: right and wrong ones of a question
    are paired. Or it has "chosen" and "rejected", each such a rollout, and is a pair as it is. A rollout has at least
    "question" and "turns". Its "verdict", or else its "gold" answer, says whether it is right.

    Texts are encoded anew for the model that learns. Rollouts that exceed its limits are left out. So are predictions
    of modes in which the agent did not search as it does here.
    """

    def __init__(self, path: str, per_question: int = 1, min_searches: int = 0, seed: int = 0) -> None:
        self._path, self._pairing = Path(path), Pairing(per_question, min_searches, seed)
        if not self._path.exists():
            raise ConfigError(f"pairs {path}: there is no such file. Give JSON lines.")

    def questions(self, protocol: TurnProtocol) -> list[Question]:
        return [rollout.question for rollout, _, _ in self._rollouts(protocol)]

    def read(self, folder: Path, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> list[PreferencePair]:
        left_out: Counter[str] = Counter()
        alone: list[Rollout] = []
        tied: dict[int, list[Rollout]] = {}
        for rollout, mode, number in self._rollouts(settings.protocol):
            if mode not in SEARCHES:
                left_out["rollouts of other modes than search"] += 1
                continue
            made, why = encoded([rollout], settings, tokenizer, wrong=not rollout.success)
            left_out.update({f"rollouts that {reason}": count for reason, count in why.items()})
            (alone if number is None else tied.setdefault(number, [])).extend(made)
        pairs, unpaired = self._pairing.pairs(alone)
        left_out.update(unpaired)
        for two in tied.values():
            if len(two) == 2:  # else one was left out, and is counted
                chosen, rejected = sorted(two, key=lambda each: not each.success)
                pairs.append(PreferencePair(chosen, rejected))
        self.left_out = left_out
        return pairs

    def _rollouts(self, protocol: TurnProtocol) -> Iterator[tuple[Rollout, str, int | None]]:
        """Each rollout with its mode, and the number of its line where that is a pair."""

        def read(row: Any, number: int) -> list[tuple[Rollout, str, int | None]]:
            if not (isinstance(row, dict) and ("chosen" in row or "rejected" in row)):
                return [(graded_row(row, number, protocol), row.get("mode", Mode.SEARCH), None)]
            chosen = graded_row(row["chosen"], number, protocol, success=True)
            rejected = graded_row(row["rejected"], number, protocol, success=False)
            if rejected.question.text != chosen.question.text:
                raise ValueError("chosen and rejected answer different questions")
            rejected = replace(rejected, question=chosen.question)
            return [(chosen, Mode.SEARCH, number), (rejected, Mode.SEARCH, number)]

        wanted = "a rollout with question, turns and verdict (or gold), or an object with chosen and rejected"
        for rollouts in read_lines(self._path, read, wanted=wanted):
            yield from rollouts


def graded_row(row: Any, number: int, protocol: TurnProtocol, *, success: bool | None = None) -> Rollout:
    """The rollout of a row, right by `success`, or else by its verdict or gold; ValueError where nothing tells."""
    rollout = given_rollout(row, number, protocol)
    if success is None and "verdict" not in row and not rollout.question.answer:
        raise ValueError("neither verdict nor gold: nothing tells whether it is right")
    return rollout.graded(rollout.reward, success=is_right(row, rollout) if success is None else success)


class SampledPairs(Pairs):
    """Asks the policy every question `samples` times, and pairs right with wrong answers.

    Tokens stay as they were sampled, at `model.temperature`. `force_search`: the environment begins each rollout with a
    search's tag, which is then no action.

    Rollouts are written after every 64 questions. A run that was stopped goes on with the next ones.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        samples: int = 8,
        per_question: int = 1,
        min_searches: int = 0,
        force_search: bool = False,
        seed: int = 0,
    ) -> None:
        if samples < 2:
            raise ConfigError(f"SampledPairs.samples: found {samples}, wanted 2 or more: a pair takes two rollouts.")
        self._questions, self._samples, self._force_search = benchmark.questions(), samples, force_search
        self._pairing, self._seed = Pairing(per_question, min_searches, seed), seed

    def questions(self, protocol: TurnProtocol) -> list[Question]:
        return self._questions

    def sample(self, agent: Agent, folder: Path, *, temperature: float, rank: int, ranks: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        own = list(enumerate(self._parts))[rank::ranks]
        total = sum(len(part) for _, part in own) * self._samples
        with sampling_bar("sampling pairs", total, shown=rank == 0) as show:
            for number, part in own:
                path = self._path(folder, number)
                rollouts = read_rollouts(path) if path.exists() else self._rollouts(agent, part, temperature)
                if not path.exists():
                    write_rollouts(path, rollouts)
                show(rollouts)

    def missing(self, folder: Path) -> int:
        return sum(not self._path(folder, number).exists() for number in range(len(self._parts)))

    def read(self, folder: Path, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> list[PreferencePair]:
        parts = [read_rollouts(self._path(folder, number)) for number in range(len(self._parts))]
        self.sampled_tokens = sum(map(tokens_to_sample, parts))
        pairs, self.left_out = self._pairing.pairs(rollout for part in parts for rollout in part)
        return pairs

    @property
    def _parts(self) -> list[Sequence[Question]]:
        starts = range(0, len(self._questions), QUESTIONS_AT_A_TIME)
        return [self._questions[start : start + QUESTIONS_AT_A_TIME] for start in starts]

    def _rollouts(self, agent: Agent, questions: Sequence[Question], temperature: float) -> list[Rollout]:
        jobs = [
            Job(
                question,
                seed=rollout_seed(self._seed, iteration=0, question_id=question.id, sample=sample),
                temperature=temperature,
                force_search=self._force_search,
                sample=sample,
            )
            for question in questions
            for sample in range(self._samples)
        ]
        return [rollout.graded(0.0, success=grade(rollout).correct) for rollout in agent.run_all(jobs)]

    @staticmethod
    def _path(folder: Path, number: int) -> Path:
        return folder / f"{number:06d}.jsonl"
