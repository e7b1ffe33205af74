"""Dialogues by rule, from questions with gold answers and an index: no teacher writes them.

A raw model that keeps to no protocol earns nothing, so it has no successes to imitate. These dialogues teach it the
protocol: to search, to search again with what it has read, and to answer in a passage's words and cite it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.progress import track
from transformers import PreTrainedTokenizerBase

from medagent.agent_folder import retriever_spec
from medagent.environment import AgentSettings
from medagent.errors import ConfigError, require
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.rollout_files import rollout_from, write_records
from medagent.evaluation.run import digest
from medagent.files import write_whole
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.passages import Hit
from medagent.retrieval.retriever import Retriever
from medagent.training.rollouts.questions import withheld_from
from medagent.training.sft.data import LeftOutReason, encoded, in_words
from medagent.training.sft.dialogues import ABSTENTION, Demonstrations
from medagent.training.sft.scripted_search import (
    MOST_WORDS,
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
from medagent.types import Question, Rollout, StopReason, Turn

TRIES = 6  # queries after the first
BRIDGES_PER_PASSAGE = 3
AT_ONCE = 256  # searches between two movements of the progress bar
DIALOGUES, SUMMARY = "dialogues.jsonl", "scripted.json"


@dataclass
class _Case:
    """A question on its way to a dialogue. A query stands before its thought."""

    question: Question
    golds: tuple[str, ...]
    next: list[tuple[str, str]]
    withheld: frozenset[str]
    searches: list[tuple[str, str, Shown]] = field(default_factory=list)
    evidence: Evidence | None = None


class ScriptedDemonstrations(Demonstrations):
    """Writes a dialogue for every question whose gold answer a search shows.

    The first query is the content words of the question. If its passages do not show the answer, a second query
    joins a name from them to what is still asked. Up to six such queries are tried, and at the end other wordings
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
        seed: int = 0,
    ) -> None:
        for name, share in (("abstentions", abstentions), ("withheld", withheld)):
            require(0 <= share < 1, f"ScriptedDemonstrations.{name}", share, "a share below 1")
        self._questions, self._thoughts, self._seed = benchmark.questions(), thoughts, seed
        self._abstentions, self._withheld = abstentions, withheld

    def make(
        self, settings: AgentSettings, retriever: Retriever, folder: Path, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """See `Demonstrations.make`. It takes seconds per thousand questions, so it is done whole or not at all."""
        self._check(settings)
        self._settings, self._retriever, self._tokenizer = settings, retriever, tokenizer
        identity = self._identity()
        if (folder / SUMMARY).exists() and _summary(folder)["identity"] == identity:
            return
        cases = self._cases()
        self._search(cases)
        answered, left_out = self._fitting([self._answered(case) for case in cases if case.evidence])
        unanswered = [case for case in cases if not case.evidence]
        wanted = round(len(answered) * self._abstentions / (1 - self._abstentions))
        drawn = sorted(unanswered, key=lambda case: sha256(f"{self._seed}|{case.question.id}".encode()).digest())
        searched = [case for case in drawn if case.searches][:wanted]
        silent = [self._dialogue(case, ABSTENTION, "No passage tells it.") for case in searched]
        abstained, misfits = self._fitting(silent)
        left_out.update(misfits)
        left_out[LeftOutReason.NO_GOLD] = len(self._questions) - len(cases)
        left_out[LeftOutReason.NOT_FOUND] = len(unanswered) - len(searched)
        place = {question.id: at for at, question in enumerate(self._questions)}
        made = sorted(answered + abstained, key=lambda rollout: place[rollout.question.id])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
        write_records(folder / DIALOGUES, made)
        counts = {reason.name.lower(): left_out[reason] for reason in LeftOutReason if left_out[reason]}
        write_whole(folder / SUMMARY, json.dumps({"identity": identity, "left_out": counts}, indent=1) + "\n")
        print(
            f"{len(made):,} of {len(self._questions):,} questions give a dialogue, "
            f"{sum(rollout.num_searches > 1 for rollout in made):,} with two searches, {len(abstained):,} with an "
            f"abstention. Others: {in_words(left_out)}.",
            flush=True,
        )

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        self.left_out = {
            LeftOutReason[name.upper()]: int(count) for name, count in _summary(folder)["left_out"].items()
        }
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

    def _identity(self) -> Any:
        """The inputs that determine the dialogues, as JSON gives them back."""
        spec, around, tokenizer = retriever_spec(self._retriever), self._settings.protocol.answer, self._tokenizer
        words = tokenizer(f"{around.start}Gout: 5 mg/d [1]{around.end}", add_special_tokens=False)["input_ids"]
        found = {
            "rules": asdict(self._settings),
            "retriever": asdict(spec) if spec else type(self._retriever).__name__,
            "tokenizer": [len(tokenizer), *words],
            "questions_sha256": digest(self._questions),
            "settings": [self._thoughts, self._abstentions, TRIES, MOST_WORDS, self._seed, self._withheld],
        }
        return json.loads(json.dumps(found, default=str))

    def _cases(self) -> list[_Case]:
        """The questions with a gold answer, and their first queries."""
        protocol, among = self._settings.protocol, Rarity()
        among.add(question.text for question in self._questions)
        cases = []
        for question in self._questions:
            if golds := golds_of(question, protocol, self._tokenizer):
                query = protocol.neutralise(first_query(question.text, among))
                withheld = withheld_from(question, self._withheld, self._seed, self._retriever)
                cases.append(_Case(question, golds, [(query, "I look it up.")] if query else [], withheld))
        return cases

    def _search(self, cases: list[_Case]) -> None:
        """Search for all cases at once, query by query, until each has its evidence or no query is left."""
        settings, rarity = self._settings, Rarity()
        for number in range(1 + (TRIES if settings.limits.max_turns > 2 else 0)):
            open_ = [case for case in cases if case.next and not case.evidence]
            if not open_:
                break
            results: list[Shown] = []
            for start in track(range(0, len(open_), AT_ONCE), f"scripted demonstrations, query {number + 1}"):
                hits = asyncio.run(_hits(self._retriever, open_[start : start + AT_ONCE], settings.top_k))
                results += [shown(each, settings, self._tokenizer) for each in hits]
            if number == 0:  # statistics of the index, as far as these questions lead into it
                rarity.add({hit.passage.id: text for found in results for hit, text in found}.values())
            for case, result in zip(open_, results, strict=True):
                query, thought = case.next.pop(0)
                case.searches = [*case.searches[:1], (query, thought, result)]
                case.evidence = evidence_in(result, case.question, case.golds, query, rarity)
                if number == 0 and not case.evidence:
                    case.next = _further(case, settings.protocol, rarity)

    def _answered(self, case: _Case) -> Rollout:
        """Searches, then the answer with its citation."""
        assert case.evidence is not None
        before = sum(len(result) for _, _, result in case.searches[:-1])
        number, question = before + case.evidence.number, case.question
        wording = case.evidence.wording or case.golds[0]
        said = [f"{wording} ({question.answer}) [{number}]", f"({question.answer}) [{number}]"]
        answers = said if question.options else [f"{wording} [{number}]"]
        for answer in answers:
            made = self._dialogue(case, answer, f"[{number}] says {wording}.")
            if grade(made).correct:
                break
        return made

    def _dialogue(self, case: _Case, answer: str, thought: str) -> Rollout:
        """The searches, then this answer."""
        protocol, tokenizer = self._settings.protocol, self._tokenizer

        def turn(thought: str, text: str, hits: tuple[Hit, ...] = ()) -> Turn:
            if self._thoughts and isinstance(protocol, TagProtocol):
                text = f"{protocol.think.start} {thought}{protocol.think.end}{text}"
            parsed = protocol.read(tokenizer, text)
            return Turn((), (), text, parsed.query, parsed.answer, hits)

        turns = [
            turn(why, protocol.written_turn(tokenizer, query=query), tuple(hit for hit, _ in result))
            for query, why, result in case.searches
        ]
        last = turn(thought, protocol.written_turn(tokenizer, answer=answer))
        return Rollout(case.question, (), (*turns, last), StopReason.ANSWERED)

    def _fitting(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], Counter[LeftOutReason]]:
        """The dialogues that this run's agent could have had, and why the others are none."""
        reasons = [next(iter(encoded([each], self._settings, self._tokenizer)[1]), None) for each in rollouts]
        fit = [rollout for rollout, reason in zip(rollouts, reasons, strict=True) if reason is None]
        return fit, Counter(reason for reason in reasons if reason)


