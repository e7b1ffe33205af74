"""How strong the evidence of a passage's publication type is, so that a ranking may prefer it.

The order is that of the usual pyramid of evidence: guidelines, syntheses, trials, reviews, cases. The kinds are those
of the filter `type`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

from medagent.retrieval.filters import KINDS, folded

LEVELS = {"guideline": 1.0, "systematic review": 0.9, "rct": 0.7, "trial": 0.5, "review": 0.3, "case report": 0.1}


def evidence_level(types: Iterable[str]) -> float:
    """The highest level of a passage's types, from 0 (unknown, letter, editorial) to 1 (guideline).

    >>> evidence_level(["Journal Article", "Meta-Analysis"]), evidence_level(["Letter"])
    (0.9, 0.0)
    """
    return max((_level(name) for name in types), default=0.0)


@lru_cache(maxsize=1000)
def _level(name: str) -> float:
    """Of one type; LEVELS begins with the strongest."""
    found = folded(name)
    kinds = (level for kind, level in LEVELS.items() if any(fnmatchcase(found, each) for each in (kind, *KINDS[kind])))
    return next(kinds, 0.0)
