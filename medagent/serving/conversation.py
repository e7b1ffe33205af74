"""The last question of a conversation, made to stand on its own.

An agent is trained on single questions. Rules complete it by words: "And how is it treated?" after a question on
gout becomes "And how is gout treated?". A question that names its own subject and asks for something stays as it is.
Earlier answers are not read, so nothing that a model said can steer the next question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from medagent.evidence.words import asked_for, folded, subject_words, without_kinds

_NOUN = r"(?:disease|condition|disorder|illness|syndrome|infection|one)"
_OWN = r"(?:whose|that|which|who|caused|with|in which|where|called|named)"
_POINTING = re.compile(  # "IT band" is a name, so capitals count
    rf"\b(?:[Tt]his|[Tt]hat|[Tt]he same|[Tt]he|[Tt]hese|[Tt]hose) {_NOUN}s?\b(?! {_OWN}\b)"
    r"|\b(?:[Ii]t|[Tt]hey|[Tt]hem)\b(?!['\u2019])"
    r"|\b(?:[Tt]his|[Tt]hat|[Tt]hese|[Tt]hose)"
    r"(?=\s*(?:[?.!,]|$|caused|treated|diagnosed|confirmed|inherited|prevented))"
)
_POSSESSIVE = re.compile(r"\b(?:its|their)[ ]((?:[\w-]{1,40}[ ]?){1,5}?)(?=\s*(?:[?.!,]|$))", re.IGNORECASE)
_IDLE_IT = re.compile(  # "is it safe", where "it" stands for nothing
    r"\b(?:is|was|would) it (?:safe|ok|okay|possible|normal|true|necessary|dangerous|bad|good|better|advisable)\b"
    r"|\bit (?:takes?|is (?:safe|possible|normal|true|likely|known))\b|\bdoes it take\b",
    re.IGNORECASE,
)
_LEADING = re.compile(
    r"^\W{0,5}(?:(?:and|or|but|ok|okay|so|then|now|also|thanks|thank you)\b[\s,]{0,3}){0,4}"
    r"(?:what about|how about|same (?:question|thing)|the same)?[\s,]{0,3}",
    re.IGNORECASE,
)
_LED = re.compile(r"^\W{0,5}(?:and|or|but|what about|how about|same|the same|also|in|for|with|during)\b", re.IGNORECASE)
_PREPOSITION = re.compile(r"^(?:in|for|with|of|about|during)\s+", re.IGNORECASE)
_PEOPLE = (
    r"(?:(?:an?|the|my|very|severe|pre-?existing)\s+)?"
    r"(?:children|child|adults?|adolescents?|infants?|newborns?|neonates?|"
    r"babies|toddlers?|elderly|older (?:people|adults|patients)|men|women|pregnan\w+|breast-?feeding|lactation|"
    r"(?:renal|kidney|hepatic|liver) (?:failure|impairment|disease)|allerg\w+|diabetics|smokers|athletes)\b"
)
# They add to a question, and are no subject of their own.
_WHOM = re.compile(rf"^(?:(?:in|for|with|during|while)\s+)?{_PEOPLE}", re.IGNORECASE)
_AT_END = re.compile(rf"\s+(?:in|for|with|during|while)\s+{_PEOPLE}[^?]*$", re.IGNORECASE)
_SENTENCE = re.compile(  # a fragment has no verb of its own
    r"\b(?:i|you|we|he|she|is|are|am|was|were|do|does|did|can|could|should|would|will|have|has|had|tell|give|"
    r"explain|meant|mean|help(?:ed|s)?|last|lasts|feel|need|want)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_DESCRIBED = re.compile(rf"\bthe {_NOUN} {_OWN}\b.*", re.IGNORECASE)
_AFTER_NAME = re.compile(rf"^(?:\s+(?:{_NOUN}|toxicity|type \d+|[A-Z]\b|\d+))+")
_BEFORE_NAME = re.compile(r"\b(?:primary|common|classic|underlying) $", re.IGNORECASE)
_TAKES_FOR = re.compile(
    r"\b(?:drug|test|treatment|therapy|medicine|medication|dose|choice|screening)s?$", re.IGNORECASE
)
_SEVERAL = re.compile(r"\b(?:with|in|of|and|or|for|during)\b", re.IGNORECASE)
_ASKING = re.compile(r"(?:what|which|how|why|who|when|where|is|are|does|do|can|could|should)\b", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:the|a|an)\b", re.IGNORECASE)
_NO_CLAUSE, LONGEST_NAME = 7, 100  # words of a fragment, and characters
LONGEST = 8_000  # characters that a completed question may have
_WORDS_OF_ASKING = frozenset("same question thing".split())


def standing_alone(questions: Sequence[str]) -> str:
    """The last of a conversation's questions, with what it leaves unsaid taken from those before it."""
    known = questions[0]
    for question in questions[1:]:
        about, completed = subject_phrase(known), question
        if about and len(about) <= LONGEST_NAME and len(question) <= LONGEST:
            completed = _completed(known, about, question)
        known = completed if len(completed) <= LONGEST else question
    return known


def _completed(before: str, about: str, question: str) -> str:
    """`question`, with its subject `about` or what it asks for taken from `before`."""
    own = [word for word in subject_words(without_kinds(question)).values() if folded(word) not in _WORDS_OF_ASKING]
    fragment = _LEADING.sub("", question, count=1).strip().rstrip("?!. ")
    short = 0 < len(fragment.split()) <= _NO_CLAUSE and len(fragment) <= LONGEST_NAME
    plain = short and not _ASKING.match(fragment) and not _SENTENCE.search(fragment)
    if plain and _WHOM.match(fragment) and (_LED.match(question) or len(fragment.split()) <= 3):
        head = "" if _PREPOSITION.match(fragment) else "in "
        whole = _AT_END.sub("", before.rstrip("?!. "))
        return f"{whole} {head}{fragment[:1].lower()}{fragment[1:]}?"
    pointing = _POINTING.search(question) or _POSSESSIVE.search(question)
    if pointing:  # a name before the pronoun is what that stands for
        earlier = set(re.findall(r"\w+", question[: pointing.start()]))
        if not earlier & set(own) and not (own and _IDLE_IT.search(question)):
            return _with_subject(question, about)
    if not own and asked_for(question):
        stem = question.strip().rstrip("?!. ")
        return _as_question(f"{stem} {_preposition(stem)} {about}?")
    name = _PREPOSITION.sub("", fragment, count=1)
    alone = not _SEVERAL.search(about) or _DESCRIBED.search(before)
    led = _LED.match(question) or (len(name.split()) <= 3 and question.rstrip().endswith("?"))
    kin = name.split()[0].lower() in about.lower().split() if name else True  # "type 1" after "type 2 diabetes"
    if plain and own and alone and led and not kin and not asked_for(question):
        return before.replace(about, name, 1)
    return question


def subject_phrase(question: str) -> str:
    """The words from the first to the last by which a question names its subject; empty where it names none."""
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


def _preposition(noun: str) -> str:
    return "for" if _TAKES_FOR.search(noun) else "of"


def _as_question(text: str) -> str:
    """The text without what leads in, as a question: "And the cause of gout?" is "What is the cause of gout?"."""
    plain = _LEADING.sub("", text, count=1)
    if not _ASKING.match(plain) and len(plain.split()) <= 2 * _NO_CLAUSE and plain.rstrip().endswith("?"):
        article = "" if _ARTICLE.match(plain) else "the "
        plain = f"What is {article}{plain}"
    return plain[:1].upper() + plain[1:]
