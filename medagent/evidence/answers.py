"""The answer of a rollout with its citations checked, and the rollout's steps as they end."""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from medagent.agent import Agent, Job
from medagent.answer_forms import citations, marked_letters, without_citations
from medagent.any_model import QuotingAgent, for_any_model
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.extracts import NEAREST, QUOTED, Quote
from medagent.evidence.kinds import NOTHING_ON_IT, NOTHING_SURE, EvidenceKind, EvidenceVerdict
from medagent.evidence.omissions import omitted
from medagent.protocol import NOT_ADVICE, TurnProtocol
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.chunking import sentence_spans
from medagent.retrieval.controls import replaced_words
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever
from medagent.types import Rollout, StopReason, Turn

CHOSEN = "Sentences of the corpus, word for word. The model chose them."
_NUMBER = re.compile(r"\s*\[(\d{1,3})\]")
_WORD = re.compile(r"\w+")
log = logging.getLogger("medagent.evidence")


@dataclass(frozen=True)
class Citation:
    """A cited passage under its number; `sentence` is the span in its text of the sentence nearest to the answer."""

    number: int
    passage: Passage
    sentence: tuple[int, int]

    @property
    def id(self) -> str:
        """The passage's id."""
        return self.passage.id

    @property
    def title(self) -> str:
        """The passage's title."""
        return self.passage.title

    @property
    def text(self) -> str:
        """The passage's text."""
        return self.passage.text

    @property
    def quote(self) -> str:
        """The sentence nearest to the answer."""
        start, end = self.sentence
        return self.passage.text[start:end].strip()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"number": self.number, "passage": self.passage.to_json(), "sentence": list(self.sentence)}


