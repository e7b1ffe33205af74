"""Does what is cited support what is said? Statement by statement, as ALCE counts it (arXiv 2305.14627, section 4).

*Citation recall*: the share of statements that their cited passages, read together, entail. *Citation precision*: the
share of citations that count. A citation counts where its statement is entailed, unless the passage alone does not
entail it and the others do without it.

One question is asked everywhere, of a `SupportJudge`: do these passages state this answer to this question? Serving
asks it for its verdict, evaluation and the reward of citations for these counts, the critic of its evidence. Rules of
words answer it (`medagent.evidence.rules`), or models (`medagent.evidence.judges`).
"""

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

from medagent.answer_forms import citations, without_citations
from medagent.evidence.words import word_list
from medagent.retrieval.chunking import split_sentences
from medagent.retrieval.passages import Passage

WORD = re.compile(r"[^\W_]+(?:[+-](?![\w]))?")
STOP = word_list("stop")
_POINTS_BACK = re.compile(r"\b(?:it|its|they|their|them|this|these|he|she|his|her|the patients?)\b", re.IGNORECASE)
_LINKS = re.compile(  # a list of them states nothing
    r"https?://|\bwww\.|clinicaltrials\.gov|^\W*(?:see also|further reading|(?:related|these) (?:links|resources))\b",
    re.I,
)
_LEADING_CITATIONS = re.compile(r"\s*(?:\[\d{1,3}\]\s*)+")
LONGEST_HYPOTHESIS = 128  # words, of which the last count: there stands the answer
SHORTEST_SENTENCE = 4  # content words; less is a name
WHOLE_SENTENCE = 3  # words of the question that a sentence repeats, and a name does not
_COPULA = re.compile(r"(?i)\b(?:is|are)\b")


@dataclass(frozen=True)
class Statement:
    """One thing that an answer says, with the numbers it cites.

    `name`: a name or phrase that answers `question`, such as an option's text. It is no sentence of its own.
    """

    text: str
    cited: tuple[int, ...]
    question: str = ""
    name: bool = False

    @property
    def hypothesis(self) -> str:
        """The statement as a text that stands alone."""
        whole = f"{self.question} {self.text}" if self.name else self.text
        return " ".join(whole.split()[-LONGEST_HYPOTHESIS:])


Item = tuple[Statement, Sequence[Passage]]
"""A statement, and passages that are read together."""


class SupportJudge(Protocol):
    """Judges whether passages state an answer to a question."""

    @property
    def label(self) -> str:
        """Its name, as `medagent.evidence.judges.support_judge` takes it."""
        ...

    def judge_all(self, items: Sequence[Item]) -> list[bool]:
        """For each item, whether its passages state what is said, as the answer to the statement's question."""
        ...


def content_words(text: str) -> frozenset[str]:
    """The words that carry meaning: lower case, no stop words, a plural's "s" dropped."""
    words = WORD.findall(text.lower())
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words if word not in STOP)


def windows_of(text: str) -> list[str]:
    """The sentences of a text, each with the one before it where it points back, without headings and links."""
    windows: list[str] = []
    before = ""
    for sentence in (each for line in text.splitlines() for each in split_sentences(line)):
        if _LINKS.search(sentence):
            before = ""
            continue
        windows.append(sentence)
        if before and _POINTS_BACK.search(sentence):
            windows.append(f"{before} {sentence}")
        before = sentence
    return windows


def statements_of(answer: str, claim: str, question: str, *, shown: int) -> list[Statement]:
    """The statements of an answer, one per sentence. An answer that is only a name is `claim` with all its citations.

    Numbers above `shown` cite nothing. A sentence cites what stands in it.
    """

    def real(text: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number for number in citations(text) if 1 <= number <= shown))

    sentences: list[str] = []
    for sentence in split_sentences(answer):
        leading = _LEADING_CITATIONS.match(sentence)
        if leading and sentences:  # after a full stop they belong to the sentence before
            sentences[-1] += f" {leading[0].strip()}"
            sentence = sentence[leading.end() :]
        if content_words(without_citations(sentence)):
            sentences.append(sentence)
    repeated = content_words(question) & content_words(claim)
    whole = len(repeated) >= WHOLE_SENTENCE and _COPULA.search(claim)  # "Colchicine is the first-line drug for gout"
    more = content_words(without_citations(answer)) - content_words(claim)
    if not whole and len(sentences) < 2 and len(more) < SHORTEST_SENTENCE:
        return [Statement(claim, real(answer), question, name=True)]
    return [Statement(_tidy(sentence), real(sentence)) for sentence in sentences]


def _tidy(sentence: str) -> str:
    """The sentence without its citations and the spaces they leave."""
    return re.sub(r"\s+(?=[.,;:?!])", "", " ".join(without_citations(sentence).split()))


@dataclass(frozen=True)
class Support:
    """Sums over statements: how many are entailed, how many citations there are, and how many of them count."""

    statements: int = 0
    entailed: int = 0
    citations: int = 0
    counted: int = 0

    def __add__(self, other: "Support") -> "Support":
        return Support(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def support_of(statements: Sequence[Statement], passages: Sequence[Passage], judge: SupportJudge) -> Support:
    """ALCE's counts of one answer. `passages` were shown; number 1 is the first."""
    items: list[Item] = []
    for each in statements:
        read = [passages[number - 1] for number in each.cited]
        if read:
            items.append((each, read))
        if len(read) > 1:
            items += [(each, [passage]) for passage in read]
            items += [(each, read[:at] + read[at + 1 :]) for at in range(len(read))]
    judged = iter(judge.judge_all(items))
    entailed = counted = 0
    for each in statements:
        size = len(each.cited)
        whole = bool(size) and next(judged)
        alone = [next(judged) for _ in each.cited] if size > 1 else [whole] * size
        rest = [next(judged) for _ in each.cited] if size > 1 else [False] * size
        entailed += whole
        counted += sum(whole and (own or not others) for own, others in zip(alone, rest, strict=True))
    return Support(len(statements), entailed, sum(len(each.cited) for each in statements), counted)
