"""Words as they are compared, and the kind of thing that a question asks for.

Accents, capitals, plurals and endings do not count: "oedema" is "edema". Words that only frame a question are left out.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import Stemmer
from rapidfuzz import process
from rapidfuzz.distance import OSA

from medagent.lazy import packaged
from medagent.retrieval.analysis import GREEK, STOPWORDS

_CONTRACTED = re.compile(r"(?<=\w)(?:n['\u2019]t|['\u2019](?:re|ve|ll|m|d))\b", re.IGNORECASE)
# A letter, a number or a degree that tells names apart belongs to its word: "hepatitis A", "type 1", "second-degree".
TOKEN = re.compile(
    r"(?i)\b(?P<kind>hepatitis|vitamin|influenza|types?|group|factor|class|grade|stage|phase|trisomy|il|interleukin|"
    r"protein|hemophilia|haemophilia|chromosome|complement|category)[ -](?P<which>[a-z]|\d{1,2}|i{1,3}|iv)\b"
    r"|\b(?P<rank>first|second|third|fourth|1st|2nd|3rd)[ -](?P<of>degree|trimester|generation|line|stage)\b"
    r"|[^\W_]+"
)
_IDLE_PRIMARY = re.compile(
    r"(?i)\b(?:primary|main|first|typical|classic) (?=(?:known )?(?:cause|drug|treatment|choice|test|sign|therap|line))"
)
_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b")
_GREEK = str.maketrans(GREEK)
MISSPELT_FRAME = ("syndrome", "syndromes", "disease", "diseases", "disorder", "condition")


def word_list(name: str) -> frozenset[str]:
    """A list of the packaged `word_lists.yaml`, as it is written."""
    return frozenset(packaged("medagent.evidence", "word_lists.yaml")[name].split())


_IRREGULAR = dict(pair.split(":") for pair in word_list("irregular"))
FRAME = word_list("frame")  # words that frame a question and name none of what it is about


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    return str(Stemmer.Stemmer("english").stemWord(word))


def folded(text: str) -> str:
    """The text in lower case, without accents and possessives, Greek letters spelt out."""
    plain = _POSSESSIVE.sub("", unicodedata.normalize("NFKC", text)).lower().translate(_GREEK)
    return "".join(c for c in unicodedata.normalize("NFD", plain) if not unicodedata.combining(c))


def form(word: str) -> str:
    """The form under which a folded word is compared: "tumours" as "tumor", "anaemia" as "anemia"."""
    word = _IRREGULAR.get(word, word)
    american = word.replace("ae", "e").replace("oe", "e")
    if len(american) > 4:
        american = re.sub(r"our(?=s?$)", "or", american)
    return _stem(american)


def named_words(text: str) -> list[tuple[str, str]]:
    """The words of a text but stop words, in order: form, and as it is written. "Hepatitis A" is one word."""
    found = []
    for match in TOKEN.finditer(_CONTRACTED.sub("", _POSSESSIVE.sub("", text))):
        bound = match["kind"] or match["rank"]
        low = folded(bound + (match["which"] or match["of"]) if bound else match[0])
        if low and low not in STOPWORDS:
            found.append((form(low), match[0]))
    return found


def forms(text: str) -> frozenset[str]:
    """The forms of all words of a text but stop words."""
    return frozenset(each for each, _ in named_words(text))


_FRAME_FORMS = frozenset(map(form, FRAME))


def subject_words(question: str) -> dict[str, str]:
    """The words of a question, given `without_kinds`, that name something: form -> word as written, in order.

    A word one letter away from such as "syndrome" is no name that the corpus could lack.
    """
    found: dict[str, str] = {}
    for each, word in named_words(_IDLE_PRIMARY.sub("", question)):
        misspelt = (OSA.distance(folded(word), frame, score_cutoff=1) <= 1 for frame in MISSPELT_FRAME)
        if each not in _FRAME_FORMS and not any(misspelt):
            found.setdefault(each, word)
    return found


# Before these a question says what it asks for; after them, of what.
_OF_WHICH = re.compile(r"\b(?:whose|that|who|which (?:is|are|has|have)|caused by|results? from)\b")

_WITH_A = re.compile(r"\b(?:disease|condition|disorder|syndrome|infection|illness) (?:with|in which|where)\b")


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question by its words, see question_kinds.yaml."""

    name: str
    asked: re.Pattern[str]
    said: re.Pattern[str]
    needed: bool = False
    follow_up: str = ""
    of: str = ""


@lru_cache(maxsize=1)
def question_kinds() -> tuple[QuestionKind, ...]:
    """The kinds of the packaged file."""

    def read(kind: str, asked: str, said: str, **more: Any) -> QuestionKind:
        return QuestionKind(kind, re.compile(asked, re.IGNORECASE), re.compile(said, re.IGNORECASE), **more)

    return tuple(read(**row) for row in packaged("medagent.evidence", "question_kinds.yaml"))


