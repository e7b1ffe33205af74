"""What is known of a document beside its text: authors, journal, date, names and address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from medagent.retrieval.years import iso_date

_DOI = re.compile(r"^(?:https?://(?:dx\.)?doi\.org/|doi:\s*)", re.IGNORECASE)
# What rows call the fields, beside their own names.
_OTHER_NAMES = {
    "url": ("link", "uri", "address"),
    "authors": ("author",),
    "language": ("lang",),
    "types": ("publication_type", "publication_types", "type"),
    "keywords": ("mesh", "mesh_terms"),
    "date": ("published", "publication_date"),
}


@dataclass(frozen=True)
class Bibliography:
    """A document's bibliography; what is unknown is empty.

    `date` is ISO 8601 as far as it is known ("2021-03"). `doi` and `pmid` are without prefix. `types` are publication
    types, as PubMed names them. `notices` tell of errata and expressions of concern.
    """

    url: str = ""
    doi: str = ""
    pmid: str = ""
    authors: tuple[str, ...] = ()
    journal: str = ""
    date: str = ""
    types: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    language: str = ""
    notices: tuple[str, ...] = ()

    @property
    def link(self) -> str:
        """An address that leads to the document: its own, or its DOI's or PubMed's; empty where none is known."""
        if self.url:
            return self.url
        if self.doi:
            return f"https://doi.org/{self.doi}"
        return f"https://pubmed.ncbi.nlm.nih.gov/{self.pmid}/" if self.pmid else ""

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the fields that are empty."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Bibliography:
        """The inverse of `to_json`; other fields of the row are left alone."""
        known: dict[str, Any] = {name: row[name] for name in NAMES if name in row}
        made: dict[str, Any] = {name: tuple(said) if isinstance(said, list) else said for name, said in known.items()}
        return Bibliography(**made)

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> Bibliography:
        """What a user's row says under these names or others; several authors may stand in a text, between semicolons.

        Only addresses of the web count, so that none can run code where it is shown.
        """
        found: dict[str, Any] = {}
        for name in NAMES:
            value = next((row[key] for key in (name, *_OTHER_NAMES.get(name, ())) if _says(row.get(key))), None)
            if value is None:
                continue
            if name in _SEVERAL:
                parts = value if isinstance(value, list | tuple) else str(value).split(";")
                found[name] = tuple(text for part in parts if (text := _text(part)))
            else:
                found[name] = _text(value)
        found["doi"] = plain_doi(found.get("doi", ""))
        found["date"] = iso_date(found.get("date", ""))
        found["pmid"] = found.get("pmid", "") if found.get("pmid", "").isdecimal() else ""
        if not re.match(r"https?://", found.get("url", ""), re.IGNORECASE):
            found["url"] = ""
        return Bibliography(**found)


def plain_doi(text: str) -> str:
    """A DOI without an address before it, in lower case.

    >>> plain_doi("https://doi.org/10.1000/ABC")
    '10.1000/abc'
    """
    return _DOI.sub("", text.strip()).lower()


NAMES = tuple(each.name for each in fields(Bibliography))
_SEVERAL = ("authors", "types", "keywords", "notices")


def _says(value: Any) -> bool:
    return bool(value) and value == value  # NaN is not itself


def _text(value: Any) -> str:
    return " ".join(str(value).encode("utf-8", "replace").decode("utf-8").split())
