"""The last question of a conversation, made to stand on its own by rules or by a model.

A model's reply counts only if it is one line that asks for the same kind of thing, with every name, number and denial
of the last question in their order, and with none that nobody typed. Otherwise the question of the rules is taken.
"""

import asyncio
import logging
import re
import unicodedata
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.evidence.sentences import denies
from medagent.evidence.words import asked_for, folded, form, forms, subject_words, without_kinds
from medagent.pieces import Piece
from medagent.plain_protocol import PlainProtocol
from medagent.policy import Policy, TurnStop
from medagent.protocol import TagProtocol, neutralise
from medagent.serving.conversation import LONGEST, standing_alone

log = logging.getLogger("medagent.serving.rewriting")
LONGEST_REPLY = 160  # tokens
AT_ONCE = 8  # questions that one rewriter has at its model at a time
DATE = "2025-01-01"  # for chat templates that write today's
_HEAD = (
    "Below are the questions of one conversation. Rewrite the last one so that it can be understood without the others."
    " Put in what it refers to, use the words of the conversation, and keep all it says. If it stands alone, repeat it."
    " Do not answer it. Reply with the question alone.\n\n"
)
# Talk that a rewritten question may leave out.
_TALK = frozenset(
    form(word) for word in "sure sorry hm hmm oh ah great nice hello hi hey cool perfect interesting right fine".split()
)
_ORDERING = frozenset("before after with without not than versus if unless during".split())
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CONTROL = frozenset({"Cc", "Cf", "Zl", "Zp"})
_LEAD = re.compile(r"^(?:(?:rewritten|last|the)\s+)*question:\s*", re.IGNORECASE)


Rewriter = Callable[[Sequence[str], Policy], Coroutine[Any, Any, str]]
"""Makes the last question of a conversation stand on its own, with the agent's policy."""


async def rewrite_by_rules(questions: Sequence[str], policy: Policy) -> str:
    """The last of `questions`, completed by the rules of `medagent.serving.conversation`."""
    return standing_alone(questions)


@dataclass
class ModelRewriter:
    """By a model: the agent's own, or `model`. If it fails, is late or its reply does not count, rules do."""

    model: Policy | None = None
    timeout_s: float = 15.0
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), repr=False)

    async def __call__(self, questions: Sequence[str], policy: Policy) -> str:
        """The last of `questions`, completed."""
        ruled = standing_alone(questions)
        if len(questions) < 2:
            return ruled
        try:
            async with asyncio.timeout(self.timeout_s):
                reply = await self._reply(questions, self.model or policy)
        except TimeoutError:
            log.warning("a follow-up was completed by rules: the model had not replied within %g s.", self.timeout_s)
            return ruled
        except Exception as error:  # an engine's own too
            # The error's text may repeat what was asked.
            told = f"{type(error).__name__}, status {getattr(error, 'status', 'unknown')}"
            log.warning("a follow-up was completed by rules: the model failed (%s).", told)
            return ruled
        return accepted(reply, questions) or ruled

    async def _reply(self, questions: Sequence[str], model: Policy) -> str:
        async with self._places:
            session = model.open(seed=0, temperature=0.0, blocks=())
            try:
                session.append(prompt(model.tokenizer, questions))
                turn = await session.sample(max_tokens=LONGEST_REPLY)
            finally:
                session.close()
        return "" if turn.stop is TurnStop.LENGTH else turn.text


def prompt(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str]) -> list[int]:
    """Token ids that ask to rewrite the last of `questions`. Text that people typed gets no special tokens."""
    pieces = [Piece(_HEAD)]
    for number, question in enumerate(questions, start=1):
        mark = "Last question" if number == len(questions) else f"Question {number}"
        pieces += [Piece(f"{mark}: "), Piece(neutralise(question), trusted=False), Piece("\n")]
    asked = [*pieces, Piece("\nRewritten question:")]
    return PlainProtocol(chat=bool(tokenizer.chat_template), date=DATE).encode_message(tokenizer, asked)


def accepted(reply: str, questions: Sequence[str]) -> str:
    """The question in a reply, if it says what the conversation does; else empty."""
    last, ruled, typed = questions[-1], standing_alone(questions), " ".join(questions)
    text = _LEAD.sub("", reply.rpartition(TagProtocol.think.end)[2].strip()).strip(" \"'\u201c\u201d*")
    if not text or len(text) > LONGEST or any(unicodedata.category(character) in _CONTROL for character in text):
        return ""
    asks = text.endswith("?") or not (last.rstrip().endswith("?") or text.lower().split()[0] != last.lower().split()[0])
    in_order, numbers = iter(_in_order(text)), _NUMBER.findall(text)
    rest = iter(numbers)
    subject, known = _subject(text), _subject(ruled) - _TALK  # what the rules found it to be about
    says_all = (
        all(word in in_order for word in _in_order(last) if word not in _TALK)
        and all(number in rest for number in _NUMBER.findall(last))
        and known <= forms(text)
        and denies(text) == denies(last)
    )
    kinds, same = ({kind.name for kind in asked_for(each)} for each in (text, ruled))
    new = subject - forms(typed) - {"not"} or set(numbers) - set(_NUMBER.findall(typed))  # denials are compared already
    return text if asks and says_all and not new and (kinds == same or not same) else ""


def _subject(text: str) -> set[str]:
    return set(subject_words(without_kinds(text)))


def _in_order(text: str) -> list[str]:
    """The forms of a text's words that must stay in their order: names, and words such as "before"."""
    subject, words = _subject(text), (found.lower() for found in _WORD.findall(text))
    ordering = ((form(folded(word)), word) for word in words)
    return [f"-{low}" if low in _ORDERING else each for each, low in ordering if low in _ORDERING or each in subject]
