"""Any model as the agent that people ask, or none.

A model that was not trained here may call functions, write tags, or just answer. So the question is searched first, and
the passages found stand in its first message. A reply that calls for another search is one, in whichever form. Any
other reply is the answer, with the citations that it gives.

With `--prompting lines` it names numbered sentences, and the program prints them as the documents have them. Such an
answer cannot be forged: every word of it stands in the passage that it cites.

The agent without a model, `--agent none`, searches the question's own words and answers with sentences found.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, GivenSearch, Job
from medagent.answer_forms import FORM_HINTS
from medagent.call_syntax import query_of, read_turn
from medagent.evidence.extracts import answer_from, best_quotes, queries_of
from medagent.pieces import TOOL_CALL, Block, ParsedTurn, Piece, encode
from medagent.plain_protocol import PlainProtocol
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.policy import Session
from medagent.protocol import TAGS, TagProtocol, TurnProtocol
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.chunking import sentence_spans
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever
from medagent.types import LETTERS, Limits, Question, Rollout, StopReason, Turn

ASKED = (
    "Answer the question from the passages above{naming}. Cite the passages that support the answer by their numbers,"
    " like [1]."
)
CHOOSE = (
    "Which of the numbered sentences above answer the question? Reply with nothing but the numbers of one to three of "
    "them, like [4]."
)
ELSE_SEARCH = (
    " If they do not answer it, search again: call the function search, or write "
    f"{TagProtocol.search.around('...')} with the words to search for.\n"
)
NAMING = " by the letter of one option in parentheses, like (B)", ", in a few of their own words"
_THINK, _RESULTS = TagProtocol.think, TagProtocol.information
_SEARCH = re.compile(rf"(?i){TagProtocol.search.start}\s*([^<]*[^<\s])")
_ANSWER = re.compile(rf"(?is){TagProtocol.answer.start}(.*?)(?:{TagProtocol.answer.end}|$)")
_MARKS = re.compile(rf"(?im)</?(?:{'|'.join(TAGS)}|tool_call)>|^```\w*$")
_LEAD = re.compile(r"(?im)^[\s*_#>]*(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+is\b|[\s*_]*:)[\s*_:]*")


@dataclass(frozen=True)
class AnyModelProtocol(PlainProtocol):
    """One message with passages and question. A reply is a search if it calls for one, else the answer."""

    search: ClassVar[Block] = TagProtocol.search
    answer: ClassVar[Block] = TagProtocol.answer

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.search, self.answer, TOOL_CALL

    def described(self) -> str:
        return "passages and question in one message; a reply that calls for no search is the answer"

    def encode_observation(
        self, tokenizer: PreTrainedTokenizerBase, passages: Sequence[Passage], *, first_number: int, max_tokens: int
    ) -> tuple[list[int], int]:
        start, end = (encode(tokenizer, [Piece(f"{mark}\n")]) for mark in (_RESULTS.start, _RESULTS.end))
        room = max_tokens - len(start) - len(end)
        ids, shown = super().encode_observation(tokenizer, passages, first_number=first_number, max_tokens=room)
        return [*start, *ids, *end], shown

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn. Results that the model makes up itself are left out, with what it writes below them.

        >>> AnyModelProtocol().parse('{"name": "search", "arguments": {"query": "gout drug"}}').query
        'gout drug'
        """
        thought, closed, said = text.rpartition(_THINK.end)
        if not closed and _THINK.start in text:  # a thought that does not end
            thought, said = text, ""
        thought, said = thought.replace(_THINK.start, "").strip(), said.partition(_RESULTS.start)[0]
        answer, search = _ANSWER.search(said), _SEARCH.search(said)
        if answer and answer[1].strip() and not (search and search.start() < answer.start()):
            return ParsedTurn(thought, None, answer[1].strip())
        query = search[1] if search else next(filter(None, map(query_of, read_turn(said).calls)), "")
        if query:
            return ParsedTurn(thought, query, None)
        return ParsedTurn(thought, None, _LEAD.split(_MARKS.sub("", said))[-1].strip() or None)

    def closing(self, question: Question) -> str:
        asked = ASKED.replace("{naming}", NAMING[0 if question.options else 1])
        return asked + ELSE_SEARCH + FORM_HINTS[question.form]


MOST_LINES = 3  # sentences of an answer; further ones are left out
SHORTEST = 3  # words; what is shorter belongs to the sentence before it
_LIST = r"((?:\d{1,3}\b|(?:and|or|to)\b|[^\w.\[\]]|\.(?!\d))+)"  # numbers and what stands between them, but no "1.5"
_LISTS = rf"\[{_LIST}\]", rf"(?i)(?<!-)\b(?:sentence|line|number|answer)s?:? {_LIST}", rf"(?i)^{_LIST}$"
_NONE = re.compile(r"\W*none\W*", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:(?: ?[-\u2013] ?| to )(\d+))?")

CHOOSE_LINES = (
    "Which of the numbered sentences answer the question? End your reply with a line "
    '"Answer: [..]", which gives the numbers of one to three sentences, or with "Answer: none".\n'
)


def sentences_of(passage: Passage) -> list[str]:
    """The sentences of a passage's text, as the text has them. A fragment of a few words goes with the one before."""
    spans: list[tuple[int, int]] = []
    for start, end in sentence_spans(passage.text):
        if spans and len(passage.text[start:end].split()) < SHORTEST:
            start = spans.pop()[0]
        spans.append((start, end))
    return [sentence for start, end in spans if (sentence := passage.text[start:end].strip())]


def numbered_lines(passages: Sequence[Passage]) -> list[Passage]:
    """One passage for each sentence; the first of each passage has its heading."""
    return [
        replace(passage, text=sentence) if first else replace(passage, text=sentence, title="", section="")
        for passage in passages
        for first, sentence in zip((True, *[False] * len(passage.text)), sentences_of(passage), strict=False)
    ]


