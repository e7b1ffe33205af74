r"""Reads the option that a text names, twice: strictly (the reward, the column to trust) and leniently; never a default letter.

Strict: one well-formed answer that names one option. That is "(B)", "B", "B. text" or "text (B)" by itself, or as the value of an answer
field of a JSON reply ({"answer_choice": "B"}), where all answer fields agree. Lenient takes besides: the last of several answers, statements
such as "the answer is B" or \boxed{B}, a letter in parentheses or an option's own text in the last sentence. A single answer that names several
options ("A or C") is no answer in either column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from medagent.protocol import marked_letters


class Outcome(StrEnum):
    """What an answer is, whether or not it is right."""

    ANSWERED = "answered"
    UNPARSED = "unparsed"  # names no option
    MULTIPLE = "multiple"  # names several at once
    ABSTAINED = "abstained"  # declines to choose, or says that no option is right
    TRUNCATED = "truncated"  # cut off before its answer


@dataclass(frozen=True)
class Reading:
    """The option named, strictly and leniently (None where there is none), and the outcome of the strict reading."""

    strict: str | None
    lenient: str | None
    outcome: Outcome


_END = r"(?=[.:),;/]|\s+(?:or|and)\b|\s*$)"
_FIRST_LETTER = re.compile(r"^([A-J])(?=[.:),;/]|\s+(?:or|and)\b)")
_NEXT_LETTER = re.compile(r"(?:\bor\s+|\band\s+|[,;/]\s*)([A-J])" + _END)
_FIELD = re.compile(
    r"""["'](?:answer_choice|answer_idx|final_answer|answer|choice|option|letter)["']\s*:\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|\[\s*"([^"\]]*)"\s*\]|([^,}\n]*))""",
    re.IGNORECASE,
)
# "A" and "I" are words too: they count only where no plain word follows.
_STATEMENT = re.compile(
    r"(?:\b(?:answer|choice|option)\b(?:\s+choice)?\s*(?:is|would be|should be|must be|:|=)\s*(?:most likely|likely|therefore|clearly|probably)?"
    r"\s*(?:option|choice)?\s*[:\"'*(\[]*|\\boxed\{\s*\(?)"
    r"(?-i:([B-HJ]|[AI](?!\s+(?!because|since|as|and|or|due|which|given|but|for)[a-z]))(?![\w']))",
    re.IGNORECASE,
)
_AND_ANOTHER = re.compile(r"\s*(?:\bor\b|\band\b|[,/&])\s*\(?[A-J](?![\w'])")
_ABSTENTION = re.compile(
    r"""^\W*(?:n/?a|none|unknown|unanswerable|not\ sure)\W*$
    | \bnone\ of\ (?:the|these|those)\b | \bno\ (?:(?:correct|definitive|single|suitable)\ )?(?:answer|option|choice)\b
    | \b(?:unable|impossible|not\ possible|not\ able|insufficient|inconclusive|abstain)\b
    | \b(?:can(?:not|'t|\ not)|could\ not|couldn't)\b.{0,40}\b(?:answer|determine|choose|select|decide|conclude|say|infer)
    | \bnot\ (?:\w+\ ){0,2}(?:provided?|available|enough|sufficient|listed|mentioned|clear|specified|given|contain|applicable|correspond)
    | \b(?:incomplete|missing|error\ in)\b | \bi\ (?:do\ not|don't)\ know\b""",
    re.IGNORECASE | re.VERBOSE,
)
_NEGATED = re.compile(r"\b(?:not|no|never|except|rather than|unlikely|without|excludes?|rules? out)\b", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z(\"'])")
_ARTICLE = re.compile(r"^(a|an|the) ")
_PUNCTUATION = re.compile(r"[^\w\s+<>=%.-]|(?<![\w])[.-](?!\w)|\.(?!\d)|(?<!\w)-(?=\D)")
_SHORT = 150  # characters of an answer by itself; a longer text is a reply with reasoning in it


def normalise(text: str) -> str:
    """Lower case without a leading article, punctuation and extra space.

    Like SQuAD's normalisation (arXiv 1606.05250), but signs that carry meaning beside letters or digits stay: "Rh+" is not "Rh-".
    """
    plain = _PUNCTUATION.sub(" ", text.lower())
    return _ARTICLE.sub("", " ".join(plain.split()))


def letters_named(answer: str, letters: str) -> set[str]:
    """Every letter that a short answer marks as its choice.

    Marks: a letter in parentheses anywhere ("doxycycline (B) [1]"), a bare letter with ".", ")", ":" or in an enumeration at the start
    ("B. doxycycline", "A/B", "A or C", "A. iron, C. zinc"), or a letter alone.
    """
    text = answer.strip()
    named = set(marked_letters(text))
    if first := _FIRST_LETTER.match(text):
        named |= {first[1], *_NEXT_LETTER.findall(text)}
    if not named and len(text) == 1 and text in letters:
        named = {text}
    return named


def read_answer(answer: str, letters: str, options: Sequence[str] = ()) -> Reading:
    """Read a short answer: the contents of answer tags, or of a field.

    >>> read_answer("B. or C.", "ABCD").outcome.value
    'multiple'
    """
    text = answer.strip()
    named = letters_named(text, letters)
    if len(named) == 1 and named <= set(letters):
        letter = named.pop()
        return Reading(letter, letter, Outcome.ANSWERED)
    if len(named) > 1:
        return Reading(None, None, Outcome.MULTIPLE)
    lenient = _statement(text, letters) or _by_option_text(text, letters, options)
    if lenient is None and _ABSTENTION.search(text):
        return Reading(None, None, Outcome.ABSTAINED)
    return Reading(None, lenient, Outcome.UNPARSED)


def read_reply(reply: str, letters: str, options: Sequence[str] = ()) -> Reading:
    """Read a whole reply of a model: its answer tags or the answer fields of JSON in it where there are any, else the reply itself.

    >>> read_reply('So the answer is {"reason": "...", "answer_choice": "C. zinc"}', "ABCD").strict
    'C'
    """
    values = _TAGGED.findall(reply) or [
        next((value for value in match.groups() if value is not None), "") for match in _FIELD.finditer(reply)
    ]
    if values:
        readings = [read_answer(value.strip(" \"'"), letters, options) for value in values]
        last = readings[-1]
        if len({reading.strict for reading in readings}) > 1:
            return Reading(None, last.lenient, Outcome.MULTIPLE)
        return last
    text = reply.strip()
    if len(text) <= _SHORT and (reading := read_answer(text, letters, options)).outcome is not Outcome.UNPARSED:
        return reading
    if _cut_off(text):
        return Reading(None, None, Outcome.TRUNCATED)
    sentence = _SENTENCE.split(text)[-1]
    lenient = _statement(text, letters) or _single(marked_letters(sentence), letters)
    lenient = lenient or _by_option_text(sentence, letters, options)
    if lenient is None and _ABSTENTION.search(sentence):
        return Reading(None, None, Outcome.ABSTAINED)
    return Reading(None, lenient, Outcome.UNPARSED)


def _statement(text: str, letters: str) -> str | None:
    """The letter of the last sentence of the kind "the answer is B"."""
    found = [match for match in _STATEMENT.finditer(text) if match[1] in letters]
    return found[-1][1] if found and not _AND_ANOTHER.match(text, found[-1].end()) else None


def _single(named: Sequence[str], letters: str) -> str | None:
    return named[0] if len(named) == 1 and named[0] in letters else None


def _by_option_text(text: str, letters: str, options: Sequence[str]) -> str | None:
    """The option whose text this is; or the one whose text occurs in it, where it is not negated and no other occurs beside it."""
    plain = normalise(re.sub(r"\[\d+\]", " ", text))
    wordings = {letter: normalise(option) for letter, option in zip(letters, options, strict=False)}
    same = [letter for letter, wording in wordings.items() if wording and wording == plain]
    if same or _NEGATED.search(text):
        return same[0] if len(same) == 1 else None
    inside = {
        letter: wording
        for letter, wording in wordings.items()
        if wording and re.search(rf"(?<!\w){re.escape(wording)}(?!\w)", plain)
    }
    # "iron deficiency anemia" also contains the option "anemia": the longer one is meant.
    whole = [
        a for a, text_a in inside.items() if not any(text_a != other and text_a in other for other in inside.values())
    ]
    return whole[0] if len(whole) == 1 else None


def _cut_off(text: str) -> bool:
    """Whether a JSON object was begun and not ended."""
    return text.count("{") > text.count("}")
