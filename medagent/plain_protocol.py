"""A question as benchmarks put it to a chat model: passages and question in one message, "Answer: ..." as last line.

It is for models that were not trained for tags (`medagent evaluate --prompting plain`). It has one turn and no search.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from transformers import PreTrainedTokenizerBase

from medagent.models.chat_template import beginning_of_text, chat_frame, day_of
from medagent.pieces import Block, ParsedTurn, Piece, encode
from medagent.protocol import TagProtocol, TurnProtocol, fitted
from medagent.retrieval.passages import Passage
from medagent.types import LETTERS, Question
from medagent.untrusted_text import harmless_passages

CHOOSE = 'End your reply with a line "Answer: X", where X is the letter of the right option.\n'
NAME = 'End your reply with a line "Answer: ...", which gives the answer in a few words.\n'
LIST = 'End your reply with a line "Answer: ...", which gives all entries with "; " between them.\n'
NUMBER = 'End your reply with a line "Answer: ...", which gives one number and its unit.\n'
SELECT_ALL = 'End your reply with a line "Answer: A, C", which names the letters of all right options.\n'
_LEAD = re.compile(r"^[\s*_#>]*(?:the\s+)?(?:final\s+|correct\s+)?answer(?:\s+is)?\b[\s*_]*[:=]?[\s*_]*", re.IGNORECASE)
_TAGGED_ANSWER = re.compile(rf"{TagProtocol.answer.start}(.*?){TagProtocol.answer.end}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class PlainProtocol(TurnProtocol):
    """One message, in the tokenizer's chat template if `chat`, and one reply, of which the last line is the answer.

    A template that writes today's date writes `date`.
    """

    search: ClassVar[Block] = Block("", "")
    answer: ClassVar[Block] = Block("", "")
    tag_tokens: ClassVar[tuple[str, ...]] = ()

    chat: bool = False
    date: str = "2025-01-01"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a date that is none."""
        day_of(self.date)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """None: a reply ends where the model ends it."""
        return ()

    @property
    def instructed(self) -> bool:
        return True

    def init_args(self) -> dict[str, Any]:
        return asdict(self)

    def answering_only(self, *, given: bool) -> Self:
        """Itself: it never searches."""
        return self

    def described(self) -> str:
        return 'one message with the passages and the question, and a reply that ends with a line "Answer: ..."'

    def encode_prompt(self, tokenizer: PreTrainedTokenizerBase, question: Question) -> list[int]:
        """Token ids of the message without passages."""
        return self.encode_message(tokenizer, self._asked(question))

    def encode_prompt_with(
        self, tokenizer: PreTrainedTokenizerBase, question: Question, passages: Sequence[Passage], *, max_tokens: int
    ) -> tuple[list[int], int]:
        """Token ids of the message with passages within `max_tokens`, and how many it shows."""
        ids, shown = self.encode_observation(tokenizer, passages, first_number=1, max_tokens=max_tokens)
        return self.encode_message(tokenizer, self._asked(question), before=ids), shown

    def encode_observation(
        self, tokenizer: PreTrainedTokenizerBase, passages: Sequence[Passage], *, first_number: int, max_tokens: int
    ) -> tuple[list[int], int]:
        """Token ids of the passages, and how many are shown. One that does not fit is shortened."""
        said = "Passages:\n" if passages else "Passages: none found\n"
        head, end = (encode(tokenizer, [Piece(text)]) for text in (said, "\n"))
        rows = [
            ([Piece(f"[{number}] ")], Piece(self.neutralise(passage.shown_text), trusted=False), [Piece("\n")])
            for number, passage in enumerate(harmless_passages(tokenizer, passages), start=first_number)
        ]
        ids, shown = fitted(tokenizer, rows, max_tokens - len(head))
        return [*head, *ids, *end], shown

    def parse(self, text: str) -> ParsedTurn:
        """The last line that says something, without "Answer:", as the answer; thoughts before it are none."""
        thought, closed, said = text.rpartition(TagProtocol.think.end)
        if not closed and TagProtocol.think.start in text:
            return ParsedTurn(text.replace(TagProtocol.think.start, "").strip(), None, None)
        lines = [line for line in said.splitlines() if line.strip(" *_#>`$")]
        answer = _LEAD.sub("", lines[-1]).strip() if lines else ""
        return ParsedTurn(thought.replace(TagProtocol.think.start, "").strip(), None, answer or None)

    def _asked(self, question: Question) -> list[Piece]:
        pieces = [Piece("Question: "), Piece(self.neutralise(question.text), trusted=False), Piece("\n")]
        for letter, option in zip(LETTERS, question.options, strict=False):
            pieces += [Piece(f"{letter}) "), Piece(self.neutralise(option), trusted=False), Piece("\n")]
        return [*pieces, Piece("\n" + self.closing(question))]

    def closing(self, question: Question) -> str:
        """What the message says last: how the reply ends."""
        asked = {"list": LIST, "number": NUMBER, "select_all": SELECT_ALL}
        return asked.get(question.form, CHOOSE if question.options else NAME)

    def encode_message(
        self, tokenizer: PreTrainedTokenizerBase, asked: Sequence[Piece], *, before: Sequence[int] = ()
    ) -> list[int]:
        """Token ids of a first message that asks this."""
        ids, begin = [*before, *encode(tokenizer, asked)], list(beginning_of_text(tokenizer))
        if self.chat:
            frame = chat_frame(tokenizer, self.date)
            return [*encode(tokenizer, [Piece(frame.before)]), *ids, *encode(tokenizer, [Piece(frame.after)])]
        return ids if ids[: len(begin)] == begin else begin + ids


def tagged_answers(reply: str) -> list[str]:
    """The texts between answer tags anywhere in a raw reply, in order: ['B'] of "So <Answer>B</Answer>."."""
    return [str(found) for found in _TAGGED_ANSWER.findall(reply)]


def searches(text: str) -> bool:
    """Whether a turn opens a search after its thoughts, closed or not."""
    return TagProtocol.search.start in text.rpartition(TagProtocol.think.end)[2]
