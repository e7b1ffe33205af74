"""Searching by rule: queries from a question's words, and the passages that show its answer.

Words are compared by the stems of the biomedical analyser, so that "caused" is "cause" and "IL 6" is "IL-6". Whether a
passage shows an answer is judged on the text that an agent is shown, not on what was found.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from medagent.environment import AgentSettings
from medagent.evaluation.grading.option_named import normalise
from medagent.protocol import TurnProtocol
from medagent.retrieval.analysis import STOPWORDS, Analyser
from medagent.retrieval.chunking import sentence_spans
from medagent.retrieval.passages import Hit, Passage, names_found
from medagent.types import Question
from medagent.untrusted_text import harmless, harmless_passages

# Words of a question that say nothing about its subject.
_SAYS_NOTHING = STOPWORDS | frozenset(
    "after also among any because before best between both during each following give given he her his likely "
    "list me most name no not please she show shows so some than used usual usually very you your".split()
)
# Nouns that a description begins with ("the disease caused by ..."): the next query has a name in its place.
_DESCRIBED = frozenset(
    "condition disease disorder illness infection man patient people person syndrome thing woman".split()
)
_WORD = re.compile(r"[^\W_]+(?:[-'’/.][^\W_]+)*")
# Names within a sentence: words with a capital letter or a digit, joined by what joins names.
_NAMED = r"(?:[^\W\d_]*[A-Z0-9][\w-]*)"
_NAME = re.compile(rf"{_NAMED}(?:[ -](?:(?:of|de|von|the) )?{_NAMED})*")
# A thing that a question describes instead of naming it, and what follows.
_DESCRIPTION = re.compile(
    r"\bthe (?:condition|disease|disorder|illness|infection|syndrome)\b,? "
    r"(?=that\b|which\b|whose\b|with\b|in which\b|caused\b|characteri[sz]ed\b|due\b|marked\b|result)(.+)",
    re.IGNORECASE | re.DOTALL,
)
MOST_WORDS = 12  # of a query
LONGEST_TITLE = 8  # words; a longer title is a sentence, and names nothing
RARE = 0.02  # share of the passages up to which a word in lower case is a term
ON_TOPIC = 0.3  # share of a query's weight that a passage must hold to be about it
# Answers that are judgements. They stand in texts by chance, so only gold passages show them.
_JUDGEMENTS = frozenset(("yes", "no", "maybe", "true", "false", "none"))
_PART = re.compile(r"([^\W_]+)")
_JOINS = re.compile(r"[\s\-‐‑–/]+")
_BEFORE = r"(?<!\w)(?<!\d[.,])(?<!\bnon-)(?<!\bnon )(?<!\bnot )(?<!\bno )(?<!\banti-)"
_AFTER = r"(?![\w+])(?!-(?!\w))(?![.,]\d)"
_UNBOUNDED = 1_000_000  # tokens


def words_of(text: str) -> list[str]:
    """The words of a text that say something, as they are written, each once."""
    found = {word.lower(): word for word in reversed(_WORD.findall(text)) if word.lower() not in _SAYS_NOTHING}
    return list(reversed(found.values()))


_ANALYSER = Analyser("biomedical")


@lru_cache(maxsize=100_000)
def stems(text: str) -> frozenset[str]:
    """The stems by which texts are compared."""
    return frozenset(_ANALYSER.tokens(text))


def without(words: Iterable[str], known: frozenset[str]) -> list[str]:
    """The words that bring a stem which is not known yet."""
    return [word for word in words if not (found := stems(word)) or not found <= known]


@dataclass
class Rarity:
    """In how many texts a stem stands, counted over the texts it was shown."""

    texts: int = 0
    holding: Counter[str] = field(default_factory=Counter)

    def add(self, texts: Iterable[str]) -> None:
        """Count further texts."""
        for text in texts:
            self.texts += 1
            self.holding.update(stems(text))

    def weight(self, stem: str) -> float:
        """The inverse document frequency, above 0."""
        return math.log((self.texts + 1) / (self.holding[stem] + 0.5)) if self.texts else 1.0

    def of(self, word: str) -> float:
        """The weight of a word's rarest stem; 0 of a word without one."""
        return max(map(self.weight, stems(word)), default=0.0)

    def share(self, wanted: frozenset[str], text: str) -> float:
        """The share of the wanted stems, by weight, that a text holds; those that no text holds do not count."""
        known = [stem for stem in sorted(wanted) if self.holding[stem]]
        total = sum(map(self.weight, known))
        held = stems(text)
        return sum(self.weight(stem) for stem in known if stem in held) / total if total > 0 else 0.0

    def rare(self, word: str) -> bool:
        """Whether a word is a term: in few texts, or in one."""
        held = max((self.holding[stem] for stem in stems(word)), default=0)
        return held <= max(1.0, RARE * self.texts)

    def rarest(self, words: Sequence[str], most: int) -> list[str]:
        """The `most` rarest words, in their order."""
        order = sorted(range(len(words)), key=lambda at: (-self.of(words[at]), at))
        return [words[at] for at in sorted(order[:most])]


