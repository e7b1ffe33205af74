"""Pairs that the policy samples itself, before it is trained, with the run's engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, Job, rollout_seed
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.grading.grade import grade
from medagent.protocol import TurnProtocol
from medagent.training.agent_data import AgentSettings
from medagent.training.preference.pairs import Pairing, Pairs, PreferencePair
from medagent.training.stale_rollouts import read_rollouts, write_rollouts
from medagent.training.token_counts import tokens_to_sample
from medagent.types import Question, Rollout

QUESTIONS_AT_A_TIME = 64


class SampledPairs(Pairs):
    """Asks the policy every question `samples` times, and pairs right with wrong answers.

    Tokens stay as they were sampled, at `model.temperature`. `force_search`: the environment begins each rollout with a
    search's tag, which is then no action.

    Rollouts are written after every 64 questions. A run that was stopped goes on with the next ones.
    """

    sampled = True

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
        """See `Pairs.questions`."""
        return self._questions

    def sample(self, agent: Agent, folder: Path, *, temperature: float, rank: int, ranks: int) -> None:
        """See `Pairs.sample`."""
        folder.mkdir(parents=True, exist_ok=True)
        own = list(enumerate(self._parts))[rank::ranks]
        columns = (
            TextColumn("sampling pairs"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[right]} right"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, disable=rank > 0) as bars:
            task = bars.add_task("", total=sum(len(part) for _, part in own) * self._samples, right=0)
            right = 0
            for number, part in own:
                path = self._path(folder, number)
                rollouts = read_rollouts(path) if path.exists() else self._rollouts(agent, part, temperature)
                if not path.exists():
                    write_rollouts(path, rollouts)
                right += sum(rollout.success for rollout in rollouts)
                bars.update(task, advance=len(rollouts), right=right)

    def missing(self, folder: Path) -> int:
        """See `Pairs.missing`."""
        return sum(not self._path(folder, number).exists() for number in range(len(self._parts)))

    def read(self, folder: Path, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> list[PreferencePair]:
        """See `Pairs.read`."""
        pairs, self.left_out = self._pairing.pairs(self._read(folder))
        return pairs

    def _read(self, folder: Path) -> Iterator[Rollout]:
        """The rollouts, part by part, while the tokens that sampling them took are added up."""
        self.sampled_tokens = 0
        for number in range(len(self._parts)):
            part = read_rollouts(self._path(folder, number))
            self.sampled_tokens += tokens_to_sample(part)
            yield from part

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
