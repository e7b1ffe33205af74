"""Whether a sentence states the relation that a question asks for: a drug's cause, harm or prevention is no treatment.

"Which drug causes gout?" wants a drug that the sentence says to cause it, and not the drug that treats it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.words import folded, forms

_VERBS = {
    "causes": r"caus\w*|trigger\w*|induc\w*|provok\w*|precipitat\w*|leads? to|results? in|brings? on|"
    r"sets? off|culprits?|to blame|responsible for",
    "worsens": r"worsen\w*|aggravat\w*|exacerbat\w*|flares?|makes? (?:\w+ ){1,5}?worse",
    "prevents": r"prevent\w*|protect\w*|prophyla\w*|reduc\w* the risk|stops? (?:\w+ ){1,3}?(?:catching|getting)",
    "excludes": r"contraindicat\w*|avoid\w*|(?:(?:must|should|do)(?: you| i| we)? not|never)(?: be)?"
    r"(?: (?:use|give|take)[dn]?)?|unsafe|(?:not|isn.t|aren.t) (?:safe|suitable|allowed)|dangerous|off limits",
    "interacts": r"interact\w*",
    "diagnoses": r"diagnos\w*|confirm\w*|detect\w*|screens?",
    "treats": r"treat\w*|cures?|cured|reliev\w*|manag\w*|first[- ]line|therap\w*|giv(?:e|en|ing)|prescrib\w*",
}
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
    def asked_by(question: str) -> AskedRelation | None:
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