def first_query(question: str, rarity: Rarity) -> str:
    """The words of a question, of a long one the rarest among all questions; the text where it has none.

    A question that describes a thing to be found first gives the words of the description.
    """
    described = _DESCRIPTION.search(question)
    words = (described and words_of(described[1])) or words_of(question)
    return " ".join(rarity.rarest(words, MOST_WORDS)) or " ".join(question.split())


def bridges(question: str, title: str, text: str, rarity: Rarity) -> list[str]:
    """Names that the question lacks: a passage's title, then those in the sentence nearest to the question."""
    asked = stems(question)
    sentences = [text[start:end] for start, end in sentence_spans(text)] or [text]
    sentence = max(sentences, key=lambda each: rarity.share(asked, each))
    found = [each for each in _NAME.finditer(sentence) if each[0].lower() not in _SAYS_NOTHING]
    names = [each[0] for each in found if not each[0].isdigit() and (each.start() or rarity.rare(each[0]))]
    terms = [word for word in words_of(sentence) if word.islower() and len(word) > 3 and rarity.rare(word)]
    told = [title] if 0 < len(title.split()) <= LONGEST_TITLE else []
    told += sorted(names, key=lambda name: -rarity.of(name))
    told += sorted(terms, key=lambda word: -rarity.of(word))
    new = {name.lower(): name for name in reversed(told) if stems(name) and not stems(name) <= asked}
    return list(reversed(new.values()))


def next_query(question: str, bridge: str, passage: str) -> str:
    """A bridge, and what the question asks besides that the passage does not tell.

    A description, from "the disease" up to its last word that the passage tells, gives way to the bridge whole.
    """
    words, known = words_of(question), stems(passage)
    told = [at for at, word in enumerate(words) if (found := stems(word)) and found <= known]
    heads = [at for at, word in enumerate(words) if word.lower() in _DESCRIBED and told and at < told[-1]]
    if heads:
        words = words[: heads[0]] + words[told[-1] + 1 :]
    asked = without([word for word in words if word.lower() not in _DESCRIBED], stems(bridge))
    return " ".join([bridge, *(without(asked, known) or asked)][:MOST_WORDS])


def rewordings(question: str, rarity: Rarity) -> list[str]:
    """Other queries for the same question: its rarest words, and its whole text."""
    words = words_of(question)
    shorter = [" ".join(rarity.rarest(words, count)) for count in (3, 2) if count < len(words)]
    return [*shorter, " ".join(question.split())]


Shown = list[tuple[Hit, str]]
"""The hits of a search that an agent is shown, and their texts as it reads them."""


@dataclass(frozen=True)
class Evidence:
    """A passage that shows the answer."""

    number: int  # from 1 within its search
    wording: str  # of the answer, as the passage words it; empty where it judges


