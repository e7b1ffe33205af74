"""A passage is the unit of retrieval and citation; its id follows from its content, so it is stable across rebuilds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from retrieval.errors import CorpusError


@dataclass(frozen=True)
class Passage:
    """A titled stretch of text. `source` says where it came from (a file name, a web address, a kind of source)."""

    id: str
    title: str
    text: str
    source: str = ""

    @staticmethod
    def make(title: str, text: str, source: str = "", *, id: str = "") -> Passage:
        """A passage with a content-derived id (16 hex digits of SHA-256 over title and text) unless one is given."""
        digest = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:16]
        return Passage(id or digest, title, text, source)

    @property
    def indexed_text(self) -> str:
        """What is embedded and tokenised for search."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True)
class Hit:
    """A retrieved passage with its fused score (higher is better)."""

    passage: Passage
    score: float


def write_passages(path: Path, passages: Iterable[Passage]) -> int:
    """Write JSON lines and return how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for passage in passages:
            file.write(json.dumps(asdict(passage), ensure_ascii=False) + "\n")
            count += 1
    return count


def read_passages(path: Path) -> Iterator[Passage]:
    """Passages of a JSON lines file with `text` and optionally `id`, `title`, `source`; a bad line is named."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                text = row["text"]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise CorpusError(
                    f"{path}, line {number}: found {line.strip()[:80]!r} ({error!r}); wanted a JSON object with a "
                    f"'text' field (and optionally 'id', 'title', 'source'). Correct or remove that line."
                ) from error
            if not isinstance(text, str) or not text.strip():
                raise CorpusError(f"{path}, line {number}: 'text' is empty. Remove that line or fill it in.")
            yield Passage.make(
                str(row.get("title", "")), text, str(row.get("source", "")), id=str(row.get("id", "") or "")
            )
