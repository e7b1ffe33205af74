"""The documents' own words on a question: whole sentences of the asked subject and kind, the best first."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.reading import Asked, words_of
from medagent.evidence.relations import AskedRelation
from medagent.evidence.sentences import SUPPOSED, denies
from medagent.evidence.subject import match_subject, word_lists
from medagent.evidence.synonyms import SynonymTable
from medagent.evidence.words import FRAME, QuestionKind, asked_for, folded, form, forms, what_is_asked, without_kinds
from medagent.retrieval.chunking import sentence_spans, split_sentences
from medagent.retrieval.passages import Passage
from medagent.types import Question

QUOTED = "Quoted from the corpus, not the agent's answer"
_POINTS_BACK = re.compile(r"\W*(?:it|they|this|these|both|such)\b", re.IGNORECASE)
_ITEM = re.compile(r"\s*[-\u2022*] ")
_LIST = re.compile(r":\s*(?:[-\u2022*] |$)")  # a sentence that leads into items
_WHOLE = re.compile(r"[.!;][\"'\u2019\u201d)\]]*$")
_ELSEWHERE = re.compile(  # sentences that send a reader to other pages
    r"https?:|\bwww\.|\b(?:click|see also|visit|for (?:more|further) \w*|more (?:specific )?(?:results|information)|"
    r"resources?|check the list|(?:following|table below|list of) (?:list|links|signs|includes how)|dictionary|"
    r"search (?:for|results)|the table)\b",
    re.IGNORECASE,
)
_OF_A_NAME = re.compile(r"\b(?:of|in|for|with|against)\s+(?:an?\s+|the\s+)?$", re.IGNORECASE)
_DISEASE = re.compile(r"\W*(?:disease|syndrome|disorder)\b", re.IGNORECASE)
_FRAME_FORMS = frozenset(map(form, FRAME))


@dataclass(frozen=True)
class Quote:
    """Whole sentences of a passage: `span` is their start and end in its text, in characters.

    `scope` names what they are about where that is narrower than what was asked; else it is empty.
    """

    passage: Passage
    span: tuple[int, int]
    scope: str = ""

    @property
    def text(self) -> str:
        """The sentences, in a line."""
        return " ".join(self.passage.text[slice(*self.span)].split())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"passage": self.passage.to_json(), "sentence": list(self.span), "scope": self.scope}


def best_quotes(
    question: str, passages: Sequence[Passage], *, limit: int = 3, synonyms: SynonymTable | None = None
) -> tuple[Quote, ...]:
    """The sentences of passages that tell what is asked, best first; none where no passage is on the subject."""
    table = synonyms or SynonymTable.load()
    question = table.plain(question)
    if _unheard_of(question, [table.plain_passage(passage) for passage in passages]):
        return ()
    found = {quote.text: quote for passage in passages for quote in _about(question, passage, table)}
    kinds, quotes = asked_for(question), list(found.values())
    weights, asked = _weights(quotes), Asked.of(Question("", question))
    scored = [
        (score + 2 * asked.share_in(forms(table.plain(quote.passage.title))), quote)
        for quote in quotes
        if (score := _score(question, kinds, quote, weights)) > 0
    ]
    return tuple(quote for _, quote in sorted(scored, key=lambda each: -each[0])[:limit])


def queries_of(question: str, synonyms: SynonymTable | None = None) -> tuple[str, ...]:
    """The searches for passages to quote: the question itself, and the words of its subject by its usual name."""
    plain = (synonyms or SynonymTable.load()).plain(question)
    subject = " ".join(Asked.of(Question("", plain)).subject.values())
    return (question, subject) if subject else (question,)


def answer_from(quotes: Sequence[Quote], shown: Sequence[Passage]) -> str:
    """Quotes as the text of an answer: each sentence with the number under which its passage was shown."""
    return " ".join(
        f"{sentence} [{shown.index(quote.passage) + 1}]" for quote in quotes for sentence in split_sentences(quote.text)
    )


def _about(question: str, passage: Passage, synonyms: SynonymTable) -> Iterator[Quote]:
    """The statements of a passage that are about the question's subject, or about a narrower one."""
    named = _titled(question, synonyms.plain_passage(passage))
    for start, end in _statements(passage.text):
        match = match_subject(question, passage, passage.text[start:end], synonyms)
        if match.kind != "other" or named:
            yield Quote(passage, (start, end), "" if match.kind == "other" else match.name)


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """Spans of whole sentences: with the one before where they point back, and with the items of a list they begin.

    Headings, questions, and sentences that send the reader elsewhere are none.
    """
    spans = [(start, start + len(text[start:end].rstrip())) for start, end in sentence_spans(text)]
    taken = 0
    for at, (start, end) in enumerate(spans):
        said = text[start:end]
        if at < taken or not (_WHOLE.search(said) or _LIST.search(said) or len(spans) == 1) or _ELSEWHERE.search(said):
            continue
        last = at + 1
        while _LIST.search(said) and last < len(spans) and _ITEM.match(text[spans[last][0] :]):
            last += 1
        taken = last
        before = text[slice(*spans[at - 1])] if at and _POINTS_BACK.match(said) else ""
        whole = bool(_WHOLE.search(before)) and not _ELSEWHERE.search(before)
        item = _ITEM.match(said)
        yield spans[at - 1][0] if whole else start + (item.end() if item else 0), spans[last - 1][1]


