"""Words as they are compared: what differs in spelling alone is equal, and what only frames a question is left out.

Accents, capitals, plurals and endings do not count. "oedema" is "edema", and "tumour" is "tumor".
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import Stemmer
from rapidfuzz.distance import OSA

from medagent.retrieval.analysis import GREEK, STOPWORDS

_WORD = re.compile(r"[^\W_]+")
_CONTRACTED = re.compile(r"(?<=\w)(?:n['\u2019]t|['\u2019](?:re|ve|ll|m|d))\b", re.IGNORECASE)
# A letter, a number or a degree that tells names apart belongs to its word: "hepatitis A", "type 1", "second-degree".
_TOKEN = re.compile(
    r"\b(?P<kind>hepatitis|vitamin|influenza|types?|group|factor|class|grade|stage|phase|trisomy|il|interleukin|"
    r"protein|hemophilia|haemophilia|chromosome|complement|category)[ -](?P<which>[a-z]|\d{1,2}|i{1,3}|iv)\b"
    r"|\b(?P<rank>first|second|third|fourth|1st|2nd|3rd)[ -](?P<of>degree|trimester|generation|line|stage)\b"
    r"|[^\W_]+",
    re.IGNORECASE,
)
_IDLE_PRIMARY = re.compile(
    r"\b(?:primary|main|first|typical|classic) (?=(?:known )?(?:cause|drug|treatment|choice|test|sign|therap|line))",
    re.IGNORECASE,
)
_IRREGULAR = {
    "children": "child",
    "women": "woman",
    "men": "man",
    "feet": "foot",
    "teeth": "tooth",
    "mice": "mouse",
    "metastases": "metastasis",
    "diagnoses": "diagnosis",
    "bacteria": "bacterium",
    "fungi": "fungus",
    "vertebrae": "vertebra",
    "diverticula": "diverticulum",
}
_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b")
_GREEK = str.maketrans(GREEK)
MISSPELT_FRAME = ("syndrome", "syndromes", "disease", "diseases", "disorder", "condition")
# Words that frame a question and name none of what it is about.
FRAME = frozenset(
    (
        "about action after agent all also among another any anyone ask asked based behind being best better "
        "between both called "
        "can caught changes choice choose classic classical clinical common commonly condition conditions "
        "consider considered correct cure current currently define definition describe described despite didn "
        "different disease diseases disorder disorders doctor doctors does doesn doing don done each effective "
        "either else ever every exact example explain finding first following found general get gets getting give "
        "given gives go goes going gold good got happen happens has have having he help her him his how i if "
        "illness illnesses important indicated information initial involved involves isn just kind kinds know "
        "known let like likely "
        "list long look made main mainly make makes many may me mean meant med medical meds might more most much "
        "must my name named need needed needs new next no normally now often one only option options or other "
        "others our out patient patients pattern people person persons please point points possible preferred "
        "probable proper recommend recommended regarding related research result results rid say says see seen "
        "shall she show shown shows since some somebody someone standard start started still such suffer "
        "suffering suffers suggest suggests suspected syndrome syndromes take taken takes tell than thank thanks "
        "them thing things think through trial trials try type types typical typically under underlying us use "
        "used useful uses using usual usually very want way ways we well whats while within work works worry "
        "would yes yet you your"
    ).split()
)


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    return str(Stemmer.Stemmer("english").stemWord(word))


def folded(text: str) -> str:
    """The text in lower case, without accents and possessives, Greek letters spelt out."""
    plain = _POSSESSIVE.sub("", unicodedata.normalize("NFKC", text)).lower().translate(_GREEK)
    return "".join(c for c in unicodedata.normalize("NFD", plain) if not unicodedata.combining(c))


def form(word: str) -> str:
    """The form under which a folded word is compared.

    >>> form("tumours") == form("tumor"), form("anaemia") == form("anemia")
    (True, True)
    """
    word = _IRREGULAR.get(word, word)
    american = word.replace("ae", "e").replace("oe", "e")
    if len(american) > 4:
        american = re.sub(r"our(?=s?$)", "or", american)
    return _stem(american)


def named_words(text: str) -> list[tuple[str, str]]:
    """The words of a text but stop words, in order: form, and as it is written.

    >>> [form for form, _ in named_words("Hepatitis A and type 1 diabetes")]
    ['hepatitisa', 'type1', 'diabet']
    """
    found = []
    for match in _TOKEN.finditer(_CONTRACTED.sub("", _POSSESSIVE.sub("", text))):
        bound = match["kind"] or match["rank"]
        low = folded(bound + (match["which"] or match["of"]) if bound else match[0])
        if low and low not in STOPWORDS:
            found.append((form(low), match[0]))
    return found


def forms(text: str) -> frozenset[str]:
    """The forms of all words of a text but stop words."""
    return frozenset(each for each, _ in named_words(text))


@lru_cache(maxsize=1)
def _frame_forms() -> frozenset[str]:
    return frozenset(form(word) for word in FRAME)


def subject_words(question: str) -> dict[str, str]:
    """The words of a question that name something: their forms, each with the word as it is written, in order.

    Give the question without the words of its kind (`medagent.evidence.kinds.without_kinds`).
    """
    found: dict[str, str] = {}
    for each, word in named_words(_IDLE_PRIMARY.sub("", question)):
        if each not in _frame_forms() and not _is_misspelt_frame(word):
            found.setdefault(each, word)
    return found


def _is_misspelt_frame(word: str) -> bool:
    """Whether a word is one letter away from such as "syndrome"; it is no name that the corpus could lack."""
    low = folded(word)
    return any(OSA.distance(low, frame, score_cutoff=1) <= 1 for frame in MISSPELT_FRAME)
