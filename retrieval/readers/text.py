"""Files of plain text, and what readers of all kinds do with text."""

import re
from collections.abc import Iterator
from pathlib import PurePath

from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, OpenFile
from medagent.retrieval.readers.medline import is_medline, medline_records

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


def title_from_name(name: str) -> str:
    """A title from a file's name."""
    stem = PurePath(name).name.removesuffix(".gz")
    return PurePath(stem).stem.replace("_", " ")