def _titled(question: str, passage: Passage) -> bool:
    """Whether the question names a passage's title ("Graves'. What do we start?"), and no word beside it narrows it."""
    asked = folded(question)
    rest = without_kinds(asked)
    for part in re.split(r"[:;|()\[\]]", passage.title):
        words = [word for word in re.findall(r"[\w-]+", folded(part)) if form(word) not in _FRAME_FORMS]
        found = words and re.search(r"\b" + r"\W+".join(map(re.escape, words)) + r"s?\b", asked)
        if found:
            beside = re.findall(r"(\w{3,})[ -]$", rest[: found.start()])
            beside += re.findall(r"^(?:'s?)?[ -](\w{3,})", rest[found.end() :])
            return forms(" ".join(beside)) - _idle() <= words_of(passage)
    return False


def _unheard_of(question: str, passages: Sequence[Passage]) -> bool:
    """Whether the question has a name that no passage has: what is said of its other words is no answer."""
    known = frozenset[str]().union(*map(words_of, passages))
    asked = Asked.of(Question("", question))
    for word in (asked.subject[each] for each in asked.missing_from(known | _idle())):
        before, _, after = question.partition(word)
        if _OF_A_NAME.search(before) or _DISEASE.match(after) or (word[0].isupper() and before.strip()):
            return True
    return False


def _idle() -> frozenset[str]:
    """The forms of words that name no subject."""
    return frozenset[str]().union(*word_lists().values())


def _weights(quotes: Sequence[Quote]) -> dict[str, float]:
    """How much each word tells quotes apart: the inverse of how many have it, as in BM25."""
    counts = Counter(each for quote in quotes for each in forms(quote.text))
    return {each: math.log(1 + len(quotes) / (count + 1)) for each, count in counts.items()}


def _score(question: str, kinds: Sequence[QuestionKind], quote: Quote, weights: dict[str, float]) -> float:
    """How well a quote answers; 0 where it tells nothing of what is asked."""
    named = forms(quote.passage.title)
    said = _without(quote.text, named)
    heading = _without(quote.passage.heading, named)
    wanted = forms(question) - _FRAME_FORMS - named
    shared = sum(weights.get(each, 0.0) for each in wanted & forms(quote.text))
    overlap = shared / (sum(weights.get(each, max(weights.values(), default=1.0)) for each in wanted) or 1)
    relation = AskedRelation.asked_by(question)
    if relation and not (re.search(relation.verbs, said) and _is_of(relation.sort, quote.text)):
        return 0.0
    told = [kind for kind in kinds if kind.said.search(said)]
    headed = any(kind.asked.search(heading) for kind in kinds)
    if any(kind.needed and kind not in told for kind in kinds) or not (told or headed or (overlap and not kinds)):
        return 0.0
    plainly = any(kind.asked.search(said) for kind in kinds)
    score = 1 + 2 * len(told) / (len(kinds) or 1) + plainly + headed + 2 * overlap + (not quote.scope)
    score += 0.5 * bool(named & forms(quote.text))
    score -= denies(what_is_asked(question)) != denies(quote.text)
    return score - 0.5 * bool(SUPPOSED.search(quote.text))


def _is_of(sort: str, text: str) -> bool:
    """Whether a text names something of the sort that a relation wants: a drug or a test, by an expression."""
    return bool(named_in(text).drugs) or bool(re.search(sort, folded(text)))


def _without(text: str, names: frozenset[str]) -> str:
    """The text, folded, without the words of names."""
    return re.sub(r"\w+", lambda found: " " if forms(found[0]) & names else found[0], folded(text))
