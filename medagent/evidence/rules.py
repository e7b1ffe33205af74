"""Whether passages state an answer, and a sentence the relation that is asked for, by the rules of words alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import Stemmer

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.sentences import denies, stating_windows
from medagent.evidence.support import STOP, WORD, Item, Statement, windows_of
from medagent.evidence.words import asked_for, folded, forms, what_is_asked
from medagent.lazy import packaged
from medagent.retrieval.passages import Passage

_EMPTY = frozenset("also do does did so such than then there these they may can will would most usually it".split())
_NEGATION = re.compile(r"\b(?:not|no|never|without|neither|nor|none|cannot|absent|rarely)\b|n't\b", re.IGNORECASE)
_ADJUNCT = re.compile(
    r"\b(?:in|for|of|during)\s+((?:[\w-]+\s*){1,4})(?=$|[.,;])|^(?:in|during)\s+((?:[\w-]+\s+){1,3})", re.IGNORECASE
)


@lru_cache(maxsize=4_096)
def _stems(text: str) -> frozenset[str]:
    words = [word for word in WORD.findall(text.lower()) if word not in STOP and word not in _EMPTY]
    return frozenset(Stemmer.Stemmer("english").stemWords(words))


@dataclass(frozen=True)
class LexicalRule:
    """Words alone.

    A name is stated by a sentence that has its words and does not deny it, unless the question asks for what is denied.
    A sentence is stated by one that has its word stems and numbers, and is denied if and only if it is. An adjunct
    ("in gout") may come from elsewhere.
    """

    label: ClassVar[str] = "rules"

    def judge_all(self, items: Sequence[Item]) -> list[bool]:
        """See `SupportJudge`."""
        return [self._states(statement, passages) for statement, passages in items]

    @staticmethod
    def _states(statement: Statement, passages: Sequence[Passage]) -> bool:
        if statement.name:
            return any(stating(statement.text, statement.question, passage.text) for passage in passages)
        text = "\n".join(passage.indexed_text for passage in passages)
        said = _NEGATION.sub(" ", statement.text)
        stems, adjuncts = _stems(said), _stems(" ".join(found[1] or found[2] for found in _ADJUNCT.finditer(said)))
        denied, named = bool(_NEGATION.search(statement.text)), named_in(statement.text)
        if not stems or not stems <= _stems(text):
            return False
        near = (window for window in windows_of(text) if stems - adjuncts <= _stems(window))
        alike = (window for window in near if denied == bool(_NEGATION.search(window)))
        return any(not named.beyond(named_in(window)) for window in alike)


def stating(name: str, question: str, text: str) -> list[str]:
    """The sentences of a text that state a name as the answer to a question."""
    denied = denies(what_is_asked(question))
    found = stating_windows(name, text, denied=denied)
    if any(kind.name == "lack" for kind in asked_for(question)):  # "does not make enough cortisol"
        found += stating_windows(name, text, denied=not denied)
    signed = _signed(name)
    return [window for window in found if signed <= _signed(window)]


def _signed(text: str) -> set[str]:
    """The words with a sign, as in "Rh-"."""
    return {word for word in WORD.findall(text.lower()) if word[-1] in "+-"}


_VERBS: dict[str, str] = packaged("medagent.evidence", "relations.yaml")
_DRUG = r"\b(?:drug|medication|medicine|med|tablet|pill|painkiller|antibiotic|agent|vaccine)s?\b"
_TEST = r"\b(?:test|scan|imaging|biopsy|culture|assay|x-?ray|investigation)s?\b"
_SORTS = ((_DRUG, "treats"), (_TEST, "diagnoses"))  # what its sort is for need not be said
_BESIDE = r"(?:[\s,(:-]|\b(?:called|named|known|as|is|are|an?|the|such)\b)*"
_BETWEEN = (
    r"(?: (?:that|which|can|could|may|might|will|would|must|should|is|are|be|do|you|we|doctors|often|most|commonly|"
    r"usually|best|first|known|used|use|given|give|take|get|i|we|someone|every|day|to|in|"
    r"people|patients|adults|children))*"
)
_OF_A_DRUG = re.compile(r"\W*what (?:does|do|did|can)\b")  # "what does allopurinol prevent"
_OF_IT = re.compile(r"\b(?:it|this|the (?:disease|condition|disorder|illness|attacks?))\b")


@dataclass(frozen=True)
class AskedRelation:
    """A relation that a question asks for, and the sort of thing that must have it; empty for any."""

    name: str
    sort: str = ""

    @staticmethod
    def asked_by(question: str) -> "AskedRelation | None":
        """The relation of "which drug causes", "what prevents"; None where the words of the kind are enough."""
        asked = folded(question)
        if _OF_A_DRUG.match(asked):
            return None
        for name, verbs in _VERBS.items():
            for sort, own in _SORTS:
                passive = rf"\b(?:{verbs}) by (?:which|what) {sort}"
                if name != own and re.search(rf"{sort}{_BETWEEN} (?:{verbs})\b|{passive}", asked):
                    return AskedRelation(name, sort)
            free = name in ("worsens", "prevents", "excludes", "interacts")
            if free and re.match(rf"\W*(?:which|what|who){_BETWEEN} (?:{verbs})\b", asked):
                return AskedRelation(name)
        return None

    @property
    def verbs(self) -> str:
        """An expression for its verbs."""
        return rf"\b(?:{_VERBS[self.name]})\b"

    def stated_of(self, answer: str, sentence: str, subject: frozenset[str]) -> bool:
        """Whether a sentence says that the answer has the relation to the subject, of which it has a word."""
        plain, name, verbs = folded(sentence), re.escape(folded(answer)), _VERBS[self.name]
        beside = rf"{self.sort}{_BESIDE}{name}|{name}{_BESIDE}{self.sort}"
        drug = self.sort == _DRUG and named_in(answer).drugs
        if self.sort and not drug and not re.search(self.sort, folded(answer)) and not re.search(beside, plain):
            return False
        others = "|".join(verb for key, verb in _VERBS.items() if key != self.name)
        gap = rf"(?:(?!\b(?:{others})\b)[^.;]){{0,100}}?"
        active = re.search(rf"\b{name}\b{gap}[\s-](?:{verbs})\b(?! by\b)(?P<of>[^.;]*)", plain)
        bare = self.name in ("excludes", "interacts")  # "metformin is contraindicated"
        if active and (bare or subject & forms(active["of"]) or _OF_IT.search(active["of"])):
            return True
        if self.name in ("causes", "worsens"):
            verbs = rf"(?:{verbs})(?:{gap}\b(?:by|is|are|includes?|include))"
        return bool(re.search(rf"\b(?:{verbs})\b{gap}\b{name}\b", plain))
