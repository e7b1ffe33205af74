"""Numbers with units, as answers of the form "number" are compared: 0.5 g is 500 mg, and .50 is 0.5.

Only units of one kind are converted. Mass, amount of substance, equivalents and international units are four kinds, so
mg/dl is never mmol/l. Months and years are no days. A library such as pint knows neither IU nor mEq, and reads words
as units; the table here has what medicine writes.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from medagent.answer_forms import without_citations
from medagent.evaluation.grading.open_answers import folded
from medagent.lazy import packaged

Bounds = tuple[float | None, float | None]
_ROWS = packaged("medagent.evaluation.grading", "units.yaml")
_TENS = {"": 1.0} | {name: 10.0**n for names, n in _ROWS["prefixes"].items() for name in names.split()}
_UNITS = {f"{p}{n}": (d, e, f * t) for ns, d, e, f in _ROWS["prefixed"] for n in ns.split() for p, t in _TENS.items()}
_UNITS |= {name: (d, e, float(f)) for ns, d, e, f in _ROWS["plain"] for name in ns.split()}
_SPELLED = (  # before the text is read in lower case; "mM" is not "mm"
    (re.compile("[\u00b5\u03bc]"), "u"),
    (re.compile(r"(?<=\d)\s?([mun]?)M\b"), r" \1mol/l"),
    (re.compile(r"\bmm\s*Hg\b", re.IGNORECASE), "mmhg"),
    (re.compile(r"\bcm\s*H2O\b", re.IGNORECASE), "cmho"),
    (re.compile(r"1\.73\s?m(?:\^?2|\u00b2)"), "bsa"),
    (re.compile(r"\binternational units?\b", re.IGNORECASE), "iu"),
    (re.compile(r"(?:\s?\u00b0|degrees?)\s*([CF])(?:elsius|ahrenheit)?\b", re.IGNORECASE), " \u00b0\\1"),
)
_TIMES = {None: 1.0, "thousand": 1e3, "million": 1e6, "billion": 1e9}
_NUMBER = re.compile(
    r"(?<![\w.,])([+-]?)([1-9]\d{0,2}(?:[,' ]\d{3})+(?:\.\d+)?(?!\d)|\d+(?:[.,]\d+)?|\.\d+)"
    r"(?:(?:\s?[x*\u00d7]\s?10\s?\^?|e|(?<=\b10)\^)([+-]?\d{1,2})|\s?/\s?([1-9]\d*))?"
    r"(?:\s(thousand|million|billion)\b)?"
)
_THOUSANDS = re.compile(r"(?<=\d)[,' ](?=\d{3}(?!\d))")
_ATOM = re.compile(r"(?:\s*|-)(/|\bper\b|[*\u00b7])?\s*([a-z]+|%|\u00b0[cf])(?:\^?([23])(?!\d))?(?![a-z])")
_INEXACT = re.compile(  # before a number, in its clause
    r"(?:[<>]=?|\b(?:not|no|never|neither|at least|at most|(?:less|more|fewer|greater|lower|higher) than|up to|under"
    r"|below|above|between)\b|n't\b)(?:(?!\bbut\b)[^,;.])*$"
)


@dataclass(frozen=True)
class Unit:
    """Dimensions with their powers, and how to reach their base: a value less `offset`, times `factor`."""

    dimensions: tuple[tuple[str, int], ...]
    factor: float
    offset: float = 0.0


@dataclass(frozen=True)
class Quantity:
    """A number, and its unit where one is written."""

    value: float
    unit: Unit | None = None

    @property
    def base(self) -> str:
        """The value in its base unit, equal for equal quantities."""
        unit = self.unit or Unit((), 1.0)
        return f"{(self.value - unit.offset) * unit.factor:.9g} {unit.dimensions}"

    def values_in(self, unit: Unit | None, *, assume_unit: bool) -> list[float]:
        """The value in another unit; none where the units are of two kinds.

        Without a unit to reach, the number counts as it is written, and a percentage also as a share. A number without
        a unit is a share, or with `assume_unit` of the other unit.
        """
        own = self.unit
        share = (self.value - own.offset) * own.factor if own and not own.dimensions else None
        if unit is None:
            return [self.value] if share is None else [self.value, share]
        if own is None:
            assumed = [self.value] if assume_unit else []
            return assumed if unit.dimensions else [self.value / unit.factor, *assumed]
        if own.dimensions != unit.dimensions:
            return []
        return [(self.value - own.offset) * own.factor / unit.factor + unit.offset]

    def within(self, gold: "Quantity", bounds: Bounds | None = None, *, assume_unit: bool = False) -> bool:
        """Whether it equals another one, or lies within bounds in the other's unit."""
        low, high = bounds or (gold.value, gold.value)
        return any(
            (low is None or value >= low or math.isclose(value, low))
            and (high is None or value <= high or math.isclose(value, high))
            for value in self.values_in(gold.unit, assume_unit=assume_unit)
        )


def gold_quantity(text: str) -> Quantity | None:
    """The number of a gold answer with its unit; None where the text is anything else, or its unit is not known."""
    plain = _prepared(text).strip()
    found = list(_found(plain))
    return found[0][2] if len(found) == 1 and found[0][:2] == (0, len(plain)) else None


def numbers_in(answer: str) -> list[Quantity]:
    """The different numbers of an answer, in order, but for those that it bounds or denies ("< 5", "not 303")."""
    text, found = _prepared(without_citations(answer)), list[Quantity]()
    for start, _, quantity in _found(text):
        if not _INEXACT.search(text[:start]) and not any(quantity.within(other) for other in found):
            found.append(quantity)
    return found


def is_right(said: Quantity, golds: Sequence[str], bounds: Bounds | None, *, assume_unit: bool = False) -> bool:
    """Whether a number is one of the right ones, or within the bounds around it."""
    quantities = [quantity for gold in golds if (quantity := gold_quantity(gold))]
    return any(said.within(gold, bounds, assume_unit=assume_unit) for gold in quantities)


def _prepared(text: str) -> str:
    for pattern, plain in _SPELLED:
        text = pattern.sub(plain, text)
    return folded(text).lower()


def _found(text: str) -> Iterator[tuple[int, int, Quantity]]:
    """Where each number begins, where its unit ends, and both."""
    end = 0
    while found := _NUMBER.search(text, end):
        sign, digits, power, below, word = found.groups()
        value = float(_THOUSANDS.sub("", digits).replace(",", ".")) * _TIMES[word]
        tens = int(power or 0) - (found[0].lstrip("+-").startswith("10^"))
        value = value * 10.0**tens / int(below or 1)
        unit, end = _unit(text, found.end())
        yield found.start(), end, Quantity(-value if sign == "-" else value, unit)


def _unit(text: str, at: int) -> tuple[Unit | None, int]:
    """The unit that stands there, and where it ends. Below a line any word is a unit: mg/tablet."""
    powers: Counter[str] = Counter()
    factor, end, names = 1.0, at, list[str]()
    while found := _ATOM.match(text, end):
        sign = -1 if found[1] in ("/", "per") else 1
        if (found[2] not in _UNITS and sign > 0) or (names and not found[1]):
            break
        dimension, power, times = _UNITS.get(found[2], (found[2], 1, 1.0))
        exponent = sign * int(found[3] or 1)
        powers[dimension] += exponent * power
        factor *= times**exponent
        names.append(found[2])
        end = found.end()
    if not names:
        return None, at
    dimensions = tuple(sorted((name, power) for name, power in powers.items() if name and power))
    return Unit(dimensions, factor, 32.0 if names in (["f"], ["\u00b0f"]) else 0.0), end
