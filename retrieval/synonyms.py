"""Terms of one meaning, from a file of the user's: a query with one of them also finds what has another.

An index keeps them as `synonyms.json`, analysed. Files may be MeSH descriptors (d2026.bin in ASCII, or desc2026.xml)
with their entry terms, or lines of terms with "|" or tabs between them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, iterparse

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.locking import writing
from medagent.retrieval.manifest import Manifest

FILE = "synonyms.json"
LONGEST = 8  # words of a term
MOST, MOST_VARIANTS = 8, 32  # terms that one is replaced by, and ways in which a query is searched
_ABBREVIATION = re.compile(r"[A-Z][A-Z0-9]{1,4}")  # "ALL", "MS": counts only where a query has it in capitals
_NARROWER = {"NRW", "BRD", "REL"}  # entry terms of MeSH that are not of the same meaning


@dataclass(frozen=True)
class Term:
    """A term's analysed words, and how it is written where capitals matter (else "")."""

    words: tuple[str, ...]
    capitals: str = ""


class Synonyms:
    """Which terms stand for which."""

    def __init__(self, groups: Iterable[Sequence[Term]]) -> None:
        self._groups = [list(group) for group in groups]
        self._of: dict[tuple[str, ...], list[tuple[int, Term]]] = {}
        for number, group in enumerate(self._groups):
            for term in group:
                self._of.setdefault(term.words, []).append((number, term))

    def variants(self, words: Sequence[str], query: str) -> list[list[str]]:
        """The words of a query, and the same with one term replaced by each of its synonyms, 32 at most.

        Of terms within each other the longest counts. A term that a query repeats is replaced in its first place.
        """
        found, position, seen = [list(words)], 0, set[tuple[str, ...]]()
        while self._of and position < len(words) and len(found) < MOST_VARIANTS:
            for size in range(min(LONGEST, len(words) - position), 0, -1):
                term = tuple(words[position : position + size])
                others = [] if term in seen else self._others(term, query)
                if others:
                    seen.add(term)
                    found += [[*words[:position], *each, *words[position + size :]] for each in others]
                    position += size - 1
                    break
            position += 1
        return found[:MOST_VARIANTS]

    def _others(self, words: tuple[str, ...], query: str) -> list[tuple[str, ...]]:
        """The words of each synonym, once for each set of words: MeSH has "Infarction, Myocardial" as well."""
        meant = [
            number
            for number, term in self._of.get(words, ())
            if not term.capitals or re.search(rf"\b{term.capitals}\b", query)
        ]
        others = {tuple(sorted(term.words)): term.words for number in meant for term in reversed(self._groups[number])}
        return [each for key, each in reversed(others.items()) if key != tuple(sorted(words))][:MOST]


def stored_groups(folder: Path) -> list[list[Term]]:
    """The terms that an index keeps; none where it was given none.

    Raises:
        RetrievalError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [[Term(tuple(words), capitals) for words, capitals in group] for group in stored]
    except (ValueError, TypeError) as error:
        raise RetrievalError(
            f"index {folder}: {FILE} is damaged ({error}). Delete it, or make it again with: medagent index synonyms "
            f"{folder} FILE"
        ) from error


def give_synonyms(folder: Path, file: Path) -> tuple[int, int]:
    """Keep a file's terms with an index, in place of any before.

    Returns how many groups of terms there are, and how many terms were left out: those without a word, those of more
    than eight, and those that are the same words as another.

    Raises:
        RetrievalError: the file cannot be read, or has no two terms of one meaning.
    """
    manifest = Manifest.read(folder)
    analyser = Analyser(manifest.settings.analyser)
    groups, terms = [], 0
    try:
        for written in _groups(file):
            group = list(dict.fromkeys(term for text in written if (term := _analysed(text, analyser)) is not None))
            terms += len(written)
            if len({term.words for term in group}) > 1:
                groups.append(group)
    except UnicodeDecodeError as error:
        raise RetrievalError(f"synonyms {file}: is no UTF-8 text ({error}). Save it as UTF-8.") from error
    except (OSError, ParseError, EOFError, DefusedXmlException) as error:
        raise RetrievalError(f"synonyms {file}: cannot be read ({error!r}). Give a file that is whole.") from error
    if not groups:
        raise RetrievalError(
            f"synonyms {file}: found no two terms of one meaning, wanted MeSH's descriptors (d2026.bin or "
            'desc2026.xml), or lines such as "heart attack|myocardial infarction".'
        )
    stored = json.dumps([[[term.words, term.capitals] for term in group] for group in groups], ensure_ascii=False)
    with writing(folder):
        part = folder / f"{FILE}.part"
        part.write_text(stored, encoding="utf-8")
        os.replace(part, folder / FILE)
        replace(manifest, synonyms_sha256=sha256(stored.encode()).hexdigest()).write(folder)
    return len(groups), terms - sum(map(len, groups))


def _analysed(text: str, analyser: Analyser) -> Term | None:
    # Behind a word in small letters, "WHO" and "AS" are names and no shouted stop words.
    words = tuple(analyser.tokens(f"the {text.strip()}"))
    capitals = text.strip() if _ABBREVIATION.fullmatch(text.strip()) else ""
    return Term(words, capitals) if 0 < len(words) <= LONGEST else None


def _groups(file: Path) -> Iterator[list[str]]:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        if file.name.removesuffix(".gz").endswith(".xml"):
            for _, element in iterparse(opened):
                if element.tag == "DescriptorRecord":
                    # Not the strings of qualifiers and of pharmacological actions, and of its concepts the preferred.
                    concepts = element.findall("ConceptList/Concept")
                    preferred = [each for each in concepts if each.get("PreferredConceptYN", "Y") == "Y"]
                    terms = [term.text for each in preferred for term in each.iterfind("TermList/Term/String")]
                    yield [term for term in (element.findtext("DescriptorName/String"), *terms) if term]
                    element.clear()
            return
        with io.TextIOWrapper(opened, encoding="utf-8-sig") as lines:
            yield from _of_lines(line.rstrip("\r\n") for line in lines)


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
            term, *about = value.split("|")
            if name in ("MH", "ENTRY", "PRINT ENTRY") and not _NARROWER & set(about):
                record.append(term.strip())
        elif line.strip() and not line.startswith("#"):
            yield [term.strip() for term in line.replace("\t", "|").split("|") if term.strip()]
    if record:
        yield record
