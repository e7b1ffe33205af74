"""The year that a text names, as rows, references and documents write it: 2018, "c2019", "12/05/2018"."""

from __future__ import annotations

import math
import re
from typing import Any

_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")


def year_in(value: Any) -> int | None:
    """The first year from 1500 to 2099 in a value; None where it names none ("n.d.", NaN).

    >>> [year_in(value) for value in ("c2019", 2018.0, "12/05/2018", "n.d.", float("nan"), "20180512")]
    [2019, 2018, 2018, None, None, 2018]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(value)
    found = _YEAR.search(text) or re.match(r"((?:1[5-9]|20)\d\d)(?:0[1-9]|1[0-2])(?:[0-3]\d)?$", text.strip())
    return int(found[0][:4]) if found else None
