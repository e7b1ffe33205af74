"""How strong the evidence of a passage's publication type is, so that a ranking may prefer it.

The order is that of the usual pyramid of evidence: guidelines, syntheses, trials, observational studies, cases. Names
are PubMed's publication types, in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

LEVELS: dict[str, float] = {
    "practice guideline": 1.0,
    "guideline": 1.0,
    "consensus statement": 1.0,
    "consensus development conference": 1.0,
    "systematic review": 0.9,
    "meta-analysis": 0.9,
    "network meta-analysis": 0.9,
    "randomized controlled trial": 0.7,
    "equivalence trial": 0.7,
    "pragmatic clinical trial": 0.7,
    "clinical trial, phase iii": 0.6,
    "clinical trial, phase iv": 0.6,
    "controlled clinical trial": 0.6,
    "clinical trial": 0.5,
    "clinical trial, phase ii": 0.5,
    "clinical trial, phase i": 0.4,
    "observational study": 0.4,
    "comparative study": 0.3,
    "multicenter study": 0.3,
    "review": 0.3,
    "case reports": 0.1,
}
# What other sources than PubMed write for the same.
OTHER_NAMES = {
    "systematic reviews": "systematic review",
    "meta analysis": "meta-analysis",
    "randomised controlled trial": "randomized controlled trial",
    "rct": "randomized controlled trial",
    "trial": "clinical trial",
    "case report": "case reports",
    "guidelines": "guideline",
    "clinical guideline": "guideline",
}


def evidence_level(types: Iterable[str]) -> float:
    """The highest level of a passage's types, from 0 (unknown, letter, editorial) to 1 (guideline).

    >>> evidence_level(["Journal Article", "Meta-Analysis"]), evidence_level(["Letter"])
    (0.9, 0.0)
    """
    names = (" ".join(name.lower().split()) for name in types)
    return max((LEVELS.get(OTHER_NAMES.get(name, name), 0.0) for name in names), default=0.0)
