"""Dialogues to imitate: successful ones that an agent sampled (rejection sampling), or given ones.

Source: RFT, arXiv 2308.01825.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path

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
from medagent.policies.turn_ends import first_end
from medagent.protocol import Piece, TurnProtocol, encode
from medagent.types import Rollout, StopReason, Turn
from medagent.untrusted_text import harmless_passages, harmless_question
from retrieval.passages import Hit
from retrieval.retriever import Retriever
from training.agent_data import AgentSettings
from training.sft.given_rows import completed, is_right

# Names of added tokens by which a model tells who speaks, special or not. A tool call is the agent's own.
_TELLS_WHO_SPEAKS = re.compile(
    r"[<\[{|].*(?:im_|turn|header|eot|eom|end|user|assistant|system|human|inst).*[>\]}|]", re.IGNORECASE | re.DOTALL
)
MOST_IN_RANGE = 100  # numbers in a range that are looked at one by one
_RANGE = r"\s*\^?\d{1,3}\s*(?:[-\u2013]\s*\d{1,3}\s*)?"
# The square brackets of any script, and words that are written with a number.
_WORDS = r"(?:\s*(?:passages?|sources?|documents?|references?|refs?|docs?|no|see)\b\.?\s*)*"
_RANGES = rf"{_RANGE}(?:(?:[,;&]|\band\b){_WORDS}{_RANGE})*"
_BRACKETS = re.compile(rf"[\[［【〔]{_WORDS}({_RANGES})[\]］】〕]", re.IGNORECASE)


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
    and optionally "id", "title" and "source". Only right answers count, unless `all_verdicts`: a line's "verdict" says
    so. A line without a verdict is graded by its "gold" answer, and counts where it has none.
    """

    def __init__(self, path: str, min_searches: int = 0, all_verdicts: bool = False) -> None:
        self._path, self._min_searches, self._all = Path(path), min_searches, all_verdicts
        if not self._path.exists():
            raise ConfigError(f"demonstrations {path}: there is no such file. Give JSON lines.")

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """See `Demonstrations.read`."""
        found = []
        with self._path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    rollout = rollout_from(completed(row, number, protocol))
                    kept = self._all or is_right(row, rollout)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise ConfigError(
                        f"{self._path}, line {number}: found {line[:80]!r} ({error}), wanted a JSON object with "
                        "question and turns. Correct the line."
                    ) from error
                if kept:
                    found.append(rollout)
        return [rollout for rollout in found if rollout.num_searches >= self._min_searches]


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


class LeftOut(StrEnum):
    """Why a dialogue is not imitated. The values are parts of metrics' names."""

    NO_ANSWER = "no_answer"
    AFTER_ANSWER = "after_answer"
    UNREADABLE = "unreadable"
    MAX_TURNS = "max_turns"
    MAX_TURN_TOKENS = "max_turn_tokens"
    MAX_TOTAL_TOKENS = "max_total_tokens"
    CITATION = "citation"
    CONTROL = "control_token"

    @property
    def in_words(self) -> str:
        """What such a dialogue does."""
        return {
            LeftOut.NO_ANSWER: "end without an answer",
            LeftOut.AFTER_ANSWER: "go on after an answer",
            LeftOut.UNREADABLE: "have a turn that neither searches nor answers",
            LeftOut.MAX_TURNS: "have more than max_turns turns",
            LeftOut.MAX_TURN_TOKENS: "have a turn over max_turn_tokens",
            LeftOut.MAX_TOTAL_TOKENS: "exceed max_total_tokens",
            LeftOut.CITATION: "cite a passage that this run does not show under that number",
            LeftOut.CONTROL: "write a control token of the tokenizer",
        }[self]


def in_words(left_out: Counter[LeftOut]) -> str:
    """Counts by reason, in the order of reasons.

    >>> in_words(Counter({LeftOut.NO_ANSWER: 2, LeftOut.CITATION: 0}))
    '2 end without an answer'
    """
    return ", ".join(f"{left_out[reason]} {reason.in_words}" for reason in LeftOut if left_out[reason]) or "none"


def encoded(
    rollouts: Sequence[Rollout], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Rollout], Counter[LeftOut]]:
    """The dialogues in a tokenizer's tokens, all turns as actions, and how many were left out for each reason.

    Left out is what this run's agent could not have said under its limits, or could not have seen. The tokens are those
    that the rollout loop would have shown: prompt and passages pass through the same protocol, `top_k` per search.
    """
    control = _control_tokens(settings.protocol, tokenizer)
    found: list[Rollout] = []
    left_out: Counter[LeftOut] = Counter()
    for rollout in rollouts:
        made = _encoded(rollout, settings, tokenizer, control)
        if isinstance(made, LeftOut):
            left_out[made] += 1
        else:
            found.append(made)
    return found, left_out


