"""Reads the subject and the kind of a question, and the statements of an answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from medagent.answer_forms import marked_letters, without_citations
from medagent.evidence.sentences import without_sort
from medagent.evidence.support import Statement, content_words, statements_of
from medagent.evidence.words import QuestionKind, asked_for, forms, subject_words, without_kinds
from medagent.retrieval.passages import Passage
from medagent.types import LETTERS, Question

LONG_SUBJECT = 6  # words; a longer one is a case
ENOUGH_OF_A_CASE = 0.75  # share of its words
CLAUSE = 4  # words of an answer that says more than a name
_DECISION = re.compile(r"^\W*(?:yes|no|maybe)\W*$", re.IGNORECASE)
_LEADING_DECISION = re.compile(r"^\s*(?:yes|no)\b[,.:;]\s+(?=\w)", re.IGNORECASE)
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|can|may)\b", re.IGNORECASE)
_MARK = re.compile(r"\s*\([A-J]\)")


@dataclass(frozen=True)
class Asked:
    """The kinds of thing that a question asks for, and the forms of its subject's words, each as it is written."""

    subject: dict[str, str]
    kinds: tuple[QuestionKind, ...]

    @staticmethod
    def of(question: Question) -> "Asked":
        """Read a question; its options are no part of it."""
        text = question.text
        return Asked(subject_words(without_kinds(without_sort(text))), asked_for(text))

    def missing_from(self, words: frozenset[str]) -> list[str]:
        """The forms of the subject that the words lack."""
        return [form for form in self.subject if form not in words]

    def share_in(self, words: frozenset[str]) -> float:
        """How much of the subject the words have; 0 where there is no subject."""
        return 1 - len(self.missing_from(words)) / len(self.subject) if self.subject else 0.0

    @property
    def is_case(self) -> bool:
        """Whether so many words name the subject that no passage repeats all of them."""
        return len(self.subject) > LONG_SUBJECT

    def named_in(self, words: frozenset[str]) -> bool:
        """Whether the words name the subject."""
        share = self.share_in(words)
        return share == 1 or (self.is_case and share >= ENOUGH_OF_A_CASE)


@dataclass(frozen=True)
class Said:
    """An answer, read: what it states, the option it marks, whether both agree, and whether it is a yes or no."""

    statements: tuple[Statement, ...]
    letter: str | None
    decision: bool
    contradicts: bool
    decides: bool  # "yes" or "no", with a reason


def read_answer(answer: str, question: Question, *, shown: int) -> Said:
    """The statements of an answer: its sentences, the name that it gives, or the text of the option that it marks."""
    answer, decides = _LEADING_DECISION.subn("", answer, count=1)
    letters = [letter for letter in marked_letters(answer) if letter in question.letters]
    letter = letters[0] if len(letters) == 1 else None
    plain = (_MARK.sub(" ", without_citations(answer)) if letter else without_citations(answer)).strip(" .;,:")
    option = question.options[LETTERS.index(letter)] if letter else ""
    contradicts = False
    if letter and content_words(plain):
        said = content_words(plain)
        shares = [len(said & words) / len(said | words) for words in map(content_words, question.options)]
        at = LETTERS.index(letter)
        better = any(share >= shares[at] for other, share in enumerate(shares) if other != at)
        ours, theirs = forms(plain), forms(option)  # "clear corneas" are not the option's "cloudy corneas"
        contradicts = shares[at] == 0 or better or bool(ours - theirs and theirs - ours)
    claim = option if letter and not content_words(plain) else plain
    decision = bool(_DECISION.match(claim))
    statements = statements_of(_MARK.sub(" ", answer) if letter else answer, claim, question.text, shown=shown)
    subject = frozenset(Asked.of(question).subject)
    if not letter and statements[0].name and subject and subject < forms(claim) and _VERB.search(claim):
        statements = [replace(statements[0], question="", name=False)]  # a sentence on the subject, not a name
    return Said(tuple(statements), letter, decision, contradicts, bool(decides))


def kinds_beside(title: str, question: str, asked: Asked) -> tuple[tuple[QuestionKind, ...], frozenset[str]]:
    """The kinds that a question asks for beside a passage's title ("digoxin toxicity"), and the forms of names."""
    own = frozenset(asked.subject)
    at = question.lower().find(title.lower()) if title else -1
    rest = asked_for(f"{question[:at]} {question[at + len(title) :]}") if at >= 0 else ()
    return (rest, own | forms(title)) if rest else (asked.kinds, own)


@lru_cache(maxsize=4_096)
def words_of(passage: Passage, name: str = "") -> frozenset[str]:
    """The forms of a passage's words, without a name that is the answer: it does not make the passage the subject's."""
    return forms(f"{passage.title}\n{passage.section}\n{without_name(passage.text, name)}")


def without_name(text: str, name: str) -> str:
    """The text without a name; a clause of `CLAUSE` words or more may name the subject itself."""
    short = name and len(forms(name)) < CLAUSE
    return re.sub(re.escape(name), " ", text, flags=re.IGNORECASE) if short else text


def quoted(names: Sequence[str], last: str = "and") -> str:
    """Names in quotes, joined."""
    return f" {last} ".join(f"\u201c{name}\u201d" for name in names)


def numbered(numbers: Sequence[int]) -> str:
    """Numbers of passages as they are cited."""
    return "".join(f"[{number}]" for number in numbers)
