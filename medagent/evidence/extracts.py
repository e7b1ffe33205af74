"""The documents' own words on a question: whole sentences of the asked subject and kind, the best first."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rapidfuzz import process
from rapidfuzz.distance import OSA

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.reading import Asked, words_of
from medagent.evidence.rules import AskedRelation
from medagent.evidence.sentences import denies
from medagent.evidence.subject import match_subject, word_lists
from medagent.evidence.synonyms import SynonymTable
from medagent.evidence.words import FRAME, asked_for, folded, form, forms, what_is_asked
from medagent.retrieval.chunking import sentence_spans, split_sentences
from medagent.retrieval.passages import Passage
from medagent.types import Question

QUOTED = "Quoted from the corpus, not the agent's answer"
NEAREST = "The nearest sentences of the corpus, which may not answer this"
ALSO = "Also in these sources"
POINTS_BACK = re.compile(r"\W*(?:it|they|this|these|both|such)\b", re.IGNORECASE)
_ITEM = re.compile(r"\s*[-\u2022*] ")
_LIST = re.compile(r":\s*(?:[-\u2022*] |$)")  # a sentence that leads into items
_WHOLE = re.compile(r"[.!;][\"'\u2019\u201d)\]]*$")
_ELSEWHERE = re.compile(  # sentences that send a reader to other pages
    r"https?:|\bwww\.|\b(?:click|see also|visit|for (?:more|further) \w*|more (?:specific )?(?:results|information)|"
    r"resources?|check the list|(?:following|table below|list of) (?:list|links|signs|includes how)|dictionary|"
    r"search (?:for|results)|the table)\b",
    re.IGNORECASE,
)
_OF_A_NAME = re.compile(r"\b(?:of|for|with|against)\s+(?:the\s+)?$", re.IGNORECASE)
_AT_A_PLACE = re.compile(r"\b(?:in|from|to|after)\s+$", re.IGNORECASE)
_DISEASE = re.compile(r"\W*(?:disease|syndrome|disorder|[a-z]+(?:emia|itis|osis|oma|opathy))\b", re.IGNORECASE)
_ALSO = re.compile(r"\balso\b", re.IGNORECASE)
_RESEARCH = re.compile(
    r"\b(?:research\w*|stud(?:y|ies)|investigat(?:e|es|ed|ing|ors?)|scientists?|trials?|are trying to|ongoing)\b"
)
_COUNTED = re.compile(
    r"\b(?:how (?:long|often|many|much|fast|soon|old|common)|percent\w*|odds|chances?|when|incidence|prevalence|dos\w+|"
    r"until what age)\b"
)
_COUNT = re.compile(r"\d|\b(?:one|two|three|four|six|once|twice|half)\b")
_FRAME_FORMS = frozenset(map(form, FRAME))
_SORTS = frozenset(map(form, ("disease", "syndrome", "disorder", "condition")))
NEAR = 0.5  # share of the first quote's score from which another stands beside it
LEAST = 0.5  # the score from which a sentence is near the question
SHORT = 3  # letters of words that may be abbreviations
LONG = 45  # words from which a sentence is long
NAMED = 0.99  # share of a title from which a question names it


@dataclass(frozen=True)
class Quote:
    """Whole sentences of a passage: `span` is their start and end in its text, in characters.

    `scope` names what they are about where that is narrower than what was asked; else it is empty. They are `sure`
    where they are on the asked subject and tell the kind of thing that is asked for. Others are only near it.
    """

    passage: Passage
    span: tuple[int, int]
    scope: str = ""
    sure: bool = True

    @property
    def text(self) -> str:
        """The sentences, in a line."""
        return " ".join(self.passage.text[slice(*self.span)].split())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"passage": self.passage.to_json(), "sentence": list(self.span), "scope": self.scope, "sure": self.sure}


def best_quotes(
    question: str, passages: Sequence[Passage], *, limit: int = 3, synonyms: SynonymTable | None = None
) -> tuple[Quote, ...]:
    """The sentences of passages nearest to what is asked, best first; none where no passage is near.

    Where the first is `sure`, the others are too.
    """
    table = synonyms or SynonymTable.load()
    plain = [table.plain_passage(passage) for passage in passages]
    asked = _Asked(respelt(table.plain(question), plain), plain)
    if asked.unheard_of:
        return ()
    best: dict[str, tuple[float, Quote]] = {}
    for rank, passage in enumerate(passages):
        for score, quote in asked.scored(passage, table, rank):
            if score > best.get(quote.text, (LEAST, quote))[0]:
                best[quote.text] = score, quote
    ranked, found = sorted(best.values(), key=lambda each: -each[0]), list[Quote]()
    for score, quote in ranked:
        (top, first), text = ranked[0], quote.text
        again = any(text in other.text or other.text in text for other in found)
        if len(found) < limit and not again and score >= NEAR * top and (quote.sure or not first.sure):
            found.append(quote)
    return tuple(found)


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


def statements(text: str) -> Iterator[tuple[int, int]]:
    """Spans of whole sentences: with the one before where they point back, and with the items of a list they begin.

    A dose points back where its sentence names no drug and the one before does.

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
        before = text[slice(*spans[at - 1])] if at else ""
        dose = named_in(said) if before and re.search(r"\d", said) else None
        if not POINTS_BACK.match(said) and not (dose and dose.doses and not dose.drugs and named_in(before).drugs):
            before = ""
        whole = bool(_WHOLE.search(before)) and not _ELSEWHERE.search(before)
        item = _ITEM.match(said)
        yield spans[at - 1][0] if whole else start + (item.end() if item else 0), spans[last - 1][1]


