"""Keeps drafts whose passage answers them, whose passage search finds, and that do not give their answer away.

A reason is a short text that is counted and shown; an empty one keeps the draft.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from medagent.evaluation.question_making.rules import Draft
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.evaluation.question_making.text import tidy, words_of
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.passages import Hit, Passage

# The least idf of a question's distinct words, summed, in multiples of that of a word that no passage holds: so the
# same numbers suit small and large indexes. A definition is told by nothing but these words.
LEAST_INFORMATION = 1.0
LEAST_OF = {"definition": 1.65}
GENERAL_SHARE = 0.03  # a word in more of the passages than this gives nothing away
SAME_FIT = 0.85  # of the question's weight, in one sentence of another passage
LONGEST_QUESTION = 45  # words
LEAST_OTHER = 0.6  # in the same unit: what a sentence must hold beyond the question to be able to answer it
CACHED = 4_000  # passages whose sentences are cached as tokens
_FIGURE = re.compile(r"\d[\d,.]*")
_CAPITALS = re.compile(r"\b[A-Za-z0-9]*[A-Z][A-Za-z0-9]*[A-Z0-9][A-Za-z0-9-]*\b")

NOT_IN_PASSAGE = "the passage does not hold the answer"
GIVEN_AWAY = "the question gives the answer away"
TOO_VAGUE = "the question says too little"
TOO_LONG = "the question is too long"
NOT_FOUND = "search does not find the passage"
FITS_ANOTHER = "another passage fits as well and has another answer"


@dataclass(frozen=True)
class Candidate(Draft):
    """A draft that passed the checks, with its passage's origin.

    `gold_ids` are passages with the sentence, the draft's own first.
    """

    title: str
    source: str
    licence: str
    gold_ids: tuple[str, ...]


class Checks:
    """The checks of one index."""

    def __init__(self, statistics: CorpusStatistics) -> None:
        self._statistics, self._analyser = statistics, statistics.analyser
        self._unit = math.log(statistics.passages + 1)
        self._sentences_of = lru_cache(CACHED)(self._split)

    def before_search(self, draft: Draft, passage: Passage) -> str:
        """Why the draft is dropped, by its words alone."""
        if not any(holds(passage.text, answer) for answer in draft.answers[:1]):
            return NOT_IN_PASSAGE
        if self.gives_away(draft.question, draft.answers):
            return GIVEN_AWAY
        if len(draft.question.split()) > LONGEST_QUESTION:
            return TOO_LONG
        least = LEAST_OF.get(draft.kind, LEAST_INFORMATION)
        return TOO_VAGUE if self._statistics.information(draft.question) < least * self._unit else ""

    def after_search(self, draft: Draft, passage: Passage, hits: Sequence[Hit]) -> Candidate | str:
        """The candidate, or why the draft is dropped.

        Search must find the passage, or one with the same sentence, and no other that fits as well.

        Another one fits where one of its sentences holds the question's words, to `SAME_FIT` of their idf, and
        something that could be an answer. None of the right answers stands in it.
        """
        sentence = " ".join(draft.sentence.split())
        gold = [hit.passage.id for hit in hits if hit.passage.id == passage.id or sentence in tidy(hit.passage.text)]
        if not gold:
            return NOT_FOUND
        weights = {token: self._statistics.idf(token) for token in set(self._analyser.tokens(draft.question))}
        wanted = SAME_FIT * sum(weights.values())
        for hit in hits:
            if hit.passage.id in gold or any(holds(hit.passage.indexed_text, answer) for answer in draft.answers):
                continue
            for other, tokens in self._sentences_of(hit.passage.title, hit.passage.text):
                fit = sum(weight for token, weight in weights.items() if token in tokens)
                if fit >= wanted and self._could_answer(other, tokens, draft):
                    return FITS_ANOTHER
        return Candidate(
            **vars(draft),
            title=passage.title,
            source=passage.source,
            licence=passage.licence,
            gold_ids=tuple(sorted(dict.fromkeys(gold), key=lambda id_: id_ != passage.id)),
        )

    def _could_answer(self, sentence: str, tokens: frozenset[str], draft: Draft) -> bool:
        """Whether a sentence holds words of the answer's form that the question lacks: figures, capitals, or others."""
        asked, answer = set(words_of(draft.question)), draft.answers[0]
        if _FIGURE.search(answer):
            form: re.Pattern[str] = _FIGURE
        elif sum(char.isupper() for char in answer) > 1 and " " not in answer:
            form = _CAPITALS
        else:
            rest = tokens.difference(self._analyser.tokens(draft.question))
            return sum(map(self._statistics.idf, rest)) >= LEAST_OTHER * self._unit
        return any(match.group().lower() not in asked for match in form.finditer(sentence))

    def gives_away(self, question: str, answers: Sequence[str]) -> bool:
        """Whether a word of an answer, rare if it has rare ones, stands in the question or begins one of its words."""
        asked = set(self._analyser.tokens(question))
        for answer in answers:
            tokens = set(self._analyser.tokens(answer))
            telling = {token for token in tokens if not self._general(token)} or tokens
            if telling & asked:
                return True
            long = {token for token in telling if len(token) >= 4 and token.isalpha()}
            if any(
                token.startswith(word) or word.startswith(token)
                for token in long
                for word in asked
                if len(word) >= 4 and not self._general(word)
            ):
                return True
        return False

    def _general(self, token: str) -> bool:
        return self._statistics.share(token) > GENERAL_SHARE

    def _split(self, title: str, text: str) -> list[tuple[str, frozenset[str]]]:
        """The sentences of a passage, each with its tokens and those of the title."""
        shared = frozenset(self._analyser.tokens(title))
        return [(each, shared.union(self._analyser.tokens(each))) for each in split_sentences(text)]


def holds(text: str, answer: str) -> bool:
    """Whether the words of an answer stand in a text, one after another, in any case."""
    return f" {' '.join(words_of(answer))} " in f" {' '.join(words_of(text))} "
