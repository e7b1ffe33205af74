"""Dialogues by rule, from questions with gold answers and an index: no teacher writes them.

A raw model that keeps to no protocol earns nothing, so it has no successes to imitate. These dialogues teach it the
protocol: to search, to search again with what it has read, and to answer in a passage's words and cite it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerBase

from medagent.agent_folder import retriever_spec
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.rollout_files import rollout_from, write_records
from medagent.evaluation.run import digest
from medagent.files import write_whole
from medagent.protocol import Block, TagProtocol, TurnProtocol
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.passages import Hit
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentSettings
from medagent.training.rollouts.noisy_retrieval import withheld_from
from medagent.training.sft.dialogues import ABSTENTION, Demonstrations
from medagent.training.sft.scripted_search import (
    ON_TOPIC,
    Evidence,
    Rarity,
    Shown,
    bridges,
    evidence_in,
    first_query,
    golds_of,
    next_query,
    rewordings,
    says,
    shown,
    stems,
)
from medagent.training.sft.tokenized_dialogues import LeftOut, encoded, in_words
from medagent.types import Question, Rollout, StopReason, Turn

BRIDGES_PER_PASSAGE = 3
AT_ONCE = 256  # searches between two movements of the progress bar
DIALOGUES, SUMMARY = "dialogues.jsonl", "scripted.json"


@dataclass(frozen=True)
class _Query:
    """A query, and what is thought before it."""

    text: str
    thought: str


@dataclass
class _Case:
    """A question on its way to a dialogue."""

    question: Question
    golds: tuple[str, ...]
    next: list[_Query]
    withheld: frozenset[str] = frozenset()
    searches: list[tuple[_Query, Shown]] = field(default_factory=list)
    evidence: Evidence | None = None


class ScriptedDemonstrations(Demonstrations):
    """Writes a dialogue for every question whose gold answer a search shows.

    The first query is the content words of the question. If its passages do not show the answer, a second query
    joins a name from them to what is still asked. Up to `tries` such queries are tried, and at the end other wordings
    of the question. The answer is worded as the passage words it, with the letter of its option, and cites the passage.

    Some questions whose answer no search shows end in an abstention: the share `abstentions` of all dialogues, drawn by
    `seed`. The others give no dialogue. For the share `withheld` of the questions no search shows the
    documents with their evidence, so that there are such questions.

    With `thoughts` each turn first says briefly why it does what it does, as the instructions of `TagProtocol` ask. It
    names the passage before it copies from it. Thoughts need that protocol.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        thoughts: bool = True,
        abstentions: float = 0.03,
        withheld: float = 0.0,
        tries: int = 6,
        most_query_words: int = 12,
        seed: int = 0,
    ) -> None:
        for name, share in (("abstentions", abstentions), ("withheld", withheld)):
            if not 0 <= share < 1:
                raise ConfigError(f"ScriptedDemonstrations.{name}: found {share}, wanted a share below 1.")
        if tries < 0 or most_query_words < 1:
            raise ConfigError(
                f"ScriptedDemonstrations: found tries {tries} and most_query_words {most_query_words}, wanted 0 or "
                "more, and 1 or more."
            )
        self._questions = benchmark.questions()
        self._thoughts, self._abstentions, self._tries = thoughts, abstentions, tries
        self._most_words, self._seed, self._withheld = most_query_words, seed, withheld

    def make(
        self, settings: AgentSettings, retriever: Retriever, folder: Path, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """See `Demonstrations.make`. It takes seconds per thousand questions, so it is done whole or not at all.

        Raises:
            ConfigError: the limits allow no search, or the protocol has no thoughts.
        """
        self._check(settings)
        identity = self._identity(settings, retriever, tokenizer)
        if _summary(folder).get("identity") == identity:
            return
        cases, no_gold = self._cases(settings.protocol, tokenizer, retriever)
        self._search(cases, settings, retriever, tokenizer)
        script = _Script(settings.protocol, self._thoughts)
        answered, misfits = _fitting([script.answered(case) for case in cases if case.evidence], settings, tokenizer)
        unanswered = [case for case in cases if not case.evidence]
        wanted = round(len(answered) * self._abstentions / (1 - self._abstentions))
        drawn = self._drawn([case for case in unanswered if case.searches], wanted)
        abstained, more_misfits = _fitting([script.abstained(case) for case in drawn], settings, tokenizer)
        found = Counter({LeftOut.NO_GOLD: no_gold, LeftOut.NOT_FOUND: len(unanswered) - len(drawn)})
        left_out = found + misfits + more_misfits
        place = {question.id: at for at, question in enumerate(self._questions)}
        made = sorted(answered + abstained, key=lambda rollout: place[rollout.question.id])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
        write_records(folder / DIALOGUES, made)
        write_whole(folder / SUMMARY, json.dumps({"identity": identity, "left_out": dict(left_out)}, indent=1) + "\n")
        print(
            f"{len(made):,} of {len(self._questions):,} questions give a dialogue, "
            f"{sum(rollout.num_searches > 1 for rollout in made):,} with two searches, {len(abstained):,} with an "
            f"abstention. Others: {in_words(left_out)}.",
            flush=True,
        )

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """See `Demonstrations.read`."""
        self.left_out = {LeftOut(name): int(count) for name, count in _summary(folder)["left_out"].items() if count}
        with (folder / DIALOGUES).open(encoding="utf-8") as lines:
            return [rollout_from(json.loads(line)) for line in lines]

    def _check(self, settings: AgentSettings) -> None:
        if settings.limits.max_turns < 2:
            raise ConfigError(
                f"ScriptedDemonstrations: found max_turns {settings.limits.max_turns}, wanted 2 or more: a search "
                "and an answer. Raise data.agent.limits.max_turns."
            )
        if self._thoughts and not isinstance(settings.protocol, TagProtocol):
            raise ConfigError(
                f"ScriptedDemonstrations.thoughts: found true with {type(settings.protocol).__name__}, wanted a "
                "TagProtocol, whose thoughts have tags. Set thoughts to false."
            )

    def _identity(
        self, settings: AgentSettings, retriever: Retriever, tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, Any]:
        spec = retriever_spec(retriever)
        around = settings.protocol.answer
        words = tokenizer(f"{around.start}Gout: 5 mg/d [1]{around.end}", add_special_tokens=False)["input_ids"]
        found = {
            "rules": asdict(settings),
            "retriever": asdict(spec) if spec else type(retriever).__name__,
            "tokenizer": [len(tokenizer), *words],
            "questions_sha256": digest(self._questions),
            "settings": [self._thoughts, self._abstentions, self._tries, self._most_words, self._seed, self._withheld],
        }
        made: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return made

    def _cases(
        self, protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase, retriever: Retriever
    ) -> tuple[list[_Case], int]:
        """The questions with a gold answer and their first queries, and how many have none."""
        among = Rarity()
        among.add(question.text for question in self._questions)
        cases = []
        for question in self._questions:
            if golds := golds_of(question, protocol, tokenizer):
                query = protocol.neutralise(first_query(question.text, among, self._most_words))
                queries = [_Query(query, "I look it up.")] if query else []
                cases.append(
                    _Case(question, golds, queries, withheld_from(question, self._withheld, self._seed, retriever))
                )
        return cases, len(self._questions) - len(cases)

    def _drawn(self, cases: list[_Case], count: int) -> list[_Case]:
        return sorted(cases, key=lambda case: sha256(f"{self._seed}|{case.question.id}".encode()).digest())[:count]

    def _search(
        self, cases: list[_Case], settings: AgentSettings, retriever: Retriever, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """Search for all cases at once, query by query, until each has its evidence or no query is left."""
        rarity = Rarity()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns) as bars:
            for number in range(1 + (self._tries if settings.limits.max_turns > 2 else 0)):
                open_ = [case for case in cases if case.next and not case.evidence]
                if not open_:
                    break
                task = bars.add_task(f"scripted demonstrations, query {number + 1}", total=len(open_))
                queries = [(case.next[0].text, case.withheld) for case in open_]
                hits = _hits(retriever, queries, settings.top_k, partial(bars.advance, task))
                results = [shown(each, settings, tokenizer) for each in hits]
                if number == 0:  # statistics of the index, as far as these questions lead into it
                    rarity.add({hit.passage.id: text for found in results for hit, text in found}.values())
                for case, result in zip(open_, results, strict=True):
                    query = case.next.pop(0)
                    case.searches = [*case.searches[:1], (query, result)]
                    case.evidence = evidence_in(result, case.question, case.golds, query.text, rarity)
                    if number == 0 and not case.evidence:
                        case.next = self._further(case, settings.protocol, rarity)

    def _further(self, case: _Case, protocol: TurnProtocol, rarity: Rarity) -> list[_Query]:
        """The queries to try after the first, best first; none of them holds the answer."""
        (first, result), text = case.searches[0], case.question.text
        about = {number: rarity.share(stems(text), read) for number, (_, read) in enumerate(result, start=1)}
        found: list[_Query] = []
        for number in sorted(about, key=lambda number: (-about[number], number)):
            if about[number] < ON_TOPIC:
                break
            hit, read = result[number - 1]
            title = protocol.neutralise(hit.passage.title)
            for bridge in bridges(text, title, read, rarity)[:BRIDGES_PER_PASSAGE]:
                query = next_query(text, bridge, read, self._most_words)
                found.append(_Query(query, f"[{number}] names {bridge}. I look for the rest."))
        others = [_Query(query, "Not told yet. I try other words.") for query in rewordings(text, rarity)]
        spared = min(len(others), self._tries // 3)
        new = {first.text.lower(): first}
        for each in [*found[: self._tries - spared], *others]:
            clean = protocol.neutralise(each.text)
            if clean and (not says(clean, case.golds) or says(text, case.golds)):
                new.setdefault(clean.lower(), _Query(clean, each.thought))
        return list(new.values())[1 : 1 + self._tries]


@dataclass(frozen=True)
class _Script:
    """Turns of a protocol from what a case has found."""

    protocol: TurnProtocol
    thoughts: bool

    def answered(self, case: _Case) -> Rollout:
        """Searches, then the answer with its citation."""
        assert case.evidence is not None
        before = sum(len(result) for _, result in case.searches[:-1])
        number, question = before + case.evidence.number, case.question
        wording = case.evidence.wording or case.golds[0]
        said = [f"{wording} ({question.answer}) [{number}]", f"({question.answer}) [{number}]"]
        for answer in said if question.options else [f"{wording} [{number}]"]:
            made = self._dialogue(case, answer, f"[{number}] says {wording}.")
            if grade(made).correct:
                break
        return made

    def abstained(self, case: _Case) -> Rollout:
        """Searches, then the statement that nothing was found."""
        return self._dialogue(case, ABSTENTION, "No passage tells it.")

    def _dialogue(self, case: _Case, answer: str, thought: str) -> Rollout:
        turns = [
            self._turn(query.thought, self.protocol.search, query.text, tuple(hit for hit, _ in result))
            for query, result in case.searches
        ]
        last = self._turn(thought, self.protocol.answer, answer)
        return Rollout(case.question, (), (*turns, last), StopReason.ANSWERED)

    def _turn(self, thought: str, block: Block, said: str, hits: tuple[Hit, ...] = ()) -> Turn:
        """A turn; a space after each tag, so that words have the tokens that they have within a text."""
        opening = ""
        if self.thoughts:
            assert isinstance(self.protocol, TagProtocol)
            opening = f"{self.protocol.think.start} {thought}{self.protocol.think.end}"
        text = f"{opening}{block.start} {said}{block.end}"
        parsed = self.protocol.parse(text)
        return Turn((), (), text, parsed.query, parsed.answer, hits)


def _fitting(
    rollouts: Sequence[Rollout], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Rollout], Counter[LeftOut]]:
    """The dialogues that this run's agent could have had, and why the others are none."""
    fit: list[Rollout] = []
    left_out: Counter[LeftOut] = Counter()
    for rollout in rollouts:
        kept, reasons = encoded([rollout], settings, tokenizer)
        left_out += reasons
        fit += [rollout] * len(kept)
    return fit, left_out


def _hits(
    retriever: Retriever,
    queries: Sequence[tuple[str, frozenset[str]]],
    top_k: int,
    advance: Callable[[int], object],
) -> list[list[Hit]]:
    """Hits of all queries, each without what is withheld from it.

    A retriever that fails for a moment is asked again.
    """

    async def search(some: Sequence[tuple[str, frozenset[str]]]) -> list[list[Hit]]:
        batcher = SearchBatcher(retriever, top_k=top_k)
        return await asyncio.gather(*(batcher.search(query, without=withheld) for query, withheld in some))

    found: list[list[Hit]] = []
    for start in range(0, len(queries), AT_ONCE):
        found += asyncio.run(search(queries[start : start + AT_ONCE]))
        advance(len(found) - start)
    return found


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
