"""The formats of files that an index is built from: formats.yaml lists them for all uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medagent.lazy import packaged


@dataclass(frozen=True)
class FileFormat:
    """Files of these suffixes: their reader, "module.function" below `medagent.retrieval.readers`.

    `names` are the formats in words, and `how` says how they are read. `reading` grows when files are read otherwise
    than before, so that `sync` and `add` read files again that did not change themselves.
    """

    suffixes: Sequence[str]
    reader: str
    names: Sequence[str]
    how: str
    reading: int = 0

    @property
    def holds(self) -> str:
        """What a file holds: rows, articles, or one document."""
        module = self.reader.partition(".")[0]
        return {"rows": "rows", "tables": "rows", "xml": "articles", "references": "articles"}.get(module, "documents")


FORMATS = tuple(FileFormat(**row) for row in packaged("medagent.retrieval", "formats.yaml"))
READERS = {suffix: each for each in FORMATS for suffix in each.suffixes}
WANTED = f"wanted {', '.join(READERS)} (or these with .gz)"
NAMES = [name for each in FORMATS for name in each.names]


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read: "a.xml.gz" is ".xml"."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
