"""The words of a query against those of an index: which count, near words and synonyms, and how much a text has."""

import gzip
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, iterparse
from rapidfuzz import process
from rapidfuzz.distance import OSA

from medagent.retrieval.access import check_writable, writing
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.manifest import Manifest

SHORTEST, VOWELS_FROM, LONG = 5, 8, 12  # letters of a word that may differ, in a vowel, in two letters
MAX_NEAR_WORDS = 3  # that stand for one
_VOWELS = str.maketrans("eiouy", "aaaaa")
_OPPOSITES = (("hyper", "hypo"), ("intra", "inter"), ("infra", "intra"), ("supra", "sub"), ("ante", "anti"))
SYNONYMS_FILE = "synonyms.json"
LONGEST = 8  # words of a term
MAX_SYNONYMS, MAX_VARIANTS = 8, 32  # per term, and per query
_ABBREVIATION = re.compile(r"[A-Z][A-Z0-9]{1,4}")  # "ALL", "MS": counts only where a query has it in capitals
_OPERATOR = re.compile(r"\b(?:NOT|AND|OR)\b")
_MARKS = re.compile(
    r'"[^"]+"|“[^”]+”|(?<!\S)\(?[-+](?=[^\W\d_])|\w\*|(?<!\w)(?:title|abstract|author|journal|tiab|mesh|mh|ti|ab|au):\S'
    r"|\[(?:all fields|mesh terms|title|abstract|author|journal|tiab|mesh|mh|tw|ti|ab|au|majr)\b[^]]*\]",
    re.IGNORECASE,
)
NOT_READ = (
    "Operators are not read: NOT, AND and OR in capitals are left out, and words with quotes, *, + or - are plain "
    "words. A filter (where) excludes passages."
)


