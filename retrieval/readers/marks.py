"""Raised characters and joined letters, alike in every format: exponents, marks of references, ligatures."""

import re
import unicodedata

_LIGATURES = re.compile("[\ufb00-\ufb06]")
_EXPONENT = re.compile(r"[-−–+]?\d+(?:\.\d+)?")
_BASE = re.compile(r"(?:\d|(?<![^\W\d_])[cdkmnµ]?m)$")  # what is raised: "10" of a power, "m" of an area
_MARK = re.compile(r"[\d,;*†‡§¶#()\[\]\s–—-]+|[a-z]")
_FRACTION, _OVER = re.compile(r"\d+\s*[/⁄]\s*\d+"), re.compile(r"\s*[/⁄]\s*(?:\d|$)")
_CHARGE = re.compile(r"\d?[-−–+]")
_UNIT = re.compile(r"(?<![^\W\d_])(?:[kmµnp]?g|mcg|[mdµ]?[lL]|M?I?U|m?mol|min|[hd])$")  # none of these is squared
# Marks follow words of three letters, and signs: "cm" and "SpO" have a raised digit of their own.
_MARKED = re.compile(r"(?:[^\W\d_][^\W\d_A-Z]{2}|[A-Z]{3}|[.,;:!?%)\]\"'”’»])$")


def expand_ligatures(text: str) -> str:
    """The text with joined letters as the letters that they join: "ﬁ" as "fi"."""
    return _LIGATURES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def superscript(text: str, before: str, after: str = "") -> str:
    """The text that a superscript adds: nothing for marks, "^9" for exponents, else itself ("2+" of "Ca2+").

    `before` and `after` are what stands beside it in its line.

    >>> [superscript("1", "Aspirin"), superscript("9", "10"), superscript("1", "Take ", "/2")]
    ['', '^9', '1']
    """
    touched, before = before[-1:], before.rstrip()
    over = text.isdigit() and _OVER.match(after) and not touched.isalpha() and not before.endswith("10")
    if _FRACTION.fullmatch(text) or over:
        return f" {text}" if touched.isdigit() else text
    if text in ("0", "o", "°") and touched.isdigit() and after[:1] in ("C", "F"):
        return "°"
    if text.isdigit() and after[:1].isupper() and not touched.isalnum():  # "131" of "131I"
        return text
    if is_exponent(text, before):
        return f"^{text}"
    if _CHARGE.fullmatch(text) and touched.isalnum():
        return text
    if _MARK.fullmatch(text) and (_MARKED.search(before) or _UNIT.search(before) or before[-1:].isdigit()):
        return ""
    return text


def is_exponent(text: str, before: str) -> bool:
    """Whether raised text is an exponent of what stands before it: of a number, a length, or "-1" of any unit."""
    raised = _BASE.search(before) or (text[:1] in "-−–" and before[-1:].isalpha())
    return bool(raised and _EXPONENT.fullmatch(text))
