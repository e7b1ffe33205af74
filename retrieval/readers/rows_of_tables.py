"""Rows of tables as lines that can be read alone: each cell after the name of its column."""

from __future__ import annotations

from collections.abc import Sequence


def rows_in_words(rows: Sequence[Sequence[str]], *, named: bool = True) -> list[str]:
    """A line for each row; with `named` the first row names the columns. Empty cells are left out.

    A cell that is alone in its row is a heading or a note, and stands without a name.

    >>> rows_in_words([["Drug", "Dose"], ["Aspirin", "300 mg"], ["At night", ""]])
    ['Drug: Aspirin; Dose: 300 mg', 'At night']
    """
    rows = [row for row in rows if any(row)]
    names = list(rows[0]) if len(rows) > 1 and named else []
    return ["; ".join(_named(row, names)) for row in (rows[1:] if names else rows)]


def _named(row: Sequence[str], names: Sequence[str]) -> list[str]:
    filled = [(at, cell) for at, cell in enumerate(row) if cell]
    if len(filled) == 1 and len(names) > 1:
        return [filled[0][1]]
    return [f"{names[at]}: {cell}" if at < len(names) and names[at] else cell for at, cell in filled]


def has_header(rows: Sequence[Sequence[str]], bold: Sequence[bool]) -> bool:
    """Whether the first row names the columns: it is bold and others are not, or it has words above numbers."""
    first, *others = rows
    if not others or not all(first[1:]) or any(map(is_number, first[1:])):
        return False
    if bold[0] and not all(bold):
        return True
    columns = ([row[at] for row in others if at < len(row) and row[at]] for at in range(1, len(first)))
    return any(len(column) > 1 and all(map(is_number, column)) for column in columns)


def is_number(text: str) -> bool:
    """Whether a cell holds a number, perhaps with a sign, a unit or a range."""
    bare = text.lstrip("<>≤≥±+-−–~≈ ")
    return bare[:1].isdigit()
