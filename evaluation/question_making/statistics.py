"""Statistics of an index: document frequencies, usual capitals, the topics of titles, long forms of abbreviations."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from medagent.evaluation.question_making.text import is_term, usable_sentences, words_of
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Passage

MOST_WORDS = 2_000_000  # a larger vocabulary is cut to words of two passages or more
TOPIC_KINDS = (
    "disease disorder condition syndrome cancer tumor tumour leukemia lymphoma infection deficiency anomaly anemia "
    "defect malformation dystrophy neuropathy epilepsy inflammation allergy fever illness abnormality injury"
).split()
_IS_A = re.compile(
    rf"^(?:The |An? )?(?P<term>[^,;:]{{3,90}}?) (?:is|are) (?:an? |the )?(?:[\w-]+ ){{0,6}}?"
    rf"(?P<kind>{'|'.join(TOPIC_KINDS)})(?:e?s)?\b"
)
_TOKEN = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
_SHORT = re.compile(r"\(([A-Z][A-Za-z0-9-]{1,9})\)")
_BEFORE = re.compile(r"[\w'’/-]+(?:[ ,]+[\w'’/-]+)*\s*$")


@dataclass
class CorpusStatistics:
    """Counts over passages.

    `document_frequency` counts the passages of a word, `token_frequency` those of a token of the index's `analyser`.
    `topics` maps a title in lower case to what its passages say it is, such as "disorder". `expansions` maps a short
    form to its long forms in lower case.
    """

    analyser: Analyser = field(default_factory=Analyser)
    passages: int = 0
    token_frequency: Counter[str] = field(default_factory=Counter)
    document_frequency: Counter[str] = field(default_factory=Counter)
    inside_lower: Counter[str] = field(default_factory=Counter)
    inside_capital: Counter[str] = field(default_factory=Counter)
    topics: dict[str, str] = field(default_factory=dict)
    expansions: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, passage: Passage) -> None:
        """Count one passage."""
        self.passages += 1
        self.token_frequency.update(set(self.analyser.tokens(passage.indexed_text)))
        self.token_frequency = _bounded(self.token_frequency)
        self.document_frequency.update(set(words_of(passage.indexed_text)))
        self.document_frequency = _bounded(self.document_frequency)
        title = passage.title.strip()
        for sentence in usable_sentences(passage.text):
            for match in list(_TOKEN.finditer(sentence))[1:]:
                word = match.group()
                if word[:1].isupper() and not word.isupper():
                    self.inside_capital[word.lower()] += 1
                elif word[:1].islower():
                    self.inside_lower[word.lower()] += 1
            if title.lower() not in self.topics and is_term(title, longest=10) and (found := _IS_A.match(sentence)):
                named = found["term"].split(" (")[0].lower()
                if named == title.lower():
                    self.topics[title.lower()] = found["kind"]
        for short, long in abbreviations_in(passage.text):
            self.expansions.setdefault(short, Counter())[long.lower()] += 1

    def idf(self, token: str) -> float:
        """ln((passages + 1) / (passages with the token + 1)), at least 0; a token never seen has the largest."""
        return max(0.0, math.log((self.passages + 1) / (self.token_frequency[token] + 1)))

    def share(self, token: str) -> float:
        """Share of the passages that hold the token."""
        return self.token_frequency[token] / max(self.passages, 1)

    def information(self, text: str) -> float:
        """The sum of the idf of a text's distinct tokens, in nats."""
        return sum(self.idf(token) for token in set(self.analyser.tokens(text)))

    def inside(self, phrase: str) -> str:
        """The phrase as it stands inside a sentence: its first letter small unless the corpus writes it large there.

        A name of several capitalised words keeps them.
        """
        first, _, rest = phrase.partition(" ")
        if first in ("A", "An", "The"):
            return f"{first.lower()} {rest}"
        if not first[:1].isupper() or first.isupper() or any(char.isupper() or char.isdigit() for char in first[1:]):
            return phrase
        small, large = self.inside_lower[first.lower()], self.inside_capital[first.lower()]
        if rest[:1].isupper() and rest[1:2].islower():
            return phrase
        if small == large == 0 and re.match(r"(?:[\w-]+ )?(?:disease|syndrome)\b", rest):
            return phrase  # unknown, and as likely a person's name
        if "'" in first or "’" in first or large > small:
            return phrase
        if small == 0 and "-" in first and first.split("-")[1][:1].isupper():
            return phrase
        return first[0].lower() + first[1:] + (f" {rest}" if rest else "")

    def broken(self, text: str) -> bool:
        """Whether a text seems broken: words run together, an apostrophe lost, or a heading run into a sentence.

        "diabetesthe" is rare and splits into two frequent words. "Alzheimers" is rarer than "Alzheimer's". In "Other
        Tests Heart tests" words have capitals that are mostly small inside sentences.
        """
        return any(self._run_together(word) or self._lost_apostrophe(word) for word in words_of(text)) or any(
            word[:1].isupper()
            and word[1:].islower()
            and self.inside_lower[word.lower()] > 4 * (self.inside_capital[word.lower()] + 1)
            for word in _TOKEN.findall(text)[1:12]
        )

    def _run_together(self, word: str) -> bool:
        if len(word) < 7 or self.document_frequency[word] > 2 or not word.isalpha():
            return False
        often = max(self.passages // 1000, 5)
        return any(
            self.document_frequency[word[:at]] >= often and self.document_frequency[word[at:]] >= often
            for at in range(3, len(word) - 1)
            if len(word) - at > 2 or word[at:] in ("a", "is", "an", "in", "or", "of", "to", "by")
        )

    def _lost_apostrophe(self, word: str) -> bool:
        return word.endswith("s") and self.document_frequency[f"{word[:-1]}'s"] > 2 * self.document_frequency[word]


def _bounded(counts: Counter[str]) -> Counter[str]:
    return counts if len(counts) <= MOST_WORDS else Counter({word: n for word, n in counts.items() if n > 1})


def abbreviations_in(text: str) -> Iterator[tuple[str, str]]:
    """(short form, long form) of each bracketed abbreviation, as "Lentigo maligna melanoma (LMM)".

    The rule of Schwartz and Hearst (PSB 2003): from right to left, each character of the short form must occur in the
    words before the bracket, and the first one must begin a word. Short forms have at least two capitals.
    """
    for match in _SHORT.finditer(text):
        short = match.group(1)
        before = _BEFORE.search(text, max(0, match.start() - 120), match.start())
        if sum(char.isupper() for char in short) < 2 or before is None:
            continue
        words = before.group().split()
        nearest = " ".join(words[-min(len(short) + 5, len(short) * 2) :])
        if (long := _long_form(short, nearest)) and len(long.split()) > 1:
            yield short, long


def _long_form(short: str, words: str) -> str:
    """The shortest end of `words` that the short form abbreviates; empty where there is none."""
    at = len(words) - 1
    characters = [char.lower() for char in short if char.isalnum()]
    for number, char in enumerate(reversed(characters)):
        first = number == len(characters) - 1
        while at >= 0 and (words[at].lower() != char or (first and at > 0 and words[at - 1].isalnum())):
            at -= 1
        if at < 0:
            return ""
        at -= 1
    return words[at + 1 :].strip()