def asked_for(question: str) -> tuple[QuestionKind, ...]:
    """The kinds of what a question asks for. A sign by which it describes its subject is none."""
    for part in (what_is_asked(question), folded(question)):
        found = tuple(kind for kind in question_kinds() if kind.asked.search(part))
        if found:
            return found
    return ()


def what_is_asked(question: str) -> str:
    """The question, folded, up to where it describes its subject: "which drug treats the disease"."""
    plain = folded(question)
    ends = [found.start() for pattern in (_OF_WHICH, _WITH_A) if (found := pattern.search(plain))]
    return plain[: min(ends, default=len(plain))]


def describes(question: str) -> bool:
    """Whether a question describes its subject instead of naming it: "the disease whose sign is ..."."""
    return what_is_asked(question) != folded(question)


def tells(text: str, kinds: tuple[QuestionKind, ...]) -> bool:
    """Whether a text tells something of one of the kinds, and of all that are needed; true where no kind is known."""
    plain = folded(text)
    told = [kind for kind in kinds if kind.said.search(plain)]
    asked = [kind for kind in kinds if not kind.needed] or list(kinds)
    return not kinds or (any(kind in told for kind in asked) and all(kind in told for kind in kinds if kind.needed))


def without_kinds(question: str) -> str:
    """The question with spaces for the words of any kind; its other words stay where they are."""
    for kind in question_kinds():
        question = kind.asked.sub(lambda found: " " * len(found[0]), question)
    return question


MAX_NAMES = 3
SHORTEST = 4  # letters; of shorter words too many are near
LONGEST_NAME = 8  # words; longer titles are sentences


class Names:
    """The titles of a corpus, looked up by their words; those of more than `LONGEST_NAME` words name no one thing."""

    def __init__(self, titles: Iterable[str]) -> None:
        self._titles: dict[str, frozenset[str]] = {}
        with_word: dict[str, list[str]] = defaultdict(list)
        spelt: dict[str, str] = {}
        for title in titles:
            words = named_words(title)
            if title in self._titles or not words or len(words) > LONGEST_NAME:
                continue
            self._titles[title] = frozenset(form for form, _ in words)
            for form, word in words:
                with_word[form].append(title)
                spelt.setdefault(folded(word), form)
        self._with_word, self._spelt = dict(with_word), spelt

    def __len__(self) -> int:
        return len(self._titles)

    def near(self, subject: Mapping[str, str], missing: Sequence[str]) -> list[str]:
        """Titles with a word near one of `subject` that passages lack and no title spells so; three, nearest first."""
        known = {form for form, word in subject.items() if folded(word) in self._spelt}
        ranked: dict[str, tuple[float, int, int, str]] = {}
        for word in (folded(subject[form]) for form in missing if form not in known):
            for other, distance in self._words_near(word):
                for title in self._with_word[self._spelt[other]]:
                    words = self._titles[title]
                    rank = (distance - len(words & known), len(words), len(title), title)
                    ranked[title] = min(rank, ranked.get(title, rank))
        nearest = sorted(ranked, key=lambda title: ranked[title])
        spelt: dict[str, str] = {}
        for title in nearest:
            spelt.setdefault(folded(title), title)
        return list(spelt.values())[:MAX_NAMES]

    def _words_near(self, word: str) -> list[tuple[str, float]]:
        if len(word) < SHORTEST or not word.isalpha():  # a code is not misspelt but another
            return []
        allowed = min(3, (len(word) + 3) // 4)  # one letter in four
        found = process.extract(word, list(self._spelt), scorer=OSA.distance, score_cutoff=allowed, limit=None)
        return [(other, distance) for other, distance, _ in found if distance < 2 or other[0] == word[0]]


def is_other_language(question: str) -> bool:
    """Whether a question is in another language: two letters of another script, or more common words of another one."""
    scripts = [unicodedata.name(each, "").split()[0] for each in question if each.isalpha()]
    foreign = sum(script not in ("LATIN", "GREEK", "MICRO", "FEMININE", "MASCULINE") for script in scripts)
    if foreign > 1 or scripts.count("GREEK") > 4:
        return True
    words = [folded(found[0]) for found in TOKEN.finditer(question)]
    asks = bool(asked_for(question)) - bool({"\u00bf", "\u00a1"} & set(question))
    english = STOPWORDS | FRAME
    languages = (frozenset(common.split()) for common in packaged("medagent.evidence", "languages.yaml"))
    return any(
        sum(word in common for word in words) > asks + sum(word in english - common for word in words)
        for common in languages
    )
