"""Text as it is stored and compared: no invisible characters, one spelling for accents, British words and numerals."""

import re
import unicodedata

from medagent.lazy import packaged

# Letters that Unicode does not take apart.
_WHOLE = str.maketrans({"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "ß": "ss"})
# British to American.
_PATTERNS = tuple((re.compile(pattern), to) for pattern, to in packaged("medagent.retrieval", "spelling.yaml"))
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII")
_WORDS = tuple("one two three four five six seven eight nine ten eleven twelve thirteen".split())
_ONE = rf"(?:{'|'.join(sorted(_ROMAN, key=len, reverse=True))}|\d{{1,2}})"
# No pronoun ("the type I have") and no letter of another word ("syndrome X-linked").
_NUMBERED = re.compile(
    r"\b([Tt]ype|[Cc]lass|[Gg]rade|[Ss]tage|[Ff]actor|[Pp]hase|[Cc]omplex|[Cc]ollagen|[Ll]evel|[Cc]ategory|[Gg]roup|"
    r"[Nn]erve|[Aa]ngiotensin|[Bb]ipolar|TYPE|CLASS|GRADE|STAGE|FACTOR|PHASE|GROUP)s?"
    rf"[\s-]+({_ONE}(?:\s*(?:,|/|and|or|to|-)\s*{_ONE}\b)*)"
    r"(?!\w|[.,]\d|-[A-Za-z]{2}|\s+(?:am|have|had|was|do|did|think|feel|take|took|get|got|need|should|can|want|use)\b)",
)


# Soft hyphen, zero-width space, word joiner and byte order mark, inside words too. Zero-width joiners stay: Persian,
# Indic scripts and emoji are written with them. Control characters but tab and line ends go too.
_UNSEEN = re.compile("[\u00ad\u200b\u2060\ufeff\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def strip_accents(text: str) -> str:
    """The text with plain letters for those with marks, for comparing; it is not for showing."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFD", text.translate(_WHOLE))
    return unicodedata.normalize("NFC", "".join(char for char in apart if not "\u0300" <= char <= "\u036f"))


def to_american(word: str) -> str:
    """The American form of a lower-case word in British spelling; others come back as they are."""
    for pattern, to in _PATTERNS:
        word = pattern.sub(to, word)
    return word


def add_number_words(text: str) -> str:
    """The text with a word more behind each numbered kind, the same for Roman and other numerals.

    The numeral stays, so that equal ones are still the better match.

    >>> add_number_words("type II diabetes, factor 8, and I")
    'type II typetwo diabetes, factor 8 factoreight, and I'
    """

    def numbered(found: re.Match[str]) -> str:
        numbers = [_ROMAN.index(one) + 1 if one in _ROMAN else int(one) for one in re.findall(_ONE, found[2])]
        words = [f"{found[1].lower()}{_WORDS[number - 1]}" for number in numbers if 1 <= number <= len(_WORDS)]
        return " ".join([found[0], *words])

    return _NUMBERED.sub(numbered, text)


def strip_invisible(text: str) -> str:
    """The text without soft hyphens, zero-width spaces and control characters."""
    return _UNSEEN.sub("", text)
