"""Abbreviations with their long forms, as "Lentigo maligna melanoma (LMM)".

The rule of Schwartz and Hearst (PSB 2003): from right to left, each character of the short form must occur in the words
before the bracket, and the first one must begin a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SHORT = re.compile(r"\(([A-Z][A-Za-z0-9-]{1,9})\)")
_BEFORE = re.compile(r"[\w'’/-]+(?:[ ,]+[\w'’/-]+)*\s*$")


def abbreviations_in(text: str) -> Iterator[tuple[str, str]]:
    """(short form, long form) of each bracketed abbreviation; short forms have at least two capitals."""
    for match in _SHORT.finditer(text):
        short = match.group(1)
        before = _BEFORE.search(text, max(0, match.start() - 120), match.start())
        if sum(char.isupper() for char in short) < 2 or before is None:
            continue
        words = before.group().split()
        nearest = " ".join(words[-min(len(short) + 5, len(short) * 2) :])
        if (long := _long_form(short, nearest)) and len(long.split()) > 1:
            yield short, long


def _long_form(short: str, words: str) -> str:
    """The shortest end of `words` that the short form abbreviates; empty where there is none."""
    at = len(words) - 1
    characters = [char.lower() for char in short if char.isalnum()]
    for number, char in enumerate(reversed(characters)):
        first = number == len(characters) - 1
        while at >= 0 and (words[at].lower() != char or (first and at > 0 and words[at - 1].isalnum())):
            at -= 1
        if at < 0:
            return ""
        at -= 1
    return words[at + 1 :].strip()