def named_numbers(said: str) -> list[int]:
    """The numbers of sentences that a reply names. Other numbers, such as those of doses, are none.

    >>> named_numbers("[2], as 500 mg"), named_numbers("Sentences 3 and 7-9."), named_numbers("500 mg")
    ([2], [3, 7, 8, 9], [])
    """
    for form in _LISTS:
        if found := _RANGE.findall(" ".join(re.findall(form, said))):
            return [number for start, end in found for number in range(int(start), int(end or start) + 1)]
    return []


class NumberedLines(TurnProtocol):
    """Numbers sentences instead of passages, and writes an answer out from their numbers."""

    def num_numbers(self, passages: Sequence[Passage]) -> int:
        return len(numbered_lines(passages))

    def encode_observation(
        self, tokenizer: PreTrainedTokenizerBase, passages: Sequence[Passage], *, first_number: int, max_tokens: int
    ) -> tuple[list[int], int]:
        """See `TurnProtocol.encode_observation`. A passage is shown if one of its sentences is."""
        ids, lines = super().encode_observation(  # type: ignore[safe-super]
            tokenizer, numbered_lines(passages), first_number=first_number, max_tokens=max_tokens
        )
        shown = 0
        while shown < len(passages) and self.num_numbers(passages[:shown]) < lines:
            shown += 1
        return ids, shown

    def written_answer(self, said: str, passages: Sequence[Passage], question: Question) -> str | None:
        """The sentences whose numbers `said` names, a line each, with their passages' citations; None without any.

        The letter of an option follows if the sentences name this option alone.
        """
        lines = [(number, line) for number, each in enumerate(passages, start=1) for line in sentences_of(each)]
        named = dict.fromkeys(named_numbers(said))
        chosen = [lines[number - 1] for number in named if 1 <= number <= len(lines)][:MOST_LINES]
        if not chosen:
            return None
        text = "\n".join(f"{self.neutralise(line)} [{number}]" for number, line in chosen)
        held = [letter for letter, option in zip(LETTERS, question.options, strict=False) if _holds(text, option)]
        return f"{text} ({held[0]})" if len(held) == 1 else text


def _holds(text: str, option: str) -> bool:
    """Whether a text has an option's words, one after the other."""
    return bool(re.search(rf"(?<!\w){re.escape(' '.join(option.split()))}(?!\w)", text, re.IGNORECASE))


@dataclass(frozen=True)
class PlainLinesProtocol(NumberedLines, PlainProtocol):
    """One message with numbered sentences and the question, and a reply whose last line names numbers."""

    def described(self) -> str:
        return 'one message with numbered sentences and the question, and a reply that ends with "Answer: [..]"'

    def closing(self, question: Question) -> str:
        return CHOOSE_LINES

    def written_answer(self, said: str, passages: Sequence[Passage], question: Question) -> str | None:
        """See `NumberedLines.written_answer`. "None" abstains, as the message offers."""
        return "none" if _NONE.fullmatch(said) else super().written_answer(said, passages, question)


@dataclass(frozen=True)
class AnyModelLinesProtocol(NumberedLines, AnyModelProtocol):
    """As `AnyModelProtocol`, with a number before each sentence and a reply that names some."""

    def closing(self, question: Question) -> str:
        return CHOOSE + ELSE_SEARCH


def for_any_model(agent: Agent, job: Job) -> tuple[Agent, Job]:
    """The agent and the job as people are answered. An agent that was trained, or has a protocol of its own, stays."""
    protocol = agent.protocol
    if type(protocol) is TagProtocol:
        protocol = AnyModelProtocol(protocol.chat, protocol.date)
    if agent.trained or job.given or not isinstance(protocol, AnyModelProtocol):
        return agent, job
    given = GivenSearch(job.question.text, only=False)
    return replace(agent, protocol=protocol), replace(job, given=given)


FOUND_NOTHING = "No sentence about this was found."


@dataclass
class QuotingAgent(Agent):
    """Searches for the question and for its subject, and answers with the best sentences, each cited."""

    caption: ClassVar[str] = "No model: these are the sentences of the corpus nearest to the question."

    @staticmethod
    def over(retriever: Retriever) -> "QuotingAgent":
        """The agent over a retriever. Its tokens are bytes, which bound the length of a question."""
        policy = ScriptedPolicy(byte_tokenizer(), lambda read, turn: "")
        return QuotingAgent(policy, retriever, limits=Limits(max_total_tokens=2**15), top_k=10)

    async def _roll_out(
        self, job: Job, session: Session, batcher: SearchBatcher, on_turn: Callable[[Turn], None] | None = None
    ) -> Rollout:
        question, given, turns = job.question, job.given, list[Turn]()
        queries = (given.query,) if given else () if job.force_answer else queries_of(question.text)
        for query in queries:
            known = {hit.passage.id for turn in turns for hit in turn.hits}
            ready = given.hits if given else None
            hits = await self._search(job, batcher, turns, query) if ready is None else ready
            turns.append(Turn((), (), "", query, hits=tuple(hit for hit in hits if hit.passage.id not in known)))
        passages = [hit.passage for turn in turns for hit in turn.hits]
        quotes = best_quotes(question.text, passages)
        answer = answer_from(quotes, passages) if quotes and quotes[0].sure else FOUND_NOTHING
        turns.append(Turn((), (), "", answer=answer, quoted=True))
        if on_turn:
            for turn in turns:
                on_turn(turn)
        return Rollout(question, (), tuple(turns), StopReason.ANSWERED, job.policy_version, job.sample)