@dataclass(frozen=True)
class SearchStep:
    """A search of the agent: its query and the passages that it was shown, best first."""

    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class Answer:
    """A checked answer, as people are shown it.

    `text` cites only passages that were shown; `removed_citations` counts the others. If the answer is `withheld`, it
    is the verdict's text instead. `quoted` are the corpus's own sentences where it is withheld or partly stated.
    `also` are warnings and recommendations that a shown answer leaves out.
    `caption` stands above it, where no model wrote it. `letter` is the option named.
    `urgent` is the line above the answer to a person in danger. `logprob` is the mean log-prob of the last turn's
    tokens, None where the policy gives none. `rewritten_question` is the question that was put, if it was another.
    """

    text: str
    letter: str | None
    verdict: EvidenceVerdict
    withheld: bool
    citations: tuple[Citation, ...]
    urgent: str | None
    removed_citations: int
    logprob: float | None
    stop_reason: StopReason
    prompt_tokens: int
    completion_tokens: int
    rewritten_question: str | None = None
    quoted: tuple[Quote, ...] = ()
    caption: str = ""
    also: tuple[Quote, ...] = ()
    follow_ups: tuple[str, ...] = ()
    searches: tuple[SearchStep, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether passages that were shown state the answer, on the question's subject: the verdict in a word."""
        return self.verdict.kind is EvidenceKind.STATED

    @property
    def quoted_as(self) -> str:
        """The line above the quoted sentences: whether they answer, or are only the nearest."""
        return QUOTED if any(quote.sure for quote in self.quoted) else NEAREST

    @property
    def usage(self) -> dict[str, int]:
        """Tokens read (question and passages) and sampled, as OpenAI's API counts them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "text": self.text,
            "letter": self.letter,
            "supported": self.supported,
            "verdict": self.verdict.to_json(),
            "withheld": self.withheld,
            "sources": [cited.to_json() for cited in self.citations],
            "quoted_as": self.quoted_as,
            "quoted": [quote.to_json() for quote in self.quoted],
            "also": [quote.to_json() for quote in self.also],
            "nearest": [passage.to_json() for passage in dict.fromkeys(quote.passage for quote in self.quoted)],
            "caption": self.caption,
            "urgent": self.urgent,
            "asked_as": self.rewritten_question,
            "follow_ups": list(self.follow_ups),
            "removed_citations": self.removed_citations,
            "logprob": self.logprob,
            "stop_reason": self.stop_reason.value,
            "usage": self.usage,
            "notice": NOT_ADVICE,
        }


def asking_back(question: str, urgent: str | None) -> Answer:
    """A question to the asker as an answer, which no model wrote. `urgent` is the line above it, if any."""
    verdict = EvidenceVerdict(EvidenceKind.ASKS_BACK, question)
    return Answer(question, None, verdict, True, (), urgent, 0, None, StopReason.ANSWERED, 0, 0)


async def answer_job(
    agent: Agent,
    job: Job,
    *,
    check: EvidenceCheck,
    search: SearchBatcher,
    history: Sequence[str] = (),
    on_turn: Callable[[Turn], None] | None = None,
) -> Answer:
    """Roll out one job and check its answer. `history` is what the asker said before; it may tell of an emergency."""
    agent, job = for_any_model(agent, job)
    rollout = await agent.run(job, on_turn=on_turn, batcher=search)
    found = await answered(rollout, check, search, history=history)
    chosen = CHOSEN if not found.withheld and rollout.turns[-1].quoted else ""
    return replace(found, caption=agent.caption if isinstance(agent, QuotingAgent) else chosen)


async def answered(
    rollout: Rollout, check: EvidenceCheck, search: SearchBatcher, *, history: Sequence[str] = ()
) -> Answer:
    """The answer of a rollout, with sentences to quote where it is not stated, else with questions to ask next."""
    found = await asyncio.to_thread(checked, rollout, check)
    if found.withheld:
        rollout = await _also_searched(rollout, search)
        found = replace(await asyncio.to_thread(checked, rollout, check), removed_citations=found.removed_citations)
    found = replace(found, urgent=check.emergencies.line_for(rollout.question.text, *history))
    if found.withheld or found.verdict.kind is EvidenceKind.PARTLY:
        quotes = await check.quotes(rollout, search)
        if found.verdict.kind is EvidenceKind.NOT_READ and (quotes == () or rollout.turns[-1].quoted):
            silence = (EvidenceKind.NOT_SAID, NOTHING_ON_IT) if quotes == () else (EvidenceKind.NOT_READ, NOTHING_SURE)
            silent = replace(found.verdict, kind=silence[0], text=silence[1])
            found = replace(found, verdict=silent, text=silent.told)
        said = " ".join(without_citations(found.text).split())
        found = replace(found, quoted=tuple(each for each in quotes or () if each.scope or each.text not in said))
    if found.withheld:
        return found
    found = replace(found, also=await asyncio.to_thread(left_out, rollout, found, check))
    return found if found.urgent else replace(found, follow_ups=await check.follow_ups(rollout, found.verdict, search))


def left_out(rollout: Rollout, answer: Answer, check: EvidenceCheck) -> tuple[Quote, ...]:
    """Warnings and recommendations in what the agent read that the answer, and what is quoted beside it, leave out."""
    beside = [*(quote.text for quote in answer.quoted), *(cited.quote for cited in answer.citations)]
    read = [hit.passage for hit in rollout.hits]
    return omitted(rollout.question.text, answer.text, read, shown=beside, synonyms=check.synonyms)


async def _also_searched(rollout: Rollout, search: SearchBatcher) -> Rollout:
    """The rollout with the question itself as its last search; as it is where that fails or was made already."""
    text, hits = rollout.question.text, rollout.hits
    if not rollout.turns or any(turn.query == text for turn in rollout.turns):
        return rollout
    try:
        found = await search.search(text)
    except RetrievalError as error:
        log.warning("the search for the question itself failed (%s); the verdict is on what was read.", error)
        return rollout
    *before, last = rollout.turns
    known = {hit.passage.id for hit in hits}
    more = tuple(hit for hit in found if hit.passage.id not in known)
    said = last.answer and _without_unknown(last.answer, shown=len(hits))[0]  # it was not shown what is found now
    return replace(rollout, turns=(*before, replace(last, answer=said, query=text, hits=(*last.hits, *more))))


def checked(rollout: Rollout, check: EvidenceCheck) -> Answer:
    """The answer of a rollout without a further search. Citations of passages never shown are removed and counted."""
    hits, said = rollout.hits, rollout.answer if rollout.stop_reason is StopReason.ANSWERED else None
    verdict = check.judge(rollout)
    withheld = check.withholds(verdict)
    text, removed = _without_unknown(said or "", shown=len(hits))
    letters = [letter for letter in marked_letters(text) if letter in rollout.question.letters]
    plain = _NUMBER.sub("", text)
    cited = tuple(
        Citation(number, hits[number - 1].passage, nearest_sentence(hits[number - 1].passage.text, plain))
        for number in dict.fromkeys([*citations(text), *verdict.stated_in])
    )
    sampled = rollout.num_action_tokens
    searched = [(turn.query, turn.hits) for turn in rollout.turns if turn.query is not None]
    return Answer(
        text=verdict.told if withheld or not text else text,
        letter=letters[0] if len(letters) == 1 and not withheld and not verdict.contradicts else None,
        verdict=verdict,
        withheld=withheld or not text,
        citations=() if withheld else cited,
        urgent=check.emergencies.line_for(rollout.question.text),
        removed_citations=removed,
        logprob=_logprob(rollout) if said else None,
        stop_reason=rollout.stop_reason,
        prompt_tokens=len(rollout.token_ids) - sampled,
        completion_tokens=sampled,
        searches=tuple(SearchStep(query, tuple(hit.passage for hit in hits)) for query, hits in searched),
    )


def _without_unknown(text: str, *, shown: int) -> tuple[str, int]:
    unknown = [number for number in _NUMBER.findall(text) if not 1 <= int(number) <= shown]
    return _NUMBER.sub(lambda found: "" if found[1] in unknown else found[0], text).strip(), len(unknown)


def nearest_sentence(passage: str, answer: str) -> tuple[int, int]:
    """Start and end of the passage's sentence that shares most words with the answer; the first of equals."""
    wanted = set(_WORD.findall(answer.lower()))
    spans = sentence_spans(passage) or [(0, len(passage))]

    def shared(span: tuple[int, int]) -> float:
        words = _WORD.findall(passage[span[0] : span[1]].lower())
        return len(wanted & set(words)) / math.sqrt(len(words) or 1)

    return max(spans, key=shared)


def _logprob(rollout: Rollout) -> float | None:
    last = rollout.turns[-1] if rollout.turns else None
    values = last.logprobs[last.forced_prefix :] if last else ()
    if not values or not any(rollout.rollout_logprobs):  # an endpoint gives none
        return None
    return sum(values) / len(values)


class Steps:
    """Turns as events, passages numbered as the agent sees them; `retriever` tells which words it replaced.

    `turns` keeps each event with the turn's `text`.
    """

    def __init__(self, protocol: TurnProtocol, retriever: Retriever) -> None:
        self._protocol, self._retriever, self._shown = protocol, retriever, 0
        self.turns: list[dict[str, Any]] = []

    def __call__(self, turn: Turn) -> dict[str, Any]:
        """The event of one turn: what it thought, searched for and called besides, and what it was shown."""
        first = self._shown + 1
        self._shown += len(turn.hits)
        event = {
            "thought": self._protocol.parse(turn.text).think,
            "query": turn.query,
            "calls": [{**vars(call)} for call in turn.calls if call.name != "search" or call.error],
            "replaced": replaced_words(self._retriever, turn.query) if turn.query is not None else {},
            "passages": [
                {"number": number, "score": hit.score, "passage": hit.passage.to_json()}
                for number, hit in enumerate(turn.hits, start=first)
            ],
        }
        self.turns.append({**event, "text": turn.text})
        return event
