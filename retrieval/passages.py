"""A passage is the unit of retrieval and citation. Its id follows from its content, so it is stable across rebuilds."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any

from medagent.retrieval.bibliography import NAMES, Bibliography

TEXT_FIELDS = ("text", "content", "contents", "body", "abstract")
_TEXT_HASH = re.compile(r"#([0-9a-f]{16})$")


@dataclass(frozen=True)
class Passage:
    """A titled piece of text; unknown fields are empty or None.

    `source` is a file name, a journal or a web address. `document` is the id that the passages of one document share.
    """

    id: str
    title: str
    text: str
    source: str = ""
    section: str = ""
    year: int | None = None
    licence: str = ""
    document: str = ""
    about: Bibliography = Bibliography()

    @staticmethod
    def make(title: str, text: str, source: str = "", *, id: str = "", section: str = "", **more: Any) -> "Passage":
        """A passage; unless one is given, its id is 16 hex digits of SHA-256 over title, section and text."""
        return Passage(id or content_digest(title, section, text), title, text, source, section, **more)

    @property
    def heading(self) -> str:
        """Title and section in one line, as people and agents see them; empty where there is neither."""
        return " > ".join(part for part in (self.title, self.section) if part)

    @property
    def shown_text(self) -> str:
        """Heading and text in a line."""
        return f"{self.heading}: {self.text}" if self.heading else self.text

    @property
    def indexed_text(self) -> str:
        """The text that is embedded and tokenised: title, section and text, each in its own line."""
        return "\n".join(part for part in (self.title, self.section, self.text) if part)

    @property
    def digest(self) -> str:
        """A hash of the content, whatever the id."""
        return content_digest(self.title, self.section, self.text)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the fields that are empty."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "about"}
        return {name: value for name, value in values.items() if value not in ("", None)} | self.about.to_json()

    @staticmethod
    def from_json(row: dict[str, Any]) -> "Passage":
        """The inverse of `to_json`."""
        own = {name: value for name, value in row.items() if name not in NAMES}
        return Passage(**{"title": "", **own, "about": Bibliography.from_json(row)})


def content_digest(title: str, section: str, text: str) -> str:
    """16 hex digits of SHA-256 over what a passage says."""
    whole = "\n".join((title, section, text) if section else (title, text))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def document_digest(passages: Iterable[Passage]) -> str:
    """16 hex digits of SHA-256 over all that a document's passages hold but their ids, in order."""
    digest = hashlib.sha256()
    for passage in passages:
        row = {name: value for name, value in passage.to_json().items() if name not in ("id", "document")}
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()[:16]


def text_key(name: str) -> str:
    """A key that passages of one text share: the text's hash if the id ends in it, else the id."""
    found = _TEXT_HASH.search(name)
    return found[1] if found else name


def document_of(name: str) -> str:
    """The document that a passage's id names."""
    return name.partition("#")[0]


def names_found(names: Collection[str], passages: Iterable[Passage]) -> set[str]:
    """The names (of passages, documents, or passages of one text) that one of the passages meets."""
    held = {name for passage in passages for name in (passage.id, passage.document, text_key(passage.id)) if name}
    return {name for name in names if name in held or text_key(name) in held}


def is_named(passage: Passage, names: Collection[str]) -> bool:
    """Whether the passage, a passage of its text, or its document is among the named passages and documents."""
    keys, documents = {text_key(name) for name in names}, {document_of(name) for name in names}
    return text_key(passage.id) in keys or (passage.document or document_of(passage.id)) in documents


@dataclass(frozen=True)
class Hit:
    """A retrieved passage with its score (higher is better; comparable within one search only)."""

    passage: Passage
    score: float


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, replaced by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
