"""Does what is cited support what is said? Statement by statement, as ALCE counts it (arXiv 2305.14627, section 4).

*Citation recall*: the share of statements that their cited passages, read together, entail. *Citation precision*: the
share of citations that count. A citation counts where its statement is entailed, unless the passage alone does not
entail it and the others do without it.

Entailment is judged by words, or by a model that is named (`NLIModel`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import Stemmer
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from medagent.answer_forms import citations, without_citations
from medagent.errors import InputError
from medagent.evidence.drugs_and_doses import named_in
from medagent.retrieval.chunking import split_sentences

_WORD = re.compile(r"[^\W_]+(?:[+-](?![\w]))?")
_STOP = frozenset(
    (
        "a an and are as at be been by for from has have in into is it its of on or that the their this to was were "
        "which with"
    ).split()
)
_EMPTY = frozenset("also do does did so such than then there these they may can will would most usually it".split())
_NEGATION = re.compile(r"\b(?:not|no|never|without|neither|nor|none|cannot|absent|rarely)\b|n't\b", re.IGNORECASE)
_POINTS_BACK = re.compile(r"\b(?:it|its|they|their|them|this|these|he|she|his|her|the patients?)\b", re.IGNORECASE)
_ADJUNCT = re.compile(
    r"\b(?:in|for|of|during)\s+((?:[\w-]+\s*){1,4})(?=$|[.,;])|^(?:in|during)\s+((?:[\w-]+\s+){1,3})", re.IGNORECASE
)
_LINKS = re.compile(  # a list of them states nothing
    r"https?://|\bwww\.|\bclinicaltrials\.gov\b|^\W*(?:see also|related (?:links|topics|resources)|further reading)\b|"
    r"^\W*these (?:links|resources)\b",
    re.IGNORECASE,
)
_LEADING_CITATIONS = re.compile(r"\s*(?:\[\d{1,3}\]\s*)+")
LONGEST_HYPOTHESIS = 128  # words, of which the last count: there stands the answer
SHORTEST_SENTENCE = 4  # content words; less is a name


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


class Entailment(Protocol):
    """Judges whether passages entail statements."""

    @property
    def label(self) -> str:
        """Its name in reports."""
        ...

    def __call__(self, pairs: Sequence[tuple[str, Statement]]) -> list[bool]:
        """For each pair of a passage's text and a statement, whether the one entails the other."""
        ...


def content_words(text: str) -> frozenset[str]:
    """The words that carry meaning: lower case, no stop words, a plural's "s" dropped."""
    words = _WORD.findall(text.lower())
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words if word not in _STOP)


@lru_cache(maxsize=4_096)
def _stems(text: str) -> frozenset[str]:
    words = [word for word in _WORD.findall(text.lower()) if word not in _STOP and word not in _EMPTY]
    return frozenset(Stemmer.Stemmer("english").stemWords(words))


@dataclass(frozen=True)
class LexicalRule:
    """Words alone.

    A name is entailed by a text with all its content words. A sentence is entailed by a sentence of the text that has
    its word stems and numbers, and is denied if and only if it is. An adjunct ("in gout") may come from elsewhere.
    """

    label: ClassVar[str] = "words"

    def __call__(self, pairs: Sequence[tuple[str, Statement]]) -> list[bool]:
        """See `Entailment`."""
        return [self._entails(text, statement) for text, statement in pairs]

    @staticmethod
    def _entails(text: str, statement: Statement) -> bool:
        if statement.name:
            wanted = content_words(statement.text)
            return bool(wanted) and wanted <= content_words(text)
        said = _NEGATION.sub(" ", statement.text)
        stems, adjuncts = _stems(said), _stems(" ".join(found[1] or found[2] for found in _ADJUNCT.finditer(said)))
        denied, named = bool(_NEGATION.search(statement.text)), named_in(statement.text)
        return bool(stems) and any(
            stems - adjuncts <= _stems(window)
            and stems <= _stems(text)
            and denied == bool(_NEGATION.search(window))
            and not named.beyond(named_in(window))
            for window in windows_of(text)
        )


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


class NLIModel:
    """A cross-encoder for natural language inference, by name or folder, such as cross-encoder/nli-deberta-v3-small.

    A statement is entailed where the label that begins with "entail" is the likeliest. The longer text of a pair above
    `max_tokens`, the passage, is truncated. Pairs are judged `batch` at once.

    Raises:
        InputError: the model cannot be loaded, or has no such label.
    """

    def __init__(self, model: str, batch: int = 16, max_tokens: int = 512) -> None:
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model)
            self._model = AutoModelForSequenceClassification.from_pretrained(model).eval()
        except (OSError, ValueError) as error:
            raise InputError(
                f"entailment {model}: cannot be loaded ({str(error).splitlines()[0]}). Give a folder or a hub name of "
                "a sequence classifier for natural language inference, or leave it out."
            ) from error
        labels = {int(at): str(name).lower() for at, name in self._model.config.id2label.items()}
        found = [at for at, name in labels.items() if name.startswith("entail")]
        if len(found) != 1:
            raise InputError(
                f"entailment {model}: its labels are {', '.join(labels.values())}, wanted one that begins with "
                '"entail". It is no model for natural language inference.'
            )
        self._entails, self._batch, self._max_tokens = found[0], batch, max_tokens
        self.label = model

    @torch.inference_mode()
    def __call__(self, pairs: Sequence[tuple[str, Statement]]) -> list[bool]:
        """See `Entailment`."""
        judged: list[bool] = []
        for start in range(0, len(pairs), self._batch):
            some = pairs[start : start + self._batch]
            encoded = self._tokenizer(
                [text for text, _ in some],
                [statement.hypothesis for _, statement in some],
                truncation="longest_first",
                max_length=self._max_tokens,
                padding=True,
                return_tensors="pt",
            )
            judged += (self._model(**encoded).logits.argmax(dim=-1) == self._entails).tolist()
        return judged


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
    if len(sentences) < 2 and len(content_words(without_citations(answer)) - content_words(claim)) < SHORTEST_SENTENCE:
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

    def __add__(self, other: Support) -> Support:
        """Both together."""
        return Support(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def support_of(statements: Sequence[Statement], texts: Sequence[str], entails: Entailment) -> Support:
    """ALCE's counts of one answer. `texts` are the passages shown; number 1 is the first."""
    pairs: list[tuple[str, Statement]] = []
    for each in statements:
        read = [texts[number - 1] for number in each.cited]
        if read:
            pairs.append(("\n".join(read), each))
        if len(read) > 1:
            pairs += [(text, each) for text in read]
            pairs += [("\n".join(read[:at] + read[at + 1 :]), each) for at in range(len(read))]
    judged = iter(entails(pairs))
    entailed = counted = 0
    for each in statements:
        size = len(each.cited)
        whole = bool(size) and next(judged)
        alone = [next(judged) for _ in each.cited] if size > 1 else [whole] * size
        rest = [next(judged) for _ in each.cited] if size > 1 else [False] * size
        entailed += whole
        counted += sum(whole and (own or not others) for own, others in zip(alone, rest, strict=True))
    return Support(len(statements), entailed, sum(len(each.cited) for each in statements), counted)
