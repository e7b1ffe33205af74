"""Raised characters and joined letters, alike in every format: exponents, marks of references, ligatures."""

from __future__ import annotations

import re
import unicodedata

_LIGATURES = re.compile("[\ufb00-\ufb06]")
_EXPONENT = re.compile(r"[-−–+]?\d+(?:\.\d+)?")
_BASE = re.compile(r"(?:\d|(?<![^\W\d_])[cdkmnµ]?m)$")  # what is raised: "10" of a power, "m" of an area
_MARK = re.compile(r"[\d,;*†‡§¶#()\[\]\s–—-]+|[a-z]")
# Marks follow words of three letters, and signs: "cm" and "SpO" have a raised digit of their own.
_MARKED = re.compile(r"(?:[^\W\d_][^\W\d_A-Z]{2}|[A-Z]{3}|[.,;:!?%)\]\"'”’»])$")


def expand_ligatures(text: str) -> str:
    """The text with joined letters as the letters that they join: "ﬁ" as "fi"."""
    return _LIGATURES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def superscript(text: str, before: str) -> str:
    """The text that a superscript adds: nothing for marks, "^9" for exponents, else itself ("2+" of "Ca2+")."""
    if is_exponent(text, before):
        return f"^{text}"
    if _MARK.fullmatch(text) and (_MARKED.search(before) or before[-1:].isdigit()):
        return ""
    return text


def is_exponent(text: str, before: str) -> bool:
    """Whether raised text is an exponent of what stands before it: of a number, a length, or "-1" of any unit."""
    raised = _BASE.search(before) or (text[:1] in "-−–" and before[-1:].isalpha())
    return bool(raised and _EXPONENT.fullmatch(text))
