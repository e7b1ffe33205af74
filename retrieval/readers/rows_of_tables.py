"""Rows of tables as lines that can be read alone: each cell after the name of its column."""

from __future__ import annotations

from collections.abc import Sequence


def rows_in_words(rows: Sequence[Sequence[str]], *, named: bool = True) -> list[str]:
    """A line for each row; with `named` the first row names the columns. Empty cells are left out.

    >>> rows_in_words([["Drug", "Dose"], ["Aspirin", "300 mg"], ["Heparin", ""]])
    ['Drug: Aspirin; Dose: 300 mg', 'Drug: Heparin']
    """
    rows = [row for row in rows if any(row)]
    if len(rows) < 2 or not named:
        return ["; ".join(cell for cell in row if cell) for row in rows]
    names = rows[0]
    return [
        "; ".join(
            f"{names[at]}: {cell}" if at < len(names) and names[at] else cell for at, cell in enumerate(row) if cell
        )
        for row in rows[1:]
    ]
