"""What several indexes that are searched as one leave out: what is held twice, and what another knows to be retracted.

SQLite compares the indexes' databases, so no list of ids is held in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

_RETRACTED = "SELECT name FROM other.withdrawn WHERE kind = 'retracted'"
# As `medagent.retrieval.deciding` has it: a document goes by any of its names, and one that was let back in by name
# stays.
_OUT = f"""
SELECT row, id FROM main.passages AS held WHERE (held.owner IN ({_RETRACTED})
  OR held.owner IN (SELECT name FROM main.aliases WHERE alias IN ({_RETRACTED})))
AND NOT EXISTS (SELECT 1 FROM main.withdrawn AS said WHERE said.kind = 'allowed' AND (said.name = held.owner
  OR said.name IN (SELECT alias FROM main.aliases AS other_name WHERE other_name.name = held.owner)))
"""  # noqa: S608 (constant names)


def held_twice(folder: Path, earlier: Sequence[Path]) -> dict[int, str]:
    """Rows and ids of an index's passages whose id, or whose document, an earlier index holds."""
    found: dict[int, str] = {}
    for other in earlier:
        with _compared(folder, other) as (database, owners_known):
            for name in ("id", "owner") if owners_known else ("id",):
                held = f"SELECT {name} FROM other.passages"  # noqa: S608 (constant names)
                found |= database.execute(f"SELECT row, id FROM main.passages WHERE {name} IN ({held})")  # noqa: S608
    return found


def retracted(folder: Path, others: Sequence[Path]) -> dict[int, str]:
    """Rows and ids of an index's passages of whose retraction another index has read."""
    found: dict[int, str] = {}
    for other in others:
        with _compared(folder, other) as (database, owners_known):
            found |= database.execute(_OUT) if owners_known else ()
    return found


@contextmanager
def _compared(folder: Path, other: Path) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """A connection to both as `main` and `other`, and whether both know documents; indexes of format 2 do not."""
    with closing(sqlite3.connect(folder / "passages.sqlite")) as database:
        database.execute("ATTACH ? AS other", (str(other / "passages.sqlite"),))
        columns = [database.execute(f"PRAGMA {schema}.table_info(passages)") for schema in ("main", "other")]
        yield database, all("owner" in {row[1] for row in found} for found in columns)
