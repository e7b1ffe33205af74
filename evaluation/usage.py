"""The cost of asking: seconds, and an endpoint's requests and tokens, over all runs into one folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

Used = dict[str, float]


def added(*parts: Mapping[str, float]) -> Used:
    """The sums by name."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def usage_line(used: Mapping[str, float], price: Mapping[str, float], *, answers: int) -> str:
    """The usage as a sentence, with the `answers` not counted. `price` is per million "input" and "output" tokens."""
    if not used.get("questions"):
        return ""
    line = f"Asked {used['questions']:,.0f} times in {used['seconds']:,.0f} s"
    line += f" ({used['seconds'] / used['questions']:.2f} s each)"
    if "requests" in used:
        line += (
            f", {used['requests']:,.0f} requests, {used['prompt_tokens']:,.0f} tokens in and "
            f"{used['completion_tokens']:,.0f} out"
        )
        if price:
            cost = used["prompt_tokens"] * price.get("input", 0) + used["completion_tokens"] * price.get("output", 0)
            line += f", cost {cost / 1e6:.2f}"
    if used["questions"] < answers:
        line += f"; {answers - used['questions']:,.0f} answers of the folder are not counted in this"
    return line + "."