def _encoded(
    rollout: Rollout, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase, control: set[int]
) -> Rollout | LeftOut:
    limits, protocol = settings.limits, settings.protocol
    ends = tuple(block.end for block in protocol.blocks)
    said = [turn.text[: first_end(turn.text, ends)] for turn in rollout.turns]  # where the run ends it
    texts = [protocol.rest_of_first_turn(tokenizer, text) if number == 0 else text for number, text in enumerate(said)]
    opened = protocol.opened(tokenizer)
    parsed = [protocol.parse(text if number else opened + text) for number, text in enumerate(texts)]
    for turn, read in zip(rollout.turns, parsed, strict=True):
        if read.query is None and turn.hits and protocol.parse(turn.text).query is None:
            raise ConfigError(
                f"demonstration {rollout.question.id}: found passages after a turn that does not search "
                f"({turn.text[:60]!r}), wanted {protocol.search.start}...{protocol.search.end}."
            )
    if rollout.stop_reason is not StopReason.ANSWERED or not parsed or parsed[-1].answer is None:
        return LeftOut.NO_ANSWER
    if any(read.answer is not None for read in parsed[:-1]):
        return LeftOut.AFTER_ANSWER
    if any(read.query is None for read in parsed[:-1]):
        return LeftOut.UNREADABLE
    if len(parsed) > limits.max_turns:
        return LeftOut.MAX_TURNS
    turns: list[Turn] = []
    told: list[Hit] = []  # what the dialogue's own numbers name
    shown: list[Hit] = []  # what they name in this run
    for turn, own, text, read in zip(rollout.turns, said, texts, parsed, strict=True):
        turn = replace(turn, text=own)
        ids = tuple(encode(tokenizer, [Piece(text)]))
        if control & set(ids):
            return LeftOut.CONTROL
        if len(ids) > limits.max_turn_tokens:
            return LeftOut.MAX_TURN_TOKENS
        if _misnames(turn.text, told, shown):
            return LeftOut.CITATION
        observation: tuple[int, ...] = ()
        if read.query is not None:
            hits = turn.hits[: settings.top_k]
            inserted, count = protocol.encode_observation(
                tokenizer,
                harmless_passages(tokenizer, [hit.passage for hit in hits]),
                first_number=len(shown) + 1,
                max_tokens=limits.max_observation_tokens,
            )
            observation = tuple(inserted)
            told, shown = [*told, *turn.hits], [*shown, *hits[:count]]
            turn = replace(turn, hits=hits[:count])
        turns.append(Turn(ids, (0.0,) * len(ids), turn.text, read.query, read.answer, turn.hits, observation))
    prompt = tuple(protocol.encode_prompt(tokenizer, harmless_question(tokenizer, rollout.question)))
    whole = replace(rollout, prompt_ids=prompt, turns=tuple(turns))
    return whole if len(whole.token_ids) <= limits.max_total_tokens else LeftOut.MAX_TOTAL_TOKENS


def _misnames(text: str, told: list[Hit], shown: list[Hit]) -> bool:
    """Whether a number in a turn names what nobody was shown, or another passage than it did for the teacher."""
    return any(
        not 1 <= number <= min(len(told), len(shown)) or shown[number - 1] is not told[number - 1]
        for number in _numbers(text)
    )


def _numbers(text: str) -> Iterator[int]:
    """The numbers of passages in brackets, also of lists and ranges such as [1, 3] and [2-4].

    >>> list(_numbers("so [1, 3], [2-4] and [passages 5 and 6], but [IV] and (5)"))
    [1, 3, 2, 3, 4, 5, 6]
    """
    for inside in _BRACKETS.findall(text):
        for part in re.split(r"[,;&]|\band\b", inside, flags=re.IGNORECASE):
            first, *last = map(int, re.findall(r"\d+", part))
            yield from (first, *(range(first + 1, last[-1] + 1) if last and last[-1] - first < MOST_IN_RANGE else last))


def _control_tokens(protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of special tokens and of marks of roles that are no mark of the protocol, such as the end of text.

    Whether a tokenizer calls a mark of roles special is chance.
    """
    marks = [*protocol.tag_tokens, *(mark for block in protocol.blocks for mark in (block.start, block.end))]
    special = {
        id_
        for id_, token in tokenizer.added_tokens_decoder.items()
        if token.special or _TELLS_WHO_SPEAKS.fullmatch(str(token))
    }
    return (special | set(tokenizer.all_special_ids)) - set(encode(tokenizer, [Piece(mark) for mark in marks]))
