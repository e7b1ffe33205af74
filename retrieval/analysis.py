"""Text to lexical tokens, of passages and queries alike.

The medical analyser is built for names: "IL-6", "IL 6" and "il6" share tokens, and so do "TNFα" and "TNF alpha", or
"type II" and "type 2". Question words and articles are left out, but "Hepatitis A" keeps its letter.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

import Stemmer

from medagent.retrieval.normalization import add_number_words, strip_accents, strip_invisible, to_american
from medagent.retrieval.settings import AnalyserName

GREEK = {
    chr(code): unicodedata.name(chr(code)).split()[-1].lower().replace("lamda", "lambda")
    for code in range(0x3B1, 0x3CA)
    if "FINAL" not in unicodedata.name(chr(code))
}
STOPWORDS = frozenset(
    "a an and are as at be been but by can could did do does for from had has have how if in into is it its of on or "
    "should such that the their then there these they this to was were what when where which who whom whose why will "
    "with would".split()
)
# In a lower-cased query the letter after such a kind is part of a name and not an article.
_LETTERED = re.compile(r"\b(hepatitis|vitamin|influenza|type|group|factor|class|grade|protein|immunoglobulin) a\b")
_WORD = re.compile(r"[^\W_]+(?:[-'/][^\W_]+)*")
_PART = re.compile(r"\d+|[^\W\d_]+")
_PLAIN = re.compile(r"\b\w+\b")
# A letter of a name, such as "TNFα". In words of the Greek language letters stay.
_GREEK_LETTER = re.compile(r"(?<![\u0370-\u03ff])[Α-Ωα-ω](?![\u0370-\u03ff])")
_MICROGRAM = re.compile(r"(?<![^\W\d_])[µμ]g(?![^\W_])")
_AREA = re.compile(r"(?<=m)\^(?=[23])")
_MARKS = str.maketrans({"’": "'", "‐": "-", "‑": "-", "–": "-", "−": "-", "®": None, "™": None})
_FOLD = _MARKS | str.maketrans(GREEK)


class Analyser:
    """Turns a text into tokens. Equal names give equal tokens, so the name alone is stored with an index."""

    def __init__(self, name: AnalyserName = "medical") -> None:
        """The name "medical" stems and joins variants, "biomedical" stems, and the others do neither."""
        self.name, self._variants = name, name == "medical"
        stemmer = Stemmer.Stemmer("english")
        stem = stemmer.stemWord if name in ("medical", "biomedical") else str
        self._stem = lru_cache(maxsize=200_000)((lambda word: stem(to_american(word))) if self._variants else stem)

    def tokens(self, text: str) -> list[str]:
        """Tokens in the order of the text.

        >>> Analyser().tokens("What is the role of IL-6 in Crohn's diseases?")
        ['role', 'il', '6', 'il6', 'crohn', 'diseas']
        """
        return [token for group in self.groups(text) for token in group]

    def groups(self, text: str) -> list[list[str]]:
        """The tokens of each word. Those of a compound are its parts and last its joined form.

        >>> Analyser().groups("beta-blockers now")
        [['beta', 'blocker', 'betablock'], ['now']]
        """
        text = strip_invisible(text)
        if self.name == "words":
            return [[word] for word in _PLAIN.findall(text.lower())]
        if self._variants:
            text = _AREA.sub("", _MICROGRAM.sub("mcg", text))
        text = unicodedata.normalize("NFKC", text)
        if self._variants:
            text = add_number_words(_GREEK_LETTER.sub(_named, strip_accents(text)))
        text = _LETTERED.sub(r"\1 A", text.translate(_MARKS if self._variants else _FOLD))
        shouted = text.isupper()
        found: list[list[str]] = []
        for match in _WORD.finditer(text):
            word = match.group()
            # "WAS", "IT" and the A of "Influenza A" are names; where a sentence begins, or all is upper case, they
            # need not be.
            before = text[max(0, match.start() - 3) : match.start()].rstrip()[-1:]
            named = word.isupper() and not shouted and before not in ("", ".", "?", "!", ":", '"')
            if named or word.lower() not in STOPWORDS:
                found.append(self._forms(word.lower().removesuffix("'s")))
        return found

    def _forms(self, word: str) -> list[str]:
        """The word's parts, and the joined form of a name that may be written apart."""
        if word.isalpha():
            return [self._stem(word)]
        parts = re.split("[-'/]", word)
        if len(parts) > 1:
            joined = "".join(parts)
            found = [form for part in parts for form in self._forms(part)]
            if not self._variants:
                return [*found, joined]
            # "alpha-1-antitrypsin" holds "alpha1".
            pairs = pairwise(parts) if len(parts) > 2 else ()
            return [
                *found,
                *(a + b for a, b in pairs if b.isdecimal() and not a.isdecimal()),
                self._stem(joined) if joined.isalpha() else to_american(joined),
            ]
        pieces = _PART.findall(word)
        return [word] if len(pieces) == 1 else [*pieces, word]


def _named(letter: re.Match[str]) -> str:
    """The name of a Greek letter, with a hyphen where it touches a word: "TNFα" is "TNF-alpha"."""
    text, start, end = letter.string, letter.start(), letter.end()
    before, after = text[start - 1 : start].isalnum(), text[end : end + 1].isalnum()
    return f"{'-' if before else ''}{GREEK[letter[0].lower()]}{'-' if after else ''}"
