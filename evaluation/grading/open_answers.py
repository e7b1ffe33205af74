"""How open answers are compared: exact match, token F1, containment and list measures over one normalisation.

`answer_tokens` begins from SQuAD's normalisation (arXiv 1606.05250): lower case, no punctuation, no articles, split at
white space. It departs from it where SQuAD would call two medical answers the same, or one answer two:

- A decimal point stays, so "2.5 mg" is not "25 mg", and ".5" is "0.5". A comma between digits stays too, except before
  three digits: "1,000" is "1000".
- A sign stays at a word's end or before a digit ("Rh+", "CD4-", "-5"), and so do %, <, >, <= and >= beside a number.
- A hyphen, slash or colon between digits stays: "3-5 days" are not "35 days".
- The article "a" is dropped at the beginning alone, so "hepatitis A" is not "hepatitis".
- A number and its unit are two words: "5mg" is "5 mg".
- Beyond ASCII: compatibility forms are resolved (NFKC), dashes become hyphens, Greek letters are named.
  A raised figure after a figure is a power: "10^3".

Hyphens inside a word are punctuation, as in SQuAD: "PD-1" is "PD1". A hyphen between letters is a space if the
other answer has a space there: "next-generation" is "next generation". SQuAD's own tokens are in `open_measures`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from medagent.answer_forms import MAX_RANKED, entries, without_citations
from medagent.evaluation.grading.option_named import ABSTENTION
from medagent.evidence.words import word_list
from medagent.types import Question

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"), "-")
_SIGNS = str.maketrans({**_DASHES, 0x2044: "/", 0x2264: "<=", 0x2265: ">=", 0x2A7D: "<=", 0x2A7E: ">="})
_FRACTION = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_POWER = re.compile(r"(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207b])")
_UNITS = (
    "%|mg|g|kg|mcg|ug|ng|pg|ml|dl|l|ul|cm|mm|nm|mmol|umol|nmol|mol|meq|iu|u|kda|bp|kb|mb|hz|h|hr|hrs|min|days?"
    "|weeks?|months?|years?|mmhg|kcal"
)
_JOINED = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?)({_UNITS})(?![\w])")
_MICRO = re.compile(r"[\u00b5\u03bc](?=(?:[glm]|mol)\b)", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NO_ZERO = re.compile(r"(?<![\w.])\.(?=\d)")
_COMPARED = re.compile(r"([<>]=?)\s+(?=[\d-])")
_PLAIN = re.compile(
    r"(?<=\d)[.,/:-](?=\d)|(?<=\d)\^(?=-?\d)|(?<=[<>])="  # 2.5, 120/80, 1:100, 3-5; 10^3; <=
    r"|(?<=\w)[+-](?![\w+-])|(?<=[+-])[+-](?!\w)"  # Rh+, Ca++
    r"|(?<![\w+-])[+-](?=\d)"  # -5
    r"|(?<=\d)\s?%|[<>](?=\s?[=\d])"
    r"|[\w\s]"
)
LONGEST_ABSTENTION = 150  # characters; a longer text says something
_HYPHENATED = re.compile(r"(?<![^\W\d_])[^\W\d_]+(?:-[^\W\d_]+)+")
_LEADING = re.compile(r"^\s*a\s+(?=\S)")
_ARTICLES = re.compile(r"(?<!\S)(?:an|the)(?!\S)")
_DENIED = word_list("denied")
_UNKNOWING = re.compile(
    r"(?i)(?:i|we)\s+(?:do\s+not|don't|cannot|can't|could\s+not|couldn't)\s+(?:know|tell|say|find|answer)\b"
    r"|(?:(?:it\s+is|was|were)\s+)?not\s+(?:known|found|available|reported)\W*$"
    r"|no\s+(?:answer|passage|evidence)\b.*found"
)
_SEVERAL = re.compile(r"[;\n/|&]|\b(?:or|and|plus|versus|vs|either)\b", re.IGNORECASE)
_NO_ABSTENTION = re.compile(r"\bnot otherwise specified\b", re.IGNORECASE)  # a part of diagnoses


def folded(text: str) -> str:
    """The text with what lies beyond ASCII resolved: NFKC, plain dashes, named Greek letters, nothing invisible."""
    if text.isascii():
        return text
    plain = _POWER.sub("^", _FRACTION.sub(" ", _MICRO.sub("u", text)))
    plain = unicodedata.normalize("NFKC", plain).translate(_SIGNS)
    return "".join(_named(sign) for sign in plain if unicodedata.category(sign) not in ("Cf", "Mn"))


def _named(sign: str) -> str:
    name = unicodedata.name(sign, "")
    if not name.startswith("GREEK ") or " LETTER " not in name:
        return sign
    word = name.split(" LETTER ")[1].split(" WITH ")[0].removeprefix("FINAL ").lower().replace("lamda", "lambda")
    return word if name.startswith("GREEK SMALL") else word.capitalize()


def answer_tokens(text: str) -> list[str]:
    """The words by which open answers are compared; the module's text gives the rules.

    >>> answer_tokens("The PD\N{HYPHEN}1 pathway, 2.5mg")
    ['pd1', 'pathway', '2.5', 'mg']
    """
    numbers = _COMPARED.sub(r"\1", _NO_ZERO.sub("0.", _THOUSANDS.sub("", folded(text).lower())))
    lowered = _LEADING.sub("", numbers)
    kept = "".join(found[0] for found in _PLAIN.finditer(_JOINED.sub(r"\1 \2", lowered)))
    return _ARTICLES.sub(" ", kept).replace("_", "").split()


def _readings(answer: str, gold: str) -> list[tuple[list[str], list[str]]]:
    """The words of both, and once more where one has a hyphen between letters and the other a space there.

    Hyphens are not spaces everywhere, or "anti-tumor" would hold "tumor".
    """
    texts = folded(answer), folded(gold)
    joined = [answer_tokens(each) for each in texts]
    if joined[0] == joined[1] or "-" not in answer + gold:
        return [(joined[0], joined[1])]
    spaced = [_HYPHENATED.sub(lambda found: found[0].replace("-", " "), each) for each in texts]
    around = [answer_tokens(each) for each in spaced]
    said = _spaced(texts[0], joined[1], around[1])
    wanted = _spaced(texts[1], joined[0], around[0])
    return [(joined[0], joined[1]), (answer_tokens(said), answer_tokens(wanted))]


def _spaced(text: str, joined: Sequence[str], spaced: Sequence[str]) -> str:
    """The text with spaces for the hyphens of a word that the other, read as `joined` and `spaced`, writes apart."""
    around = f" {' '.join(spaced)} "

    def parts(found: re.Match[str]) -> str:
        word = found[0].lower()
        apart = word.replace("-", "") not in joined and f" {word.replace('-', ' ')} " in around
        return found[0].replace("-", " ") if apart else found[0]

    return _HYPHENATED.sub(parts, text)


def same(answer: str, golds: Sequence[str]) -> bool:
    """Exact match: whether the answer's words are those of a right answer. An answer without words matches nothing."""
    return any(said == wanted for gold in golds for said, wanted in _readings(answer, gold) if said)


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """The best token F1 with a right answer, over words as multisets; 0 for an answer without words."""
    readings = (each for gold in golds for each in _readings(answer, gold))
    return max((overlap_f1(said, wanted) for said, wanted in readings if said), default=0.0)