def _further(case: _Case, protocol: TurnProtocol, rarity: Rarity) -> list[tuple[str, str]]:
    """The queries to try after the first, best first; none of them holds the answer."""
    (first, _, result), text = case.searches[0], case.question.text
    about = {number: rarity.share(stems(text), read) for number, (_, read) in enumerate(result, start=1)}
    found: list[tuple[str, str]] = []
    for number in sorted(about, key=lambda number: (-about[number], number)):
        if about[number] < ON_TOPIC:
            break
        hit, read = result[number - 1]
        title = protocol.neutralise(hit.passage.title)
        for bridge in bridges(text, title, read, rarity)[:BRIDGES_PER_PASSAGE]:
            found.append((next_query(text, bridge, read), f"[{number}] names {bridge}. I look for the rest."))
    others = [(query, "Not told yet. I try other words.") for query in rewordings(text, rarity)]
    spared = min(len(others), TRIES // 3)
    new: dict[str, tuple[str, str]] = {}
    for query, thought in [*found[: TRIES - spared], *others]:
        clean = protocol.neutralise(query)
        if clean and (not says(clean, case.golds) or says(text, case.golds)):
            new.setdefault(clean.lower(), (clean, thought))
    new.pop(first.lower(), None)
    return list(new.values())[:TRIES]


async def _hits(retriever: Retriever, cases: Sequence[_Case], top_k: int) -> list[list[Hit]]:
    """The hits for each case's next query."""
    batcher = SearchBatcher(retriever, top_k=top_k)
    return await asyncio.gather(*(batcher.search(case.next[0][0], without=case.withheld) for case in cases))


def _summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return found
