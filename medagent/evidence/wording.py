"""How a verdict writes headings, names and numbers of passages."""

from __future__ import annotations

from collections.abc import Sequence

from medagent.retrieval.passages import Passage

MOST_ABOUT = 2  # headings that a verdict names


def headings(passages: Sequence[Passage]) -> list[str]:
    """The headings of passages, each once, two at most."""
    return list(dict.fromkeys(passage.heading or passage.id for passage in passages))[:MOST_ABOUT]


def quoted(names: Sequence[str], last: str = "and") -> str:
    """Names in quotes, joined."""
    return f" {last} ".join(f"\u201c{name}\u201d" for name in names)


def numbered(numbers: Sequence[int]) -> str:
    """Numbers of passages as they are cited."""
    return "".join(f"[{number}]" for number in numbers)
