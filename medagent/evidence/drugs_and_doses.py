"""Drugs and numbers that a text names and no passage contains.

Drugs are found by the stems of the World Health Organization's international nonproprietary names (-mab, -pril, ...)
and a list of names without a stem. Brand names are not known.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files

from medagent.answer_forms import without_citations
from medagent.evidence.words import word_list

_NO_DRUGS = word_list("no_drugs")
_STEM = re.compile(rf"(?:cef\w{{4,}}|\w{{2,}}(?:{'|'.join(sorted(word_list('drug_stems')))}))")
_WORD = re.compile(r"[^\W\d_][^\W\d_-]*")
_SPELT = (  # a unit and its other spellings, without a plural's "s"
    "ug mcg µg μg microgram|mg milligram|g gram|ml cc millilitre milliliter|l litre liter|unit iu u|% percent|hour h hr"
    "|minute min|ng|kg|dl|mmol|meq|mmhg|day|week|month|year"
)
_UNITS = {word: unit for unit, *others in map(str.split, _SPELT.split("|")) for word in (unit, *others)}
_COUNTED = "zero _ two three four five six seven eight nine ten eleven twelve".split()
_NUMBER_WORDS = {word: str(number) for number, word in enumerate(_COUNTED)}
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?i)(?<![\w.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?![\d]|\.\d)[\s-]*([^\W\d_]+|%)?(/[a-zA-Z]+)?"
)
_DECIMAL_COMMA = re.compile(r"(?<![\d,])(\d+),(\d{1,2})(?![\d,])(?=\s*[^\W\d_])")  # 0,5 mg
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:[ \u00a0\u202f]\d{3})+)(?![\d.,])")  # 10 000 units
_LETTER_OR_ITEM = re.compile(r"\([A-J]\)|(?m:^\s*\d{1,2}[.)]\s)|\[\s*\d{1,3}(?:\s*[,;-]\s*\d{1,3})*\s*\]")
# One unit of each kind, so that 1 g is 1000 mg. The exponents are of ten.
_SCALES = {"ng": ("mg", -6), "ug": ("mg", -3), "g": ("mg", 3), "kg": ("mg", 6), "dl": ("ml", 2), "l": ("ml", 3)}
_RANGE = re.compile(r"(?<=\d)\s*(?:-|\u2013|to)\s*(?=\d)")


@dataclass(frozen=True)
class Named:
    """The drugs (in lower case, one name each) and the numbers with their units that a text names."""

    drugs: frozenset[str]
    numbers: frozenset[tuple[str, str]]

    def beyond(self, other: "Named") -> "Named":
        """The drugs and numbers that `other` does not name. A number without a unit matches any unit."""
        values = {value for value, _ in other.numbers}
        bare = {(value, unit) for value, unit in self.numbers if not unit and value in values}
        return Named(self.drugs - other.drugs, self.numbers - other.numbers - bare)

    @property
    def doses(self) -> frozenset[tuple[str, str]]:
        """The numbers with a unit of mass, volume or activity."""
        return frozenset((value, unit) for value, unit in self.numbers if unit in DOSE_UNITS)

    def __bool__(self) -> bool:
        return bool(self.drugs or self.numbers)


DOSE_UNITS = frozenset(("mg", "ml", "unit", "mmol", "meq"))  # after `_SCALES`
_CONCENTRATIONS = frozenset(("/dl", "/l", "/ml"))


@lru_cache(maxsize=1)
def _listed() -> Mapping[str, str]:
    """Every listed name, with the first name of its line."""
    lines = files("medagent.evidence").joinpath("drug_names.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: row[0] for row in rows for name in row}


def named_in(text: str) -> Named:
    """The drugs and numbers of a text, without citations, option letters and a list's own numbers."""
    plain = _RANGE.sub(" \u2013 ", _LETTER_OR_ITEM.sub(" ", without_citations(text)))
    drugs = set()
    for word in (found[0].lower() for found in _WORD.finditer(plain)):
        one = word.removesuffix("s")
        name = one if one in _listed() or _STEM.fullmatch(one) else word
        if name in _listed():
            drugs.add(_listed()[name])
        elif len(name) > 5 and name not in _NO_DRUGS and _STEM.fullmatch(name):
            drugs.add(name)
    return Named(frozenset(drugs), frozenset(_numbers(plain)))


def _numbers(plain: str) -> Iterable[tuple[str, str]]:
    plain = _DECIMAL_COMMA.sub(r"\1.\2", plain)
    plain = _SPACED_THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), plain)
    spelt = _NUMBER_WORD.sub(lambda found: _NUMBER_WORDS[found[0].lower()], plain)
    found = [(match[1], _unit(match[2] or "", match[3] or ""), match.end(1)) for match in _NUMBER.finditer(spelt)]
    for at, (digits, unit, end) in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else None
        joined = following is not None and spelt[end:].lstrip().startswith(("\u2013", "/"))  # 5-10 mg, 120/80 mmHg
        yield _measured(digits, unit or (following[1] if joined and following else ""))


def _measured(digits: str, unit: str) -> tuple[str, str]:
    scaled, exponent = _SCALES.get(unit, (unit, 0))
    value = Decimal(digits.replace(",", "")).scaleb(exponent).normalize()
    return f"{value:f}", scaled


def _unit(word: str, per: str) -> str:
    """The unit as it is compared; a concentration is none of mass ("g/dL"), a dose by weight or day is ("mg/kg")."""
    lowered = word.lower()
    unit = _UNITS.get(lowered) or _UNITS.get(lowered.removesuffix("s"), "")
    return f"{unit}{per.lower()}" if unit and per.lower() in _CONCENTRATIONS else unit
