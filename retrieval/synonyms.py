"""Terms of one meaning, from a file of the user's: a query with one of them also finds what has another.

An index keeps them as `synonyms.json`, a list of groups. Files may be MeSH descriptors (d2026.bin in ASCII, or
desc2026.xml) with their entry terms, or lines of terms with "|" or tabs between them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from defusedxml.ElementTree import ParseError, iterparse

from retrieval.errors import RetrievalError
from retrieval.locking import writing
from retrieval.manifest import Manifest

FILE = "synonyms.json"
LONGEST = 8  # words of a term
MOST = 8  # terms of a group that a query is tried with
Words = tuple[str, ...]


class Synonyms:
    """Which terms stand for which, by their analysed words."""

    def __init__(self, groups: Iterable[Sequence[str]], tokens: Callable[[str], list[str]]) -> None:
        """`tokens` is the analyser's."""
        self._groups: list[list[Words]] = []
        self._of: dict[Words, list[int]] = {}
        for group in groups:
            terms = list(dict.fromkeys(words for term in group if 0 < len(words := tuple(tokens(term))) <= LONGEST))
            if len(terms) > 1:
                for words in terms:
                    self._of.setdefault(words, []).append(len(self._groups))
                self._groups.append(terms)

    @staticmethod
    def load(folder: Path, tokens: Callable[[str], list[str]]) -> Synonyms:
        """Those of an index; none where it has none."""
        path = folder / FILE
        return Synonyms(json.loads(path.read_text(encoding="utf-8")) if path.exists() else (), tokens)

    def variants(self, words: Sequence[str]) -> list[list[str]]:
        """The words, and the words with one term replaced by each of its synonyms.

        Of terms within each other the longest counts.
        """
        found, position = [list(words)], 0
        while position < len(words):
            for size in range(min(LONGEST, len(words) - position), 0, -1):
                term = tuple(words[position : position + size])
                others = [each for number in self._of.get(term, ()) for each in self._groups[number] if each != term]
                if others:
                    found += [[*words[:position], *each, *words[position + size :]] for each in others[:MOST]]
                    position += size - 1
                    break
            position += 1
        return found


def give_synonyms(folder: Path, file: Path) -> int:
    """Keep a file's terms with an index, in place of any before; returns how many groups of terms there are.

    Raises:
        RetrievalError: the file cannot be read, or has no two terms of one meaning.
    """
    Manifest.read(folder)
    try:
        groups = [group for group in _groups(file) if len(group) > 1]
    except (OSError, ParseError, EOFError, UnicodeDecodeError) as error:
        raise RetrievalError(f"synonyms {file}: cannot be read ({error}).") from error
    if not groups:
        raise RetrievalError(
            f"synonyms {file}: found no two terms of one meaning, wanted MeSH's descriptors (d2026.bin or "
            'desc2026.xml), or lines such as "heart attack|myocardial infarction".'
        )
    with writing(folder):
        part = folder / f"{FILE}.part"
        part.write_text(json.dumps(groups, ensure_ascii=False), encoding="utf-8")
        os.replace(part, folder / FILE)
    return len(groups)


def _groups(file: Path) -> Iterator[list[str]]:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        if file.name.removesuffix(".gz").endswith(".xml"):
            for _, element in iterparse(opened):
                if element.tag == "DescriptorRecord":
                    yield list(dict.fromkeys(text for each in element.iter("String") if (text := each.text)))
                    element.clear()
            return
        lines = io.TextIOWrapper(opened, encoding="utf-8-sig")
        yield from _of_lines(line.rstrip("\n") for line in lines)


def _of_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """MeSH's ASCII records ("MH = ", "ENTRY = " with fields after the term), or a group in each line."""
    record: list[str] | None = None
    for line in lines:
        if line.strip() == "*NEWRECORD":
            if record:
                yield record
            record = []
        elif record is not None:
            name, _, value = line.partition(" = ")
            if name in ("MH", "ENTRY", "PRINT ENTRY"):
                record.append(value.split("|")[0].strip())
        elif line.strip() and not line.startswith("#"):
            yield [term.strip() for term in line.replace("\t", "|").split("|") if term.strip()]
    if record:
        yield record
