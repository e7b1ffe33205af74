"""The answer style `lines`: the agent names numbered sentences, and the program prints them as the documents have them.

Such an answer cannot be forged: every word of it stands in the passage that it cites. `LinesProtocol` is for agents
that search and are trained, `PlainLinesProtocol` for models that were not trained (`--prompting lines`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from medagent.pieces import Piece
from medagent.plain_protocol import PlainProtocol
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.chunking import sentence_spans
from medagent.retrieval.passages import Passage
from medagent.types import LETTERS, Question

MOST_LINES = 3  # sentences of an answer; further ones are left out
SHORTEST = 3  # words; what is shorter belongs to the sentence before it
_LIST = r"((?:\d{1,3}\b|(?:and|or|to)\b|[^\w.\[\]]|\.(?!\d))+)"  # numbers and what stands between them, but no "1.5"
_LISTS = rf"\[{_LIST}\]", rf"(?i)(?<!-)\b(?:sentence|line|number|answer)s?:? {_LIST}", rf"(?i)^{_LIST}$"
_NONE = re.compile(r"\W*none\W*", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:(?: ?[-\u2013] ?| to )(\d+))?")

_THINK, _SEARCH, _ANSWER = (
    block.around(said)
    for block, said in ((TagProtocol.think, "..."), (TagProtocol.search, "your query"), (TagProtocol.answer, "[4]"))
)
_ENDS = f"""answer with the numbers of one to three sentences that answer the question, like {_ANSWER}."""
INSTRUCTIONS = f"""You answer medical questions with sentences of a medical corpus. In each turn think inside \
{_THINK}, then do exactly one of two things: search with {_SEARCH}, or {_ENDS} In the search results each sentence \
ends with its number in brackets, like [4]. Search as often as you need."""
GIVEN = f"""You answer medical questions with sentences of search results, which are already given. Each sentence ends \
with its number in brackets, like [4]. Think inside {_THINK}, then {_ENDS}"""
CHOOSE = (
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

    def line_with(self, wording: str, number: int, passages: Sequence[Passage]) -> int:
        """The number of the first sentence of passage `number` that has a wording; of its first one, if none has."""
        lines = sentences_of(passages[number - 1])
        at = next((at for at, line in enumerate(lines) if wording.lower() in line.lower()), 0)
        return self.num_numbers(passages[: number - 1]) + at + 1


def _holds(text: str, option: str) -> bool:
    """Whether a text has an option's words, one after the other."""
    return bool(re.search(rf"(?<!\w){re.escape(' '.join(option.split()))}(?!\w)", text, re.IGNORECASE))


@dataclass(frozen=True)
class LinesProtocol(NumberedLines, TagProtocol):
    """The packaged agents' tags, with a number after each sentence and an answer that names numbers."""

    instructions: str = INSTRUCTIONS

    def prompt(self, question: Question) -> list[Piece]:
        """See `TagProtocol.prompt`. Whatever the question's form, the answer is numbers."""
        return super().prompt(replace(question, form="text"))

    def answering_only(self, *, given: bool) -> "LinesProtocol":
        """See `TurnProtocol.answering_only`; without search results there are no lines to name."""
        return replace(self, instructions=GIVEN) if self.instructions and given else self


@dataclass(frozen=True)
class PlainLinesProtocol(NumberedLines, PlainProtocol):
    """One message with numbered sentences and the question, and a reply whose last line names numbers."""

    def described(self) -> str:
        return 'one message with numbered sentences and the question, and a reply that ends with "Answer: [..]"'

    def closing(self, question: Question) -> str:
        return CHOOSE

    def written_answer(self, said: str, passages: Sequence[Passage], question: Question) -> str | None:
        """See `NumberedLines.written_answer`. "None" abstains, as the message offers."""
        return "none" if _NONE.fullmatch(said) else super().written_answer(said, passages, question)
