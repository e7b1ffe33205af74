"""Drugs and numbers that a text names and no passage contains.

A wrong drug or a wrong dose is what an answer harms by. Whether one is right cannot be known here; whether a passage
that was shown contains it can. Drugs are found by the stems of the World Health Organization's international
nonproprietary names (-mab, -pril, ...) and a list of names without a stem. Brand names are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from medagent.answer_forms import without_citations

STEMS = (
    "azepam azolam azole azosin bactam barbital caine cillin citabine conazole coxib curium curonium cycline dipine "
    "dronate dronic fibrate floxacin fungin gabalin gatran gestrel gliflozin gliptin glitazone glutide grastim grel "
    "grelor ipramine kinra limus lukast mab micin mycin nib olol oxacin oxetine parin penem perazine peridol platin "
    "poetin prazole pril prilat profen promazine quine racetam relin rubicin sartan semide setron statin stigmine "
    "steride taxel teplase thiazide toin trexate triptan triptyline tropium vir vudine xaban zolamide zomib zotan"
).split()
_NO_DRUGS = frozenset(  # of the body, or classes of substances
    (
        "somatostatin cystatin follistatin myostatin angiostatin endostatin kallistatin "
        "imidazole triazole benzimidazole thiazole pyrazole oxazole hydantoin gonadorelin"
    ).split()
)
_STEM = re.compile(rf"(?:cef\w{{4,}}|\w{{2,}}(?:{'|'.join(STEMS)}))")
_WORD = re.compile(r"[^\W\d_][^\W\d_-]*")
_UNITS = {
    "mcg": "ug",
    "µg": "ug",
    "μg": "ug",
    "ug": "ug",
    "microgram": "ug",
    "mg": "mg",
    "milligram": "mg",
    "g": "g",
    "gram": "g",
    "kg": "kg",
    "ml": "ml",
    "millilitre": "ml",
    "milliliter": "ml",
    "l": "l",
    "dl": "dl",
    "iu": "unit",
    "unit": "unit",
    "mmol": "mmol",
    "meq": "meq",
    "mmhg": "mmhg",
    "%": "%",
    "percent": "%",
    "hour": "hour",
    "h": "hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year",
    "minute": "minute",
    "min": "minute",
}
_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())
}
_NUMBER = re.compile(
    r"(?<![\w.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?![\d]|\.\d)\s*([^\W\d_]+|%)?", re.IGNORECASE
)
_LETTER_OR_ITEM = re.compile(r"\([A-J]\)|(?m:^\s*\d{1,2}[.)]\s)")
_RANGE = re.compile(r"(?<=\d)\s*(?:-|\u2013|to)\s*(?=\d)")


@dataclass(frozen=True)
class Named:
    """The drugs (in lower case, one name each) and the numbers with their units that a text names."""

    drugs: frozenset[str]
    numbers: frozenset[tuple[str, str]]

    def beyond(self, other: Named) -> Named:
        """What `other` does not name. A number without a unit is named by the same number with any."""
        values = {value for value, _ in other.numbers}
        return Named(
            self.drugs - other.drugs,
            frozenset(
                (value, unit)
                for value, unit in self.numbers
                if ((value, unit) not in other.numbers if unit else value not in values)
            ),
        )

    @property
    def doses(self) -> frozenset[tuple[str, str]]:
        """The numbers with a unit of mass, volume or activity."""
        return frozenset((value, unit) for value, unit in self.numbers if unit in DOSE_UNITS)

    def __bool__(self) -> bool:
        """Whether anything is named."""
        return bool(self.drugs or self.numbers)


DOSE_UNITS = frozenset(("ug", "mg", "g", "ml", "l", "unit", "mmol", "meq"))


@lru_cache(maxsize=1)
def _listed() -> Mapping[str, str]:
    """Every listed name, with the first name of its line."""
    lines = files("medagent").joinpath("drug_names.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: row[0] for row in rows for name in row}


def named_in(text: str) -> Named:
    """The drugs and numbers of a text. Citations, option letters and numbers of a list's items are none.

    >>> found = named_in("Start metoprolol 12.5 mg twice daily [1]")
    >>> sorted(found.drugs), sorted(found.numbers)
    (['metoprolol'], [('12.5', 'mg')])
    """
    plain = _RANGE.sub(" \u2013 ", _LETTER_OR_ITEM.sub(" ", without_citations(text)))
    drugs = set()
    for word in (found[0].lower() for found in _WORD.finditer(plain)):
        name = word[:-1] if word.endswith("s") and word[:-1] in _listed() else word
        if name in _listed():
            drugs.add(_listed()[name])
        elif len(name) > 5 and name not in _NO_DRUGS and _STEM.fullmatch(name):
            drugs.add(name)
    return Named(frozenset(drugs), frozenset(_numbers(plain)))


def _numbers(plain: str) -> Iterable[tuple[str, str]]:
    spelt = re.sub(
        rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b", lambda found: _NUMBER_WORDS[found[0].lower()], plain, flags=re.IGNORECASE
    )
    found = [(_value(match[1]), _unit(match[2] or ""), match.end(1)) for match in _NUMBER.finditer(spelt)]
    for at, (value, unit, end) in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else None
        in_range = following is not None and spelt[end:].lstrip().startswith("\u2013")
        yield value, unit or (following[1] if in_range and following else "")


def _value(digits: str) -> str:
    """The number without a thousands mark, leading or trailing zeros."""
    whole, _, rest = digits.replace(",", "").partition(".")
    rest = rest.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{rest}" if rest else "")


def _unit(word: str) -> str:
    lowered = word.lower()
    return _UNITS.get(lowered) or _UNITS.get(lowered.removesuffix("s"), "")
