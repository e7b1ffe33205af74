"""Whether a passage is about the subject that a question asks of, about a narrower one, or about another.

Both directions count. The question's words must stand in the passage. The name under which the passage speaks of the
subject must add no word that narrows it: "cryptococcal meningitis" is narrower than "meningitis". Words that frame a
heading ("guideline", "what you need to know about") narrow nothing, nor does another word of the question.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.reading import Asked
from medagent.evidence.sentences import without_sort
from medagent.evidence.synonyms import SynonymTable
from medagent.evidence.words import FRAME, TOKEN, describes, folded, form, forms, named_words, without_kinds, word_list
from medagent.retrieval.passages import Passage
from medagent.types import Question


@dataclass(frozen=True)
class SubjectMatch:
    """How a passage's subject stands to the asked one; `name` is the narrower one's, as the passage writes it."""

    kind: Literal["same", "narrower", "other"]
    name: str = ""


SAME, OTHER = SubjectMatch("same"), SubjectMatch("other")
_LATIN = re.compile(r"insipid\w*|\w{3,}(?:emia|itis|osis|oma|opath(?:y|ies)|encephaly)$")
_ADJECTIVE = re.compile(r"\w{3,}(?:al|ic|ous|ary|oid)$")
_LETTERED = re.compile(r"\b(hepatitis|vitamin|influenza|ha?emophilia)[ -](?:[a-e]|\d{1,2})\b", re.IGNORECASE)
_NUMBERING = re.compile(r"^\W*(?:\d+[.)]\s*)+|\b(?:chapter|part|section|unit|module|volume|version|v)[ .]*\d+\b")
_IN = re.compile(r"\bin\b", re.IGNORECASE)
_NUMBER = re.compile(r"[a-z]*\d{3,}|\d+(?:st|nd|rd|th)")  # a year, a code
_PIECES = re.compile(r"[:;?!/|()\[\]_\n\u2013\u2014]|\s-\s|\b(?:for|against|vs|versus)\b", re.IGNORECASE)
_BOTH = re.compile(r"([^,]+?)\s*(?:\band\b|&)\s*([^,]+)", re.IGNORECASE)
_JOINED = re.compile(r"[\s-]?(?:['\u2019]s?\s)?")
Run = tuple[str, ...]  # the forms of neighbouring words


@lru_cache(maxsize=1)
def word_lists() -> dict[str, frozenset[str]]:
    """The forms of the words that frame a name, narrow it alone, or end it."""
    lists = {"framing": word_list("framing") | FRAME, **{name: word_list(name) for name in ("populations", "breaks")}}
    return {name: frozenset(form(folded(word)) for word in words) for name, words in lists.items()}


def match_subject(
    question: Question | str, passage: Passage, sentence: str | None = None, synonyms: SynonymTable | None = None
) -> SubjectMatch:
    """How the subject of a passage, or of one of its sentences under its heading, stands to that of a question.

    Without a sentence the whole text is read. A question that describes its subject, or a case, is narrowed by no name.
    """
    plain = (synonyms or SynonymTable.load()).plain
    read = _read(plain(question if isinstance(question, str) else question.text))
    said = plain(passage.text if sentence is None else sentence)
    if not read.asked.named_in(_loose(f"{plain(passage.heading)}\n{said}")):
        return OTHER
    if not read.runs:
        return SAME
    headed: list[Run] = []
    for part in (passage.title, passage.section):
        for run, narrower in read.of_heading(plain(part), said):
            if narrower:
                return SubjectMatch("narrower", part)
            headed.append(run)
    if not headed or sentence is not None:
        for match in read.of_text(said, headed or read.runs):
            if match is not SAME:
                return match
    return SubjectMatch("narrower", passage.heading) if read.narrows_alone(passage.section) else SAME


@dataclass(frozen=True)
class _Question:
    """What a question asks for, its subject's names as runs of words, and the forms of all its words."""

    asked: Asked
    runs: tuple[Run, ...]
    words: frozenset[str]

    def _extras(self, text: str) -> frozenset[str]:
        """The forms in a heading that are no frame, number, drug used "in" it, or word of the question."""
        rest = forms(_NUMBERING.sub(" ", text.lower())) - self.words - word_lists()["framing"]
        used_in = named_in(text).drugs if _IN.search(text) else ()  # "colchicine in gout"
        return frozenset(each for each in rest if not _NUMBER.fullmatch(each) and each not in map(form, used_in))

    def of_heading(self, heading: str, said: str) -> list[tuple[Run, bool]]:
        """For each name of the subject that a heading has, whether the first piece with it narrows it.

        If a heading joins two things by "and", a sentence that has the name decides.
        """
        found = []
        for run in self.runs:
            piece = next((each for each in _PIECES.split(heading) if set(run) <= _loose(each)), None)
            if piece is not None:
                both = _BOTH.fullmatch(piece)
                alone = both and any(set(run) <= _loose(each) and not self._extras(each) for each in both.groups())
                found.append((run, bool(self._extras(piece)) and not (alone and self.of_text(said, [run]) == [SAME])))
        return found

    def of_text(self, text: str, runs: Sequence[Run]) -> list[SubjectMatch]:
        """For each of the names that a text has, whether it stands there without a word that narrows it."""
        found = []
        phrases = _phrases(text, frozenset(self.asked.subject))
        for run in runs:
            named = [match for phrase in phrases if (match := self._of_phrase(phrase, run))]
            if named:
                found.append(SAME if SAME in named else named[0])
        return found

    def _of_phrase(self, phrase: list[tuple[str, str]], run: Run) -> SubjectMatch | None:
        at = [each for each, _ in phrase]
        start = next((i for i in range(len(at)) if tuple(at[i : i + len(run)]) == run), None)
        if start is None:
            return None
        end = start + len(run)
        end += end < len(at) and at[end] not in self.words and bool(_LATIN.fullmatch(folded(phrase[end][1])))
        if frozenset(at[:end]) <= self.words | word_lists()["framing"]:
            return SAME
        return SubjectMatch("narrower", " ".join(word for _, word in phrase[:end]))

    def narrows_alone(self, section: str) -> bool:
        """Whether a section has nothing but words that narrow what its document is about: "In children"."""
        rest = self._extras(section)
        adjectives = {form(word) for word in re.findall(r"\w+", folded(section)) if _ADJECTIVE.fullmatch(word)}
        return bool(rest) and rest <= word_lists()["populations"] | adjectives


