"""What one call did to an index: how many documents were added, replaced and so on, and each by name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

FILE = "changes.jsonl"
Change = Literal[
    "added",  # it is new
    "replaced",  # it has other words than before, or is a newer version
    "unchanged",
    "gone",  # the source has it no more
    "removed",  # by its name
    "deleted",  # the source says so
    "retracted",
    "kept out",  # it was removed, retracted or deleted before
    "older",  # the index holds a newer version
    "repeated",  # the same document again
    "told apart",  # its id was another document's, and got a suffix
    "skipped",  # it could not be used
]
CHANGES: tuple[Change, ...] = get_args(Change)


@dataclass
class Changes:
    """The changes of a call, in their order."""

    rows: list[tuple[Change, str, str]] = field(default_factory=list)  # what, where or which, why

    @property
    def counts(self) -> Counter[str]:
        """How many there are of each."""
        return Counter(what for what, _, _ in self.rows)

    def note(self, what: Change, which: str, why: str = "") -> None:
        """Note one."""
        self.rows.append((what, which, why))

    def take(self, other: Changes) -> None:
        """Take over those of a part of the call."""
        self.rows += other.rows

    def write(self, folder: Path) -> Path:
        """Write all but the unchanged into the index's folder, a JSON object in a line; returns the file."""
        path = folder / FILE
        rows = (
            {"change": what, "document": which, **({"reason": why} if why else {})} for what, which, why in self.rows
        )
        kept = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows if row["change"] != "unchanged")
        path.write_text("".join(kept), encoding="utf-8")
        return path

    def told(self) -> str:
        """The counts in a line: "3 added, 1 replaced"; "nothing changed" where nothing did."""
        counts = self.counts
        return ", ".join(f"{counts[what]:,} {what}" for what in CHANGES if counts[what]) or "nothing changed"
