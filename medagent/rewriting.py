"""The last question of a conversation, made to stand on its own by rules or by a model.

A model rewrites more than rules do, and may also answer, drop a condition or bring in words of its own. So its reply
counts only where it is one line that asks, has every word by which the last question names something, and none that
nobody typed. Otherwise the rules' question is taken (`medagent.conversation`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from medagent.chat_template import beginning_of_text, chat_frame
from medagent.conversation import LONGEST, standing_alone
from medagent.errors import PolicyError
from medagent.evidence.kinds import without_kinds
from medagent.evidence.words import form, forms, subject_words
from medagent.policy import Policy, TurnStop
from medagent.protocol import Piece, TagProtocol, encode, neutralise

log = logging.getLogger("medagent.rewriting")
LONGEST_REPLY = 160  # tokens
AT_ONCE = 8  # questions that one rewriter has at its model at a time
_DATE = "2025-01-01"  # for chat templates that write today's
_HEAD = (
    "Below are the questions of one conversation. Rewrite the last one so that it can be understood without the others."
    " Put in what it refers to, use the words of the conversation, and keep all it says. If it stands alone, repeat it."
    " Do not answer it. Reply with the question alone.\n\n"
)
# Talk that a rewritten question may leave out.
_TALK = frozenset(
    form(word) for word in "sure sorry hm hmm oh ah great nice hello hi hey cool perfect interesting right fine".split()
)
_LEAD = re.compile(r"^(?:(?:rewritten|last|the)\s+)*question:\s*", re.IGNORECASE)


class Rewriter(Protocol):
    """Makes the last question of a conversation stand on its own."""

    async def __call__(self, questions: Sequence[str], policy: Policy) -> str:
        """The last of `questions`, completed. `policy` is the agent's own."""
        ...


class RuleRewriter:
    """By the rules of `medagent.conversation`."""

    async def __call__(self, questions: Sequence[str], policy: Policy) -> str:
        """See `Rewriter`."""
        return standing_alone(questions)


@dataclass
class ModelRewriter:
    """By a model: the agent's own, or `model`. Where it fails, is late or its reply does not count, by the rules.

    The first question of a conversation asks no model.
    """

    model: Policy | None = None
    timeout_s: float = 15.0
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), repr=False)

    async def __call__(self, questions: Sequence[str], policy: Policy) -> str:
        """See `Rewriter`."""
        ruled = standing_alone(questions)
        if len(questions) < 2:
            return ruled
        try:
            async with asyncio.timeout(self.timeout_s):
                reply = await self._reply(questions, self.model or policy)
        except (PolicyError, TimeoutError) as error:
            why = str(error) or f"no reply within {self.timeout_s:g} s"
            log.warning("a follow-up was completed by rules, as the model that rewrites failed: %s", why)
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
    """Token ids that ask to rewrite the last of `questions`. What people typed has no special tokens."""
    pieces = [Piece(_HEAD)]
    for number, question in enumerate(questions, start=1):
        mark = "Last question" if number == len(questions) else f"Question {number}"
        pieces += [Piece(f"{mark}: "), Piece(neutralise(question), trusted=False), Piece("\n")]
    ids = encode(tokenizer, [*pieces, Piece("\nRewritten question:")])
    if not tokenizer.chat_template:
        return [*beginning_of_text(tokenizer), *ids]
    frame = chat_frame(tokenizer, _DATE)
    return [*encode(tokenizer, [Piece(frame.before)]), *ids, *encode(tokenizer, [Piece(frame.after)])]


def accepted(reply: str, questions: Sequence[str]) -> str:
    """The question that a reply consists of, where it says what the conversation does; else empty.

    >>> asked = ["What causes gout?", "And how is it treated in children?"]
    >>> accepted("How is gout treated in children?", asked)
    'How is gout treated in children?'
    >>> accepted("How is gout treated?", asked), accepted("How is gout treated in children with asthma?", asked)
    ('', '')
    """
    text = reply.rpartition(TagProtocol.think.end)[2].strip()
    text = _LEAD.sub("", text).strip(" \"'\u201c\u201d*")
    asks = text.endswith("?") or not questions[-1].rstrip().endswith("?")
    if not text or "\n" in text or len(text) > LONGEST or not asks:
        return ""
    typed, written = forms(" ".join(questions)), forms(text)
    new = subject_words(without_kinds(text)).keys() - typed
    lost = subject_words(without_kinds(questions[-1])).keys() - written - _TALK
    return "" if new or lost else text
