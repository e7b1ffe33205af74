"""The last question of a conversation, made to stand on its own.

An agent is trained on single questions. Rules by words do what they can: "And how is it treated?" after a question on
gout becomes "And how is gout treated?". A question that names its own subject and asks for something stays as it is.
What was answered is not read, so nothing that a model said can steer the next question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from medagent.evidence.kinds import asked_for, without_kinds
from medagent.evidence.words import folded, subject_words

_NOUN = r"(?:disease|condition|disorder|illness|syndrome|infection|one)"
_OWN = r"(?:whose|that|which|who|caused|with|in which|where|called|named)"
_POINTING = re.compile(
    rf"\b(?:this|that|the same|the|these|those) {_NOUN}s?\b(?! {_OWN}\b)|\b(?:it|they|them)\b(?!['\u2019])"
    rf"|\b(?:this|that|these|those)(?=\s*(?:[?.!,]|$|caused|treated|diagnosed|confirmed|inherited|common|prevented))",
    re.IGNORECASE,
)
_POSSESSIVE = re.compile(
    r"\b(?:its|their|the (?:disease|condition)['\u2019]s)\s+((?:[\w-]+\s*){1,5}?)(?=\s*(?:[?.!,]|$))", re.I
)
_IDLE_IT = re.compile(  # "is it safe", where "it" stands for nothing
    r"\b(?:is|was|would) it (?:safe|ok|okay|possible|normal|true|necessary|dangerous|bad|good|better|advisable)\b"
    r"|\bit (?:takes?|is (?:safe|possible|normal|true|likely|known))\b|\bdoes it take\b",
    re.IGNORECASE,
)
_LEADING = re.compile(
    r"^\W*(?:(?:and|or|but|ok|okay|so|then|now|also|thanks|thank you)\b[\s,]*)*"
    r"(?:what about|how about|same (?:question|thing)|the same)?[\s,]*(?:(?:in|for|with|of|about)\b\s*)?",
    re.IGNORECASE,
)
_DESCRIBED = re.compile(rf"\bthe {_NOUN} {_OWN}\b.*", re.IGNORECASE)
_AFTER_NAME = re.compile(rf"^(?:\s+(?:{_NOUN}|toxicity|type \d+|[A-Z]\b|\d+))+")
_BEFORE_NAME = re.compile(r"\b(?:primary|common|classic|underlying) $", re.IGNORECASE)
_TAKES_FOR = re.compile(
    r"\b(?:drug|test|treatment|therapy|medicine|medication|dose|choice|screening)s?$", re.IGNORECASE
)
_ASKING = re.compile(r"(?:what|which|how|why|who|when|where|is|are|does|do|can|could|should)\b", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:the|a|an)\b", re.IGNORECASE)
_NO_CLAUSE = 7  # words of a follow-up that is no sentence of its own
_WORDS_OF_ASKING = frozenset("same question thing".split())


def standing_alone(questions: Sequence[str]) -> str:
    """The last of a conversation's questions, with what it leaves unsaid taken from those before it.

    >>> standing_alone(["What is the cause of gout?", "How is it treated?", "And pseudogout?"])
    'How is pseudogout treated?'
    """
    known = questions[0]
    for question in questions[1:]:
        known = _completed(known, question)
    return known


def _completed(before: str, question: str) -> str:
    """`question`, with its subject or what it asks for taken from `before`."""
    about = subject_phrase(before)
    own = [word for word in subject_words(without_kinds(question)).values() if folded(word) not in _WORDS_OF_ASKING]
    points = bool(_POINTING.search(question) or _POSSESSIVE.search(question))
    if about and points and not (own and _IDLE_IT.search(question)):
        return _with_subject(question, about)
    asks = bool(asked_for(question))
    if not own and asks and about:
        return _of_subject(question, about)
    if own and not asks and about and len(question.split()) <= _NO_CLAUSE:
        new = _LEADING.sub("", question).strip().rstrip("?!. ")
        return before.replace(about, new) if new else question
    return question


def subject_phrase(question: str) -> str:
    """The words from the first to the last by which a question names its subject; empty where it names none.

    >>> subject_phrase("Which drug is used first to treat Whipple disease?")
    'Whipple disease'
    """
    rest = without_kinds(question)
    described = _DESCRIBED.search(question)
    if described:
        end = max((described.start() + found.end() for found in re.finditer(r"\w+", described[0])), default=0)
        return question[described.start() : end]
    spans = []
    for word in subject_words(rest).values():
        found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", rest)
        if found:
            spans.append(found.span())
    if not spans:
        return ""
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    before, following = _BEFORE_NAME.search(question[:start]), _AFTER_NAME.match(question[end:])
    return question[before.start() if before else start : end + (following.end() if following else 0)]


def _with_subject(question: str, about: str) -> str:
    """The question with its first pronoun replaced: "its cause" becomes "the cause of gout"."""
    possessive = _POSSESSIVE.search(question)
    if possessive:
        noun = possessive[1].strip()
        named = f"the {noun} {_preposition(noun)} {about}"
        return _as_question(f"{question[: possessive.start()]}{named}{question[possessive.end() :]}")
    return _as_question(_POINTING.sub(lambda _: about, question, count=1))


def _of_subject(question: str, about: str) -> str:
    """The question with its subject at its end: "And the treatment?" becomes "What is the treatment for gout?"."""
    plain = question.strip().rstrip("?!. ")
    return _as_question(f"{plain} {_preposition(plain)} {about}?")


def _preposition(noun: str) -> str:
    return "for" if _TAKES_FOR.search(noun) else "of"


def _as_question(text: str) -> str:
    """The text without what leads in, as a question: "And the cause of gout?" is "What is the cause of gout?"."""
    plain = _LEADING.sub("", text)
    if not _ASKING.match(plain) and len(plain.split()) <= 2 * _NO_CLAUSE and plain.rstrip().endswith("?"):
        article = "" if _ARTICLE.match(plain) else "the "
        plain = f"What is {article}{plain}"
    return plain[:1].upper() + plain[1:]
