"""Keeps drafts whose passage answers them, whose passage search finds, and that do not give their answer away.

A reason is a short text that is counted and shown; an empty one keeps the draft.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.passages import Hit, Passage

# The least idf of a question's distinct words, summed, in multiples of that of a word that no passage holds: so the
# same number suits small and large indexes.
LEAST_INFORMATION = 1.0
GENERAL_SHARE = 0.03  # a word in more of the passages than this gives nothing away
SAME_FIT = 0.85  # of the question's weight, in one sentence of another passage
LONGEST_QUESTION = 45  # words
LEAST_OTHER = 0.6  # in the same unit: what a sentence must hold beyond the question to be able to answer it
CACHED = 4_000  # passages whose sentences are cached as tokens
_WORD = re.compile(r"[^\W_]+(?:[-'’/.][^\W_]+)*")
_FIGURE = re.compile(r"\d[\d,.]*")
_CAPITALS = re.compile(r"\b[A-Za-z0-9]*[A-Z][A-Za-z0-9]*[A-Z0-9][A-Za-z0-9-]*\b")

NOT_IN_PASSAGE = "the passage does not hold the answer"
GIVEN_AWAY = "the question gives the answer away"
TOO_VAGUE = "the question says too little"
TOO_LONG = "the question is too long"
NOT_FOUND = "search does not find the passage"
FITS_ANOTHER = "another passage fits as well and has another answer"


@dataclass(frozen=True)
class Draft:
    """A question with its answer, and the sentence of a passage that holds the answer.

    `gold_ids` are the passages with that sentence, the draft's own first. They are empty until search has found them.
    """

    question: str
    answer: str
    sentence: str
    passage: Passage
    gold_ids: tuple[str, ...] = ()


class Checks:
    """The checks of one index of so many `passages`. `count` tells in how many of them a token is."""

    def __init__(self, analyser: Analyser, passages: int, count: Callable[[str], int]) -> None:
        self._analyser, self._passages, self._count = analyser, passages, count
        self._unit = math.log(passages + 1)
        self._sentences_of = lru_cache(CACHED)(self._split)

    def before_search(self, draft: Draft) -> str:
        """Why the draft is dropped, by its words alone."""
        if not holds(draft.passage.text, draft.answer):
            return NOT_IN_PASSAGE
        if self.gives_away(draft.question, draft.answer):
            return GIVEN_AWAY
        if len(draft.question.split()) > LONGEST_QUESTION:
            return TOO_LONG
        asked = set(self._analyser.tokens(draft.question))
        return TOO_VAGUE if sum(map(self._idf, asked)) < LEAST_INFORMATION * self._unit else ""

    def after_search(self, draft: Draft, hits: Sequence[Hit]) -> Draft | str:
        """The draft with its gold passages, or why it is dropped.

        Search must find the passage, or one with the same sentence, and no other that fits as well.

        Another one fits where one of its sentences holds the question's words, to `SAME_FIT` of their idf, and
        something that could be an answer. The right answer does not stand in it.
        """
        sentence, own = _one_line(draft.sentence), draft.passage.id
        gold = [hit.passage.id for hit in hits if hit.passage.id == own or sentence in _one_line(hit.passage.text)]
        if not gold:
            return NOT_FOUND
        weights = {token: self._idf(token) for token in set(self._analyser.tokens(draft.question))}
        wanted = SAME_FIT * sum(weights.values())
        for hit in hits:
            if hit.passage.id in gold or holds(hit.passage.indexed_text, draft.answer):
                continue
            for other, tokens in self._sentences_of(hit.passage.title, hit.passage.text):
                fit = sum(weight for token, weight in weights.items() if token in tokens)
                if fit >= wanted and self._could_answer(other, tokens, draft):
                    return FITS_ANOTHER
        return replace(draft, gold_ids=tuple(sorted(gold, key=lambda id_: id_ != own)))

    def _could_answer(self, sentence: str, tokens: frozenset[str], draft: Draft) -> bool:
        """Whether a sentence holds words of the answer's form that the question lacks: figures, capitals, or others."""
        asked, answer = set(words_of(draft.question)), draft.answer
        capitals = sum(char.isupper() for char in answer) > 1 and " " not in answer
        form = _FIGURE if _FIGURE.search(answer) else _CAPITALS if capitals else None
        if form:
            return any(match.group().lower() not in asked for match in form.finditer(sentence))
        rest = tokens.difference(self._analyser.tokens(draft.question))
        return sum(map(self._idf, rest)) >= LEAST_OTHER * self._unit

    def gives_away(self, question: str, answer: str) -> bool:
        """Whether a word of the answer, rare if it has rare ones, stands in the question or begins one of its words."""
        asked, tokens = set(self._analyser.tokens(question)), set(self._analyser.tokens(answer))
        telling = {token for token in tokens if not self._general(token)} or tokens
        long = [token for token in telling if len(token) >= 4 and token.isalpha()]
        words = [word for word in asked if len(word) >= 4 and not self._general(word)]
        pairs = [(token, word) for token in long for word in words]
        return bool(telling & asked) or any(one.startswith(other) or other.startswith(one) for one, other in pairs)

    def _idf(self, token: str) -> float:
        return math.log((self._passages + 1) / (self._count(token) + 1))

    def _general(self, token: str) -> bool:
        return self._count(token) > GENERAL_SHARE * self._passages

    def _split(self, title: str, text: str) -> list[tuple[str, frozenset[str]]]:
        """The sentences of a passage, each with its tokens and those of the title."""
        shared = frozenset(self._analyser.tokens(title))
        return [(each, shared.union(self._analyser.tokens(each))) for each in split_sentences(text)]


def words_of(text: str) -> list[str]:
    """Words in lower case, hyphens and apostrophes inside them kept."""
    return [match.group().lower() for match in _WORD.finditer(text)]


def holds(text: str, answer: str) -> bool:
    """Whether the words of an answer stand in a text, one after another, in any case."""
    return f" {' '.join(words_of(answer))} " in f" {' '.join(words_of(text))} "


def _one_line(text: str) -> str:
    return " ".join(text.split())
