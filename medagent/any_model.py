"""Any model as the agent that people ask: its question is searched first, and whatever it then writes is read.

A model that was not trained here may call functions, write tags, or just answer. So the passages of the question's own
search stand in its first message. A reply that calls for another search is one, in whichever form. Any other reply is
the answer, with the citations that it gives.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from transformers import PreTrainedTokenizerBase

from medagent.agent import Agent, GivenSearch, Job
from medagent.answer_forms import FORM_HINTS
from medagent.call_syntax import query_of, read_turn
from medagent.lines import NumberedLines
from medagent.pieces import TOOL_CALL, Block, ParsedTurn, Piece, encode
from medagent.plain_protocol import PlainProtocol
from medagent.protocol import TAGS, TagProtocol
from medagent.retrieval.passages import Passage
from medagent.types import Question

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