def respelt(question: str, passages: Sequence[Passage]) -> str:
    """The question with the words that no passage has as the word of a title that is spelt nearly so."""
    known = frozenset[str]().union(*map(words_of, passages))
    titles = sorted({word for passage in passages for word in re.findall(r"\w{4,}", folded(passage.title))})

    def near(found: re.Match[str]) -> str:
        word = folded(found[0])
        if form(word) in known or form(word) in _idle():
            return found[0]
        best = process.extractOne(word, titles, scorer=OSA.distance, score_cutoff=(len(word) + 1) // 4)
        return best[0] if best else found[0]

    return re.sub(r"\w{4,}", near, question)


class _Asked:
    """What a question asks for, and how much each of its words tells among the passages found."""

    def __init__(self, question: str, passages: Sequence[Passage]) -> None:
        self.question = question
        self.relation = AskedRelation.asked_by(question)
        self.drugs = named_in(question).drugs
        self.of_research = bool(_RESEARCH.search(folded(question)))
        self.counted = bool(_COUNTED.search(folded(question)))
        counts = Counter(each for passage in passages for each in words_of(passage))
        total = len(passages)
        self._weight = {each: math.log(1 + (total - n + 0.5) / (n + 0.5)) for each, n in counts.items()}
        self.titled = {passage.title for passage in passages if self.share_of_title(passage.title) > NAMED}
        beside = re.sub("|".join(re.escape(title) for title in self.titled) or "$^", " ", question, flags=re.IGNORECASE)
        self.kinds = asked_for(beside) or asked_for(question)
        self.of_treatment = any(kind.name == "treatment" for kind in self.kinds)
        asking = forms(" ".join(found[0] for kind in self.kinds for found in kind.asked.finditer(folded(question))))
        self.words = forms(question) - _FRAME_FORMS - asking
        self.total = sum(map(self.weight, self.words)) or 1.0
        self.unheard_of = self._names_none_of(frozenset(counts))

    def weight(self, word: str) -> float:
        """The inverse of how many passages have a word, as in BM25; 0 for a word that none has."""
        return self._weight.get(word, 0.0)

    def share(self, words: frozenset[str]) -> float:
        """How much of the question these words are."""
        return sum(map(self.weight, self.words & words)) / self.total

    def share_of_title(self, title: str) -> float:
        """How much of a title the question has; a title may be asked for by its initials."""
        names = forms(title) - _FRAME_FORMS - _SORTS
        initials = "".join(word[0] for word in re.findall(r"\w+", title) if form(folded(word)) in forms(title))
        if len(initials) > 1 and re.search(rf"\b{initials.upper()}\b", self.question):
            return 1.0
        return sum(map(self.weight, names & forms(self.question))) / (sum(map(self.weight, names)) or 1.0)

    def _names_none_of(self, known: frozenset[str]) -> bool:
        """Whether the question has a name that no passage has: what is said of its other words is no answer."""
        asked = Asked.of(Question("", self.question))
        for word in (asked.subject[each] for each in asked.missing_from(known | _idle())):
            before, _, after = self.question.partition(word)
            named = word[0].isupper() and word[1:].islower() and before.strip() and not _AT_A_PLACE.search(before)
            if len(word) > SHORT and (named or _OF_A_NAME.search(before) or _DISEASE.match(after)):
                return True
        return False

    def scored(self, passage: Passage, synonyms: SynonymTable, rank: int) -> Iterator[tuple[float, Quote]]:
        """The statements of a passage, each with how near it is to what is asked."""
        plain = synonyms.plain_passage(passage)
        heading, title = forms(plain.heading), self.share_of_title(plain.title)
        rest = _without(plain.heading, forms(plain.title))
        headed = any(kind.asked.search(rest) for kind in self.kinds)
        spans = list(statements(passage.text))
        read = [forms(synonyms.plain(passage.text[start:end])) for start, end in spans]
        for at, span in enumerate(spans):
            text = passage.text[slice(*span)]
            said = _without(text, forms(plain.title))
            named = named_in(text)
            if self.relation:
                sort = named.drugs or re.search(self.relation.sort, folded(text))  # a drug, or a test, by its name
                if not (sort and re.search(self.relation.verbs, said)):
                    continue
            if named.doses and self.drugs and named.drugs and not named.drugs & self.drugs:
                continue  # the dose of another drug
            match = match_subject(self.question, passage, text, synonyms)
            told = [kind for kind in self.kinds if kind.said.search(said)]
            here, beside = self.share(read[at]), frozenset[str]().union(*read[max(0, at - 2) : at + 3])
            on_kind = bool(told or headed or (here and not self.kinds))
            sure = on_kind and (match.kind != "other" or title > NAMED)
            sure = sure and not any(kind.needed and kind not in told for kind in self.kinds)
            score = here + 0.9 * self.share(heading - read[at]) + 0.3 * self.share(beside - heading - read[at])
            score += 0.5 * title + 0.15 / (1 + rank) + 0.2 * (match.kind == "same")
            score += 0.25 * len(told) / (len(self.kinds) or 1) - 0.4 * (bool(self.kinds) and not told and not headed)
            score += 0.15 * any(kind.asked.search(said) for kind in self.kinds)
            score += 0.5 * (self.counted and bool(_COUNT.search(said))) - 0.2 * min(1.0, len(read[at]) / LONG)
            score -= 0.1 * (denies(what_is_asked(self.question)) != denies(text))
            score -= 0.1 * bool(_ALSO.search(text))  # it adds to what was said before
            score -= 0.4 * (bool(_RESEARCH.search(said)) and not self.of_research)
            score += 0.3 * (self.of_treatment and bool(named.drugs - self.drugs))
            yield score, Quote(passage, span, match.name, sure)


def _idle() -> frozenset[str]:
    """The forms of words that name no subject."""
    return frozenset[str]().union(*word_lists().values())


def _without(text: str, names: frozenset[str]) -> str:
    """The text, folded, without the words of names."""
    return re.sub(r"\w+", lambda found: " " if forms(found[0]) & names else found[0], folded(text))
