"""What an answer leaves out: warnings, limits and recommendations on its subject, in the passages that were shown.

Precision comes before recall. A sentence counts if it is about the subject or the drug that was asked of, or warns of a
drug that the answer names. One whose own subject is another drug or disease never does.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from medagent.answer_forms import without_citations
from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.extracts import POINTS_BACK, Quote, statements
from medagent.evidence.reading import Asked
from medagent.evidence.sentences import SUPPOSED, denies
from medagent.evidence.subject import match_subject, word_lists
from medagent.evidence.synonyms import SynonymTable
from medagent.evidence.words import folded, forms
from medagent.lazy import packaged
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.passages import Passage
from medagent.types import Question

SAID = 0.6  # share of a sentence's words that a text which says it has
LONGEST = 400  # characters of a sentence with its list
MOST = 3  # sentences


def omitted(
    question: str, answer: str, passages: Sequence[Passage], *, shown: Sequence[str] = (), synonyms: SynonymTable
) -> tuple[Quote, ...]:
    """The sentences that the answer, and the texts `shown` beside it, leave out; the gravest first."""
    plain = synonyms.plain
    reading, found = _Reading(plain(question), plain(without_citations(answer)), passages, synonyms), list[Quote]()
    ranked = [(rank, quote) for passage in passages for rank, quote in reading.warnings_in(passage)]
    said = [reading.answer, *split_sentences(reading.answer), *map(plain, shown)]
    for _, quote in sorted(ranked, key=lambda each: each[0]):
        text = plain(quote.text)
        new = forms(text) - word_lists()["framing"] - reading.subject
        near = (each for each in said if len(new & forms(each)) >= SAID * len(new))
        if len(found) < MOST and not any(denies(each) or not denies(text) for each in near):
            found.append(quote)
            said.append(text)
    return tuple(found)


class _Reading:
    """A question and its answer with the drugs they name, and the titles of the passages that were shown."""

    def __init__(self, question: str, answer: str, passages: Sequence[Passage], synonyms: SynonymTable) -> None:
        self.question, self.answer, self._synonyms = question, answer, synonyms
        self._asked, self._of = Asked.of(Question("", question)), _drugs(question)
        self._known = self._of | _drugs(answer)
        self.subject = frozenset(self._asked.subject) - word_lists()["framing"] or frozenset(self._asked.subject)
        self._titles = {folded(synonyms.plain(passage.title)) for passage in passages} - {""}
        self._own = [kind for kind in self._asked.kinds if kind.name in _lists()["own"]]
        kinds = {kind.name for kind in self._asked.kinds}
        known = (
            kinds <= {*_lists()["any"], *_lists()["own"]} if kinds else self._of or _lists()["advice"].search(question)
        )
        self._warned = bool(known and self.subject)

    def warnings_in(self, passage: Passage) -> list[tuple[int, Quote]]:
        """The sentences of a passage that count, each with the place of its sort of warning, the gravest being 0."""
        plain, section = self._synonyms.plain, folded(passage.section)
        drugs, named = _drugs(plain(passage.title)), forms(plain(passage.title)) - word_lists()["framing"]
        of_drug = bool(drugs) and drugs <= (self._of or self._known)
        titled = of_drug or self.subject <= forms(plain(passage.heading)) or named <= forms(self.question)
        spans = statements(passage.text) if self._warned and titled else ()
        ranks = {span: self._rank(plain(passage.text[slice(*span)]), section, of_drug) for span in spans}
        found, scopes = list[tuple[int, Quote]](), ("", passage.heading if section else "")
        for span, rank in ((each, rank) for each, rank in ranks.items() if rank >= 0):
            text, topic = passage.text[slice(*span)], passage.title if of_drug else self.question
            match = match_subject(topic, passage, text, self._synonyms)
            here = self.subject <= forms(plain(f"{passage.heading} {text}")) and named and named <= forms(self.question)
            if match.name in scopes and (match.kind != "other" or of_drug or here):
                found.append((rank, Quote(passage, span, match.name)))
        return found

    def _rank(self, text: str, section: str, of_drug: bool) -> int:
        """The place of the first sort of warning that a statement is, -1 where it is none that counts."""
        lists, rest = _lists(), split_sentences(text)[1:]
        own = folded(" ".join(rest) if rest and POINTS_BACK.match(rest[0]) else text)
        headed, on_drug = f"{section}: {own}", of_drug or bool(_drugs(own) & self._known)
        silent = len(text) > LONGEST or lists["none"].search(own) or SUPPOSED.search(own)
        for rank, warning in enumerate(() if silent else lists["warnings"]):
            needs = warning.get("needs")
            cue = re.search(warning["said"], headed if needs == "heading" else own)
            kinds = self._own or (self._asked.kinds if needs == "kind" else ())
            if not cue or (needs == "drug" and not on_drug):
                continue
            fits = needs != "kind" or self._of if of_drug else self._is_own(own, cue)
            if fits and all((lists.get(kind.name) or kind.said).search(headed) for kind in kinds):
                return rank
        return -1

    def _is_own(self, text: str, cue: re.Match[str]) -> bool:
        """Whether the subject of a sentence, which stands before its cue, is no other drug or disease."""
        before, after = cue.string[: cue.start()], cue.string[cue.end() :]
        lists, drugs, named = _lists(), _drugs(text), self.subject <= forms(text)
        about_it = lists["whom"].sub(" ", before) if drugs & self._known else before
        others = {each for each in self._titles if re.search(rf"\b{re.escape(each)}\b", about_it)}
        others.update(lists["diseases"].findall(about_it))
        if not named and any(not forms(each) <= forms(f"{self.question} {self.answer}") for each in others):
            return False
        if self._of or drugs & self._known:
            return bool(drugs & self._of) or not self._of
        whom = forms(before) - word_lists()["framing"] - word_lists()["populations"] - self.subject
        narrow = _drugs(before) or (drugs and not named and (whom or lists["limits"].search(after)))
        return self.subject <= forms(after) or not narrow


@lru_cache(maxsize=1)
def _lists() -> dict[str, Any]:
    lists = packaged("medagent.evidence", "warnings.yaml")
    return {name: re.compile(each) if isinstance(each, str) else each for name, each in lists.items()}


def _drugs(text: str) -> frozenset[str]:
    """The drugs and classes of drugs that a text names."""
    classes = (found[0].removesuffix("s") for found in _lists()["classes"].finditer(folded(text)))
    return named_in(text).drugs | frozenset(classes)
