"""Files of plain text, and what readers of all kinds do with text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import PurePath

from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, OpenFile
from medagent.retrieval.readers.medline import is_medline, medline_records

_LIGATURES = re.compile("[\ufb00-\ufb06]")
_EXPONENT = re.compile(r"[-−–+]?\d+")
_MARK = re.compile(r"[\d,;*†‡§¶#()\[\]\s–—-]+|[a-z]")
# Marks follow words of three letters, and signs: "cm" and "SpO" have a raised digit of their own.
_MARKED = re.compile(r"(?:[^\W\d_][^\W\d_A-Z]{2}|[A-Z]{3}|[.,;:!?%)\]\"'”’»])$")
_PARAGRAPHS = re.compile(r"\n\s*\n")

# Titles that programs write into the properties of files.
NO_TITLE = re.compile(
    r"^\W*$|^untitled|^word document$"
    r"|^microsoft (word|powerpoint|excel)|^powerpoint|^(document|presentation|slide|layout|title)\W*\d*$"
    r"|^\(?(anonymous|unspecified|none|unknown|temp|test|draft)\)?$|^\S*(_|\d{3})\S*$|[\\/]\S+[\\/]"
    r"|\.(docx?|pdf|indd|qxd|qxp|tex|dvi|rtf|odt|pptx?|xlsx?)\b",
    re.IGNORECASE,
)


def read_text(file: OpenFile) -> Iterator[Item]:
    """One document with one section, titled with the file's name; PubMed's export has a document per record."""
    text = file.text()
    if is_medline(text):
        yield from medline_records(text, file.name)
        return
    yield Document(title_from_name(file.name), (Section("", join_wrapped_lines(text)),), file.name, name=file.name)


def join_wrapped_lines(text: str) -> str:
    """Each paragraph in one line, but list items and table rows apart."""
    lines = []
    for paragraph in _PARAGRAPHS.split(text):
        listed = re.search(r"^\s*([-*+|]|\d+[.)])\s", paragraph, re.MULTILINE)
        lines.append(paragraph.strip() if listed else " ".join(paragraph.split()))
    return "\n".join(line for line in lines if line)


def expand_ligatures(text: str) -> str:
    """The text with joined letters as the letters that they join: "ﬁ" as "fi"."""
    return _LIGATURES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def superscript(text: str, before: str) -> str:
    """The text that a superscript adds: nothing for marks, "^9" for exponents, else itself ("m2")."""
    if before[-1:].isdigit() and _EXPONENT.fullmatch(text):
        return f"^{text}"
    if _MARK.fullmatch(text) and (_MARKED.search(before) or before[-1:].isdigit()):
        return ""
    return text


def title_from_name(name: str) -> str:
    """A title from a file's name."""
    stem = PurePath(name).name.removesuffix(".gz")
    return PurePath(stem).stem.replace("_", " ")