def contains(answer: str, golds: Sequence[str], *, most_extra_words: int) -> bool:
    """Whether the answer holds a right one as whole words, with at most `most_extra_words` words beside it.

    A denial ("not gout") holds nothing, nor do several: "gout or lupus", "gout and lupus", "gout; lupus", two
    commas. The right answer's own commas and such are not counted.
    """
    return any(
        wanted and len(words) <= len(wanted) + most_extra_words and _holds(answer, gold, words, wanted)
        for gold in golds
        for words, wanted in _readings(answer, gold)
    )


def _holds(answer: str, gold: str, words: list[str], wanted: list[str]) -> bool:
    place = _place(words, wanted)
    if place is None or words == wanted:
        return place is not None
    several = len(_SEVERAL.findall(answer)) > len(_SEVERAL.findall(gold)) or answer.count(",") > gold.count(",") + 1
    return not (several or _DENIED.intersection(words[:place] + words[place + len(wanted) :]))


def _place(words: list[str], wanted: list[str]) -> int | None:
    """Where the wanted words stand first, one after the other."""
    return next((at for at in range(len(words) - len(wanted) + 1) if words[at : at + len(wanted)] == wanted), None)


def mentions(text: str, golds: Sequence[str]) -> bool:
    """Whether a text has the words of a right answer, one after the other, whatever stands beside them."""
    readings = (each for gold in golds for each in _readings(text, gold))
    return any(wanted and _place(words, wanted) is not None for words, wanted in readings)


def abstains(answer: str) -> bool:
    """Whether a short open answer declines to answer: "not found", "I don't know", "insufficient information"."""
    plain = folded(without_citations(answer)).replace("\u2019", "'").strip(" \t\n.\"'*")
    plain = _NO_ABSTENTION.sub("", plain)
    if len(plain) > LONGEST_ABSTENTION:
        return False
    return bool(ABSTENTION.search(plain)) or bool(_UNKNOWING.match(plain))


@dataclass(frozen=True)
class ListScore:
    """Precision, recall and F1 of the entries of one list."""

    precision: float
    recall: float
    f1: float


def list_score(
    answer: str, items: Sequence[Sequence[str]], is_right: Callable[[str, Sequence[str]], object] | None = None
) -> ListScore:
    """BioASQ's measures of a list question. An entry is right when it equals a synonym of an item not yet named.

    `is_right` says otherwise when an entry is one of an item's synonyms.

    An item named twice is right once; the second time is a false positive. The order does not matter.
    """
    said, left = entries(answer), [list(item) for item in items]
    right = 0
    for entry in said:
        found = next((number for number, item in enumerate(left) if (is_right or same)(entry, item)), None)
        if found is not None:
            right += 1
            del left[found]
    if not right:
        return ListScore(0.0, 0.0, 0.0)
    return ListScore(right / len(said), right / len(items), 2 * right / (len(said) + len(items)))


def ranked(answer: str, golds: Sequence[str]) -> list[str]:
    """The answers of a ranked answer, at most five. A right answer that itself holds "; " is one answer."""
    return [answer] if same(answer, golds) else entries(answer)[:MAX_RANKED]


def rank_of_right(answer: str, golds: Sequence[str]) -> int | None:
    """The place of the first right one among up to five ranked answers, from 1; None where none is right."""
    return next((place for place, each in enumerate(ranked(answer, golds), start=1) if same(each, golds)), None)


def first_answer(question: Question, answer: str) -> str:
    """The open answer that is graded, without citations: its text, or the first of ranked answers."""
    plain = without_citations(answer).strip()
    return plain if question.form != "ranked" else next(iter(ranked(plain, question.golds)), "")


def overlap_f1(said: list[str], gold: list[str]) -> float:
    """The F1 of words as multisets; no words are equal to no words."""
    if not said or not gold:
        return float(said == gold)
    return 2 * sum((Counter(said) & Counter(gold)).values()) / (len(said) + len(gold))
