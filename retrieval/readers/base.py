"""Shared by readers: open files, records of skipped documents, titles of retractions, rows of tables."""

import codecs
import gzip
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from charset_normalizer import from_bytes

from medagent.retrieval.chunking import Document
from medagent.retrieval.documents import ARTICLE_OF, PREPRINT, PREPRINT_OF, Kind
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers.tesseract import Tesseract

SAMPLE = 65_536  # bytes by which an encoding is found out
FEW = 0.1  # share of the bytes beyond ASCII that may be wrong in UTF-8
MUCH, LONG = 0.2, 400  # share of bytes beyond ASCII in texts of other scripts, and bytes from which that can be told
NOT_REVIEWED = "preprint, not peer-reviewed"
MAX_SPAN = 60  # columns or rows of one cell
MAX_FILE_BYTES = 256 << 20  # bytes that are one document, and therefore held at once
# A damaged or truncated archive. A disk that fails is another matter: it ends the build.
UNREADABLE = (gzip.BadGzipFile, EOFError, zlib.error)
_THING = r"(?:article|paper|publication|chapter|manuscript|study|review|report|letter|protocol)"
_RETRACTED = re.compile(
    rf"^\W*(?i:(?:this {_THING} (?:has been|was) )?(?:retracted|withdrawn)|temporary removal|removed)"
    rf"(?:\s+(?i:{_THING}))?\s*(?::|[\])\u2013\u2014]|\.$|$)"
    r"|^\W*(?:RETRACTED|WITHDRAWN)\b(?=.*[a-z])"  # and not a title that is all in capitals
    rf"|^\W*(?i:{_THING} (?:retracted|withdrawn)\s*:)"
    rf"|[:.\u2013\u2014-]\s*(?i:retracted|withdrawn)(?:\s+(?i:{_THING}))?\W*$"
    rf"|[\[(]\s*(?i:retracted|withdrawn)(?:\s+(?i:{_THING}))?\s*(?:[.:,;][^\])]*|(?i:see|in|by)\b[^\])]*)?[\])]\W*$"
)
_NOTICE = re.compile(
    r"^\W*(?:(?:notice|statement|note|notification) of )(?:retraction|withdrawal)\b"
    r"|^\W*(?:editorial |publisher(?:'s|\u2019s)? |authors?(?:'s?|s?\u2019)? )?retraction"
    r"(?:\s+(?:notice|note|statement|and republication))?\s*(?:[:\u2014]|\.(?:\s|$)|(?:to|for)\s*[:\"\u201c\u2018'])"
    r"|^\W*retraction (?:to|for) [A-Z][\w'\u2019-]+ et al\b"
    r"|^\W*(?:retraction|withdrawal|removal) (?:notice|note|statement)\b"
    rf"|^\W*retraction (?:of|to|for)\s*(?:{_THING}\b|[:\"\u201c\u2018'])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Skipped:
    """Something of the corpus that could not be used: where it stands and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """A part of a document that is used otherwise: where it stands, and what was left out ("2 struck-out texts")."""

    where: str
    what: str


@dataclass(frozen=True)
class Withdrawn:
    """Documents that must not be in an index, by any of their names: the source says so, and why.

    One that is `listed` stands in a list of notices, and is no document of the corpus.
    """

    where: str
    names: tuple[str, ...]
    kind: Kind
    reason: str
    version: str = ""
    listed: bool = False


Item = Document | Passage | Skipped | LeftOut | Withdrawn


class UnusableFileError(Exception):
    """The fault of a file: the reader of `read_file` ends, and the file is reported as skipped."""


class OpenFile:
    """A file of a corpus; `.gz` is unpacked while it is read. `name` is its name in documents and messages.

    With `ocr`, pages without text are recognized.
    """

    def __init__(self, path: Path, name: str, ocr: Tesseract | None = None) -> None:
        self.path, self.name, self.ocr = path, name, ocr
        self._raw = path.open("rb")
        packed = path.suffix.lower() == ".gz"
        self.stream: IO[bytes] = gzip.GzipFile(fileobj=self._raw) if packed else self._raw  # type: ignore[assignment]

    def position(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._raw.tell() if not self._raw.closed else self.path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self.stream.close()
        self._raw.close()

    def whole(self) -> bytes:
        """All of the file, unpacked; an `UnusableFileError` where it is damaged or longer than `MAX_FILE_BYTES`."""
        try:
            raw = self.stream.read(MAX_FILE_BYTES + 1)
        except UNREADABLE as error:
            raise UnusableFileError(f"cannot be read ({error})") from error
        if len(raw) > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES >> 20
            raise UnusableFileError(f"is longer than {limit} MiB as one document; cut it into several files")
        return raw

    def text(self, *, declared: re.Pattern[bytes] | None = None) -> str:
        """The whole file by `encoding_of`, with marks in place of what is wrong; else an `UnusableFileError`."""
        raw = self.whole()
        found = declared.search(raw[:SAMPLE]) if declared is not None else None
        encoding = encoding_of(raw, declared=found[1].decode("ascii", "replace") if found else "")
        text = raw.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
        binary = b"\x00" in raw[:SAMPLE] and not raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if binary or not text.strip():
            raise UnusableFileError("is empty, or no text")
        return text


def open_zip(raw: bytes) -> zipfile.ZipFile:
    """An archive in memory; an `UnusableFileError` where it would unpack to more than `MAX_FILE_BYTES`."""
    archive = zipfile.ZipFile(io.BytesIO(raw))
    if sum(each.file_size for each in archive.infolist() if each.filename.endswith("ml")) > MAX_FILE_BYTES:
        raise UnusableFileError(f"unpacks to more than {MAX_FILE_BYTES >> 20} MiB of text; cut it into several files")
    return archive


def encoding_of(head: bytes, *, declared: str = "") -> str:
    """The encoding of a text's beginning: byte order mark, UTF-8, what it declares, Windows' Western or a guess.

    Only long texts in another script are guessed: on short ones statistics turn a dose's µ into something else.
    """
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    for mark, name in marks.items():
        if head.startswith(mark):
            return name
    read = codecs.getincrementaldecoder("utf-8")("replace").decode(head)  # the end of the sample may cut a character
    foreign = sum(byte >= 0x80 for byte in head)
    if read.count("\ufffd") <= foreign * FEW and not declared.lower().startswith("iso-2022"):  # ASCII bytes
        return "utf-8"
    if declared and (known := _codec(declared)):
        return known
    if foreign > MUCH * len(head) and len(head) > LONG:
        found = from_bytes(head).best()
        return found.encoding if found is not None else "cp1252"
    return "cp1252"


def _codec(declared: str) -> str:
    """Python's name of an encoding, or an empty text. Declared Latin-1 is read as Windows-1252, as browsers do."""
    try:
        name = codecs.lookup(declared).name
    except LookupError:
        return ""
    others = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030"}
    return "" if name.startswith(("utf", "rot", "hex", "base64", "bz2", "zlib", "uu")) else others.get(name, name)


def is_retracted(title: str) -> bool:
    """Whether a title marks its article as retracted or withdrawn."""
    return bool(_RETRACTED.search(title))


def retraction_in_title(title: str) -> str:
    """Why an article with this title is left out; empty where its title says nothing."""
    if _NOTICE.search(title):
        return "is the notice of a retraction"
    return "is a retracted article" if is_retracted(title) else ""


def usable(document: Document, where: str, nothing: str = "has no abstract") -> Item:
    """The document, or why it cannot be used: its title marks a retraction, or it has no section."""
    if reason := retraction_in_title(document.title):
        return Skipped(where, f"{reason}, by its title")
    return document if document.sections else Skipped(where, nothing)


def completed(document: Item) -> Item:
    """A document with its DOI and PMID among its names. A preprint is marked as one, and by its names too."""
    if not isinstance(document, Document):
        return document
    about = document.about
    names = [document.id, *document.aliases, about.doi and f"doi:{about.doi}", about.pmid and f"pmid:{about.pmid}"]
    preprint = any(kind.lower() == "preprint" for kind in about.types)
    names = [name for name in names if not name.startswith(ARTICLE_OF if preprint else PREPRINT_OF)]
    if preprint:
        types = ("Preprint", *(kind for kind in about.types if kind.lower() != "preprint"))
        about = replace(about, types=types, notices=(NOT_REVIEWED, *about.notices))
        names += [PREPRINT + name for name in names if name and not name.startswith(PREPRINT_OF)]
    aliases = tuple(dict.fromkeys(name for name in names if name and name != document.id))
    return replace(document, about=about, aliases=aliases)


def left_out_of(where: str, counts: Counter[str]) -> Iterator[LeftOut]:
    """One record of all that was left out of a document, "2 struck-out texts, 1 deletion"; none for nothing.

    >>> list(left_out_of("a.docx", Counter({"formula": 2})))
    [LeftOut(where='a.docx', what='2 formulas')]
    """
    if said := ", ".join(f"{number} {what}{'s' if number > 1 else ''}" for what, number in counts.items() if number):
        yield LeftOut(where, said)


def table_lines(rows: Sequence[Sequence[str]], *, named: bool = True) -> list[str]:
    """A line for each row; with `named` the first row names the columns. Empty cells are left out.

    A cell that is alone in its row is a heading or a note, and stands without a name.

    >>> table_lines([["Drug", "Dose"], ["Aspirin", "300 mg"], ["At night", ""]])
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


def spread(rows: Sequence[Sequence[tuple[str, str | None, str | None]]]) -> list[list[str]]:
    """Rows of cells (text, columns, rows) with the spans written out, each as long as the longest.

    A cell over some of the columns stands in each of them. One over all columns is a heading, and stands in the first.
    """
    width = max((sum(_span(columns) for _, columns, _ in row) for row in rows), default=0)
    filled: dict[tuple[int, int], str] = {}
    for at, row in enumerate(rows):
        column = 0
        for text, columns, below in row:
            while (at, column) in filled:
                column += 1
            places = [(at + down, column + right) for down in range(_span(below)) for right in range(_span(columns))]
            for place in places:
                filled[place] = text if place[1] == column or _span(columns) < width else ""
            column += _span(columns)
    width = max((column + 1 for _, column in filled), default=0)
    return [[filled.get((at, column), "") for column in range(width)] for at in range(len(rows))]


def _span(value: str | None) -> int:
    return min(int(value), MAX_SPAN) if value and value.strip().isdecimal() and int(value) > 0 else 1


def named_lines(cells: Sequence[Sequence[str]], heads: int) -> list[str]:
    """The lines of a table of which so many first rows name the columns."""
    names = [" ".join(dict.fromkeys(filter(None, column))) for column in zip(*cells[:heads], strict=True)]
    return table_lines([names, *cells[heads:]] if heads else cells, named=bool(heads))


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