def shown(hits: Sequence[Hit], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> Shown:
    """The hits that an agent is shown under `settings`, with their texts; the last passage may be truncated."""
    protocol, room = settings.protocol, settings.limits.max_observation_tokens
    passages = harmless_passages(tokenizer, [hit.passage for hit in hits])

    def read(some: Sequence[Passage], limit: int) -> tuple[str, int]:
        ids, count = protocol.encode_observation(tokenizer, some, first_number=1, max_tokens=limit)
        return str(tokenizer.decode(ids)), count

    text, count = read(passages, room)
    kept = passages[:count]
    texts = [protocol.neutralise(passage.shown_text) for passage in kept]
    if kept and text != read(kept, _UNBOUNDED)[0]:
        before = read(kept[:-1], room)[0] if count > 1 else ""
        same = next((at for at, (one, two) in enumerate(zip(text, before, strict=False)) if one != two), len(before))
        texts[-1] = text[same:]
    return list(zip(hits[:count], texts, strict=True))


def golds_of(question: Question, protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The texts of the gold answer as an agent may read them: the option's, or the answer and its aliases."""
    if question.options:
        at = question.letters.find(question.answer) if question.answer else -1
        texts = [question.options[at]] if at >= 0 else []
    else:
        texts = [question.answer, *question.aliases]
    plain = (protocol.neutralise(harmless(tokenizer, text)) for text in texts)
    return tuple(dict.fromkeys(filter(None, plain)))


def evidence_in(found: Shown, question: Question, golds: Sequence[str], query: str, rarity: Rarity) -> Evidence | None:
    """The passage of a search that shows the answer best.

    If the question names gold passages, only these count, and pieces of these documents. Otherwise a passage must be
    about the query: the same words stand in texts on other things.

    A wording that grading takes for right goes first, then what shares more with the query, then the better rank.
    """
    gold_ids, right = set(question.gold_passage_ids), set(map(normalise, golds))
    wanted = stems(query) - stems(" ".join(golds)) or stems(query)
    ranked: dict[tuple[bool, float, int], Evidence] = {}
    for number, (hit, text) in enumerate(found, start=1):
        topic = rarity.share(wanted, text)
        if gold_ids and not names_found(gold_ids, [hit.passage]):
            continue
        if not gold_ids and topic < ON_TOPIC:
            continue
        worded = _wording(text, golds, right, judged=bool(gold_ids))
        if worded is not None:
            ranked[normalise(worded) in right, topic, -number] = Evidence(number, worded)
    return ranked[max(ranked)] if ranked else None


def says(text: str, golds: Sequence[str]) -> bool:
    """Whether a text says one of the answers."""
    return any(_pattern(gold).search(text) for gold in golds)


def _wording(text: str, golds: Sequence[str], right: set[str], *, judged: bool) -> str | None:
    """The answer in a passage's words; a judgement has none and needs a gold passage."""
    if right and right <= _JUDGEMENTS:
        return "" if judged else None
    spoken = (gold for gold in golds if normalise(gold) not in _JUDGEMENTS)
    found = [match[0] for gold in spoken for match in _pattern(gold).finditer(text)]
    return min(found, key=lambda each: normalise(each) not in right, default=None)


@lru_cache(maxsize=20_000)
def _pattern(answer: str) -> re.Pattern[str]:
    """A pattern that finds an answer in any case, joined by spaces or hyphens, its last word in singular or plural.

    "Non-Hodgkin lymphoma" does not say "Hodgkin lymphoma", nor "Rh+" "Rh", nor "12.5" "12".
    """
    start, *pieces = _PART.split(answer)
    if not pieces:
        return re.compile(r"(?!)")
    *before, last, end = pieces
    loose = (r"[\s\-‐‑–/]{1,2}" if _JOINS.fullmatch(each) else re.escape(each) for each in before)
    pattern = re.escape(start) + "".join(loose) + _either_number(last) + re.escape(end.rstrip(" .,;:"))
    return re.compile(_BEFORE + pattern + _AFTER, re.IGNORECASE)


def _either_number(word: str) -> str:
    """A pattern of a noun in singular and plural.

    >>> bool(re.fullmatch(_either_number("virus"), "viruses")), bool(re.fullmatch(_either_number("biopsies"), "biopsy"))
    (True, True)
    """
    if len(word) < 3 or not word.isalpha() or not word.isascii():
        return re.escape(word)
    bases = {word}
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        bases.add(word[:-1])
    if word.endswith("es"):
        bases.add(word[:-2])
    forms = {form for base in bases for form in (base, base + "s", base + "es")}
    forms |= {base[:-1] + "ies" for base in bases if base.endswith("y")}
    forms |= {word[:-3] + "y"} if word.endswith("ies") else set()
    return f"(?:{'|'.join(sorted(map(re.escape, forms), key=len, reverse=True))})"
