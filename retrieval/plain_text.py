"""Text as it is stored: without characters that nobody sees, and without pictures written out as text."""

from __future__ import annotations

import re

# Soft hyphen, zero-width space, word joiner and byte order mark, inside words too. Zero-width joiners stay: Persian,
# Indic scripts and emoji are written with them. Control characters but tab and line ends go too.
_UNSEEN = re.compile("[\u00ad\u200b\u2060\ufeff\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?:[^()]|\([^()]*\))*\)|!\[([^\]]*)\]\[[^\]]*\]")
_TAG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_ALT = re.compile(r"\balt\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_DATA = re.compile(r"data:[\w/.+-]*(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=\s]*[A-Za-z0-9+/=]|data:image/[^\s\"')>]+")


def without_unseen(text: str) -> str:
    """The text without soft hyphens, zero-width spaces and control characters."""
    return _UNSEEN.sub("", text)


def without_pictures(markdown: str) -> str:
    """Markdown with each picture's words in its place, and without data that stands in the text.

    >>> without_pictures("See ![a chart](data:image/png;base64,AAAA) here.")
    'See a chart here.'
    """

    def words(found: re.Match[str]) -> str:
        return found[1] or found[2] or ""

    def alternative(found: re.Match[str]) -> str:
        alt = _ALT.search(found[0])
        return (alt[1] or alt[2] or "") if alt else ""

    return _DATA.sub("", _TAG.sub(alternative, _PICTURE.sub(words, markdown)))