@lru_cache(maxsize=4_096)
def _read(text: str) -> _Question:
    asked = Asked.of(Question("", text))
    case = describes(text) or asked.is_case
    phrases = () if case else _phrases(without_kinds(without_sort(text)), frozenset(asked.subject), alone=True)
    return _Question(asked, tuple(tuple(each for each, _ in phrase) for phrase in phrases), _loose(text))


def _loose(text: str) -> frozenset[str]:
    """The forms of a text's words; "hepatitis C" is also "hepatitis"."""
    return forms(text) | forms(_LETTERED.sub(r"\1", text))


def _phrases(text: str, names: frozenset[str], *, alone: bool = False) -> list[list[tuple[str, str]]]:
    """Neighbouring words, as form and word: those in `names`, and unless `alone` those that may narrow one."""
    found: list[list[tuple[str, str]]] = [[]]
    end = 0
    for match in TOKEN.finditer(text):
        if not _JOINED.fullmatch(text[end : match.start()]):
            found.append([])
        end = match.end()
        ((each, word),) = named_words(match[0]) or [("", "")]
        plain = folded(word)
        plural = plain.endswith("s") and not plain.endswith(("ss", "us", "is"))  # or a verb
        if each and (each in names or not (alone or plural or each in word_lists()["breaks"])):
            found[-1].append((each, word))
        else:
            found.append([])
    return [phrase for phrase in found if phrase]