class QueryWords:
    """Matches the words of queries against those of an index."""

    def __init__(
        self,
        groups: Callable[[str], list[list[str]]],
        words: Callable[[], Iterable[str]],
        count: Callable[[str], int],
        num_passages: int,
        synonyms: "Synonyms | None" = None,
    ) -> None:
        """`groups` is the analyser's, `words` gives the index's, and `count` in how many passages a word is."""
        self._synonyms = synonyms or Synonyms(())
        self._groups, self._words, self._count, self._num_passages = groups, words, count, num_passages
        self.near = lru_cache(maxsize=10_000)(self._near)

    def searched(self, query: str, *, near_words: bool) -> list[list[str]]:
        """The words to search for, in the query's order, and the same with synonyms; the best of them counts."""
        query = _without_operators(query)
        return [
            [each for word in words for each in ((near_words and not self._count(word) and self.near(word)) or (word,))]
            for words in self._synonyms.variants(self._tokens(query), query)
        ]

    def replaced(self, query: str) -> dict[str, tuple[str, ...]]:
        """The words of a query that no passage has, with those that stand for them; words as they are compared."""
        return {
            word: near
            for word in self._tokens(_without_operators(query))
            if not self._count(word) and (near := self.near(word))
        }

    def coverage(self, query: str, text: str) -> float:
        """How much of a query a text has (0 to 1): the share of its words, weighted by BM25's idf.

        A near word does not count. A compound counts joined or by its parts. The best variant by synonyms counts.
        """
        query = _without_operators(query)
        groups, held = self._groups(query), set(self._tokens(text))
        plain = [word for group in groups for word in group]
        others = [[[word] for word in words] for words in self._synonyms.variants(plain, query)[1:]]
        return max(self._covered(some, held) for some in (groups, *others))

    def _covered(self, groups: Sequence[Sequence[str]], held: set[str]) -> float:
        total = covered = 0.0
        for group in {tuple(group) for group in groups}:
            *parts, joined = group
            weights = {part: self._idf(part) for part in parts or group}
            whole = sum(weights.values())
            total += whole
            covered += whole if joined in held else sum(weight for part, weight in weights.items() if part in held)
        return covered / total if total else 1.0

    def _idf(self, word: str) -> float:
        held = self._count(word)
        return math.log(1 + (self._num_passages - held + 0.5) / (held + 0.5))

    def _tokens(self, text: str) -> list[str]:
        return [word for group in self._groups(text) for word in group]

    @cached_property
    def _by_letter(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for known in self._words():
            if len(known) >= SHORTEST - 1 and known.isalpha():
                found.setdefault(known[0], []).append(known)
        return found

    def _near(self, word: str) -> tuple[str, ...]:
        """At most three words of the index near a word that it lacks, those of most passages first.

        Near is one letter more, less or swapped after the same first letter (Damerau, 1964). A vowel may stand for
        another from eight letters on, and two letters may be more or less from twelve on. Opposites are not near.
        """
        if len(word) < SHORTEST or not word.isalpha():
            return ()
        most = 2 if len(word) >= LONG else 1
        found = process.extract(
            word, self._by_letter.get(word[0], ()), scorer=OSA.distance, score_cutoff=most, limit=None
        )
        likely = [(known, distance) for known, distance, _ in found if _is_error(word, known, int(distance))]
        least = min((distance for _, distance in likely), default=0)
        nearest = [known for known, distance in likely if distance == least]
        return tuple(sorted(nearest, key=lambda known: (-self._count(known), known))[:MAX_NEAR_WORDS])


def operators_note(query: str) -> str:
    """What to tell about the operators of a query, which search does not read; "" where there are none."""
    said = _without_operators(query) != query or re.search(r"\w\W+NOT\b", query) or _MARKS.search(query)
    return NOT_READ if said else ""


def _without_operators(query: str) -> str:
    return query if query.isupper() else _OPERATOR.sub(" ", query)


def _is_error(word: str, known: str, distance: int) -> bool:
    """Whether a word within the distance is likelier a typing error than another word."""
    pairs = [*_OPPOSITES, *((b, a) for a, b in _OPPOSITES)]
    if any(word.startswith(a) and known.startswith(b) for a, b in pairs):
        return False
    if distance > 1 or len(word) != len(known):
        return abs(len(word) - len(known)) == distance
    swapped = sorted(word) == sorted(known)
    return swapped or (len(word) >= VOWELS_FROM and word.translate(_VOWELS) == known.translate(_VOWELS))


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
        """The words of a query, and the same with one term (the longest of nested ones) replaced by each synonym."""
        found, position, seen = [list(words)], 0, set[tuple[str, ...]]()
        while self._of and position < len(words) and len(found) < MAX_VARIANTS:
            for size in range(min(LONGEST, len(words) - position), 0, -1):
                term = tuple(words[position : position + size])
                others = [] if term in seen else self._others(term, query)
                if others:
                    seen.add(term)
                    found += [[*words[:position], *each, *words[position + size :]] for each in others]
                    position += size - 1
                    break
            position += 1
        return found[:MAX_VARIANTS]

    def _others(self, words: tuple[str, ...], query: str) -> list[tuple[str, ...]]:
        """The words of each synonym, once for each set of words: MeSH has "Infarction, Myocardial" as well."""
        meant = [
            number
            for number, term in self._of.get(words, ())
            if not term.capitals or re.search(rf"\b{term.capitals}\b", query)
        ]
        others = {tuple(sorted(term.words)): term.words for number in meant for term in reversed(self._groups[number])}
        return [each for key, each in reversed(others.items()) if key != tuple(sorted(words))][:MAX_SYNONYMS]


def read_synonyms(folder: Path) -> list[list[Term]]:
    """The terms that an index keeps; a `RetrievalError` where the file is damaged."""
    path = folder / SYNONYMS_FILE
    if not path.exists():
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [[Term(tuple(words), capitals) for words, capitals in group] for group in stored]
    except (ValueError, TypeError) as error:
        raise RetrievalError(
            f"index {folder}: {SYNONYMS_FILE} is damaged ({error}). Delete it, or make it again with: "
            f"medagent index synonyms {folder} FILE"
        ) from error


def set_synonyms(folder: Path, file: Path) -> tuple[int, int]:
    """Keep a file's terms with an index, in place of any before; returns how many groups, and how many left out."""
    manifest = Manifest.read(folder)
    check_writable(folder)
    analyser = Analyser(manifest.settings.analyser)
    groups, terms = [], 0
    try:
        for written in groups_of(file):
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
        part = folder / f"{SYNONYMS_FILE}.part"
        part.write_text(stored, encoding="utf-8")
        os.replace(part, folder / SYNONYMS_FILE)
        replace(manifest, synonyms_sha256=sha256(stored.encode()).hexdigest()).write(folder)
    return len(groups), terms - sum(map(len, groups))


def _analysed(text: str, analyser: Analyser) -> Term | None:
    # Behind a word in small letters, "WHO" and "AS" are names and no shouted stop words.
    words = tuple(analyser.tokens(f"the {text.strip()}"))
    capitals = text.strip() if _ABBREVIATION.fullmatch(text.strip()) else ""
    return Term(words, capitals) if 0 < len(words) <= LONGEST else None


_NARROWER = {"NRW", "BRD", "REL"}  # entry terms of MeSH that are not of the same meaning


def groups_of(file: Path) -> Iterator[list[str]]:
    """The terms of one meaning in a file, which may be compressed as .gz."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        if file.name.removesuffix(".gz").endswith(".xml"):
            yield from _of_xml(opened)
            return
        with TextIOWrapper(opened, encoding="utf-8-sig") as lines:
            yield from _of_lines(map(str.rstrip, lines))


def _of_xml(opened: gzip.GzipFile | BufferedReader) -> Iterator[list[str]]:
    """MeSH's descriptors."""
    for _, element in iterparse(opened):
        if element.tag == "DescriptorRecord":
            # Not the strings of qualifiers and of pharmacological actions, and of its concepts the preferred.
            concepts = element.findall("ConceptList/Concept")
            preferred = [each for each in concepts if each.get("PreferredConceptYN", "Y") == "Y"]
            terms = [term.text for each in preferred for term in each.iterfind("TermList/Term/String")]
            yield [term for term in (element.findtext("DescriptorName/String"), *terms) if term]
            element.clear()


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
