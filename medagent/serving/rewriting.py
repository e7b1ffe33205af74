"""The last question of a conversation, made to stand on its own by rules or by a model.

An agent is trained on single questions. Rules complete three forms: a question with a pronoun ("How is it treated?"), a
thing without its subject ("And the dose?"), and a fragment ("In children?", "And for gout?"). Any other text stays as
it is, behind the subject if it only points back. Earlier answers are not read, so no model steers the next question.

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
from medagent.lazy import packaged
from medagent.pieces import Piece
from medagent.plain_protocol import PlainProtocol
from medagent.policy import Policy, TurnStop
from medagent.protocol import TagProtocol, neutralise

LONGEST_NAME, LONGEST = 100, 8_000  # characters of a fragment or a subject, and of a completed question
_NO_CLAUSE = 7  # words of a fragment


def phrases(file: str, flags: int = 0) -> dict[str, re.Pattern[str]]:
    """The `patterns` of a packaged file, with its `parts` in place of their names in braces."""
    said = packaged("medagent.serving", file)

    def whole(pattern: str) -> str:
        for name, part in said["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        return pattern

    return {name: re.compile(whole(pattern), flags) for name, pattern in said["patterns"].items()}


SAYS = phrases("rewriting.yaml")
_TALK = frozenset(
    "am question thing same again too okay ok before fails failed works worse old years sure so second last".split()
)


def standing_alone(questions: Sequence[str]) -> str:
    """The last of a conversation's questions, with what it leaves unsaid taken from those before it."""
    known = put = questions[0]
    for question in questions[1:]:
        about, put = subject_phrase(known), question
        if about and len(about) <= LONGEST_NAME and len(question) <= LONGEST:
            put = _completed(known, about, question)
            if put == question and _only_points_back(question):
                put = f"About {about}: {question}"
                continue  # the next question is still about what is known
        put = put if len(put) <= LONGEST else question
        known = put if subject_phrase(put) else known
    return put


def _completed(before: str, about: str, question: str) -> str:
    """`question`, with its subject `about` or what it asks for taken from `before`; as it is where no form fits."""
    if len(SAYS["between"].split(question.strip())) > 1:
        return question
    if possessive := SAYS["possessive"].search(question):
        thing = _with(f"the {possessive[1].strip()}", about)
        return _as_question(f"{question[: possessive.start()]}{thing}{question[possessive.end() :]}")
    own, stem = _own_words(question), SAYS["leading"].sub("", question, count=1).strip().rstrip("?!. ")
    plain = stem and len(stem.split()) <= _NO_CLAUSE and len(stem) <= LONGEST_NAME and not SAYS["sentence"].search(stem)
    name = SAYS["preposition"].sub("", stem, count=1)
    led = SAYS["led"].match(question) or len(stem.split()) <= 3
    if plain and led and SAYS["people"].match(name):
        whole = SAYS["whom"].sub("", before.rstrip("?!. "))
        return f"{whole} {'in ' if name == stem else ''}{stem[:1].lower()}{stem[1:]}?"
    asking = SAYS["asking"].match(stem)
    if pointing := SAYS["pointing"].search(question):
        named = set(re.findall(r"\w+", question[: pointing.start()])) & set(own)
        idle = (own and SAYS["idle_it"].search(question)) or (
            SAYS["used"].search(question) and SAYS["treats"].search(before)
        )
        several = (
            pointing[0].lower() in ("they", "them")
            and " and " not in about
            and not SAYS["plural"].match(f"{about} of ")
        )
        fits = asking and not (named or idle or several)
        return _as_question(SAYS["pointing"].sub(lambda _: about, question, count=1)) if fits else question
    if not own and SAYS["thing"].search(stem) and (asking or plain):
        return _as_question(f"{_with(stem, about)}?")
    alone = not SAYS["several"].search(about) or SAYS["described"].search(before)
    kin = name.split()[0].lower() in about.lower().split() if name else True  # "type 1" after "type 2 diabetes"
    asks = SAYS["led"].match(question) or question.rstrip().endswith("?")
    another = plain and own and alone and led and asks and not (kin or asking or asked_for(question))
    return before.replace(about, name, 1) if another else question


def asks_back(questions: Sequence[str], put: str) -> str:
    """What to ask the asker, where `put` is no question that a person would ask; else empty."""
    last, before = questions[-1], standing_alone(questions[:-1]) if len(questions) > 1 else ""
    own = _own_words(SAYS["people"].sub(" ", last))
    if not before or own or put != standing_alone(questions) or SAYS["reply"].match(last):
        return ""
    about = subject_phrase(before) if SAYS["asking"].match(before) or asked_for(before) or before.endswith("?") else ""
    either = SAYS["either"].fullmatch(about) if SAYS["compared"].search(before) else None
    if either and SAYS["one"].search(last):
        return f"Which do you mean: {either[1]} or {either[2]}?"
    kinds = {kind.name for kind in asked_for(last)} - {"cause"}  # "why?" names none
    told = kinds or SAYS["people"].search(last) or re.search(r"\d", last) or put not in (last, f"About {about}: {last}")
    of = f"asks about {about}" if about else "is about"
    return "" if about and told else f"Please ask the whole question: it is unclear what \u201c{last}\u201d {of}."


def _own_words(text: str) -> list[str]:
    """The words by which a text names a subject of its own; numbers and talk are none."""
    words = subject_words(without_kinds(text)).values()
    return [word for word in words if folded(word) not in _TALK and not word.isdigit()]


def _only_points_back(text: str) -> bool:
    """Whether the last sentence of a text names nothing and says "still", or none does and one says "she" or "it"."""
    last, whole = (
        _own_words(SAYS["people"].sub(" ", part)) for part in (SAYS["between"].split(text.strip())[-1], text)
    )
    back = SAYS["back"].search(text) or SAYS["people"].search(text) or asked_for(text)
    return not last and bool(SAYS["again"].search(text) or (not whole and back))


def subject_phrase(question: str) -> str:
    """The words from the first to the last by which a question names its subject; empty where it names none."""
    rest = without_kinds(question)
    described = SAYS["described"].search(question)
    if described:
        return described[0].rstrip("?!. ")
    found = (re.search(rf"(?<!\w){re.escape(word)}(?!\w)", rest) for word in subject_words(rest).values())
    spans = [each.span() for each in found if each]
    if not spans:
        return ""
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    before, following = SAYS["before_name"].search(question[:start]), SAYS["after_name"].match(question[end:])
    return question[before.start() if before else start : end + (following.end() if following else 0)]


def _with(noun: str, about: str) -> str:
    found = SAYS["thing"].search(noun)
    return f"{noun} {'for' if found and found['taken'] else 'of'} {about}"


def _as_question(text: str) -> str:
    """The text without what leads in, as a question: "And the cause of gout?" is "What is the cause of gout?"."""
    plain = SAYS["leading"].sub("", text, count=1)
    if not SAYS["asking"].match(plain) and text.rstrip().endswith("?"):
        low = plain if plain[:2].isupper() else plain[:1].lower() + plain[1:]
        plain = f"What {'are' if SAYS['plural'].match(plain) else 'is'} the {low}"
    return plain[:1].upper() + plain[1:]


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
_SMALL_TALK = frozenset(
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
    """The last of `questions`, completed by the rules of `medagent.serving.rewriting`."""
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
    subject, known = _subject(text), _subject(ruled) - _SMALL_TALK  # what the rules found it to be about
    says_all = (
        all(word in in_order for word in _in_order(last) if word not in _SMALL_TALK)
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
