"""Exports of reference managers with abstracts: MEDLINE text (.nbib), RIS (rispy) and BibTeX (bibtexparser)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rispy
from bibtexparser.entrypoint import parse_string
from bibtexparser.middlewares import LatexDecodingMiddleware

from medagent.retrieval.bibliography import Bibliography, plain_doi, year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, OpenFile, Skipped, UnusableFileError, usable
from medagent.retrieval.readers.medline import medline_records

_RIS_TAG = re.compile(r"^\s*([A-Z][A-Z0-9])\s{0,2}-\s?(.*)$")
_BEGINS = re.compile(r"^\s*TY\s{0,2}-", re.MULTILINE)


def read_medline_text(file: OpenFile) -> Iterator[Item]:
    """One document per record of a MEDLINE text."""
    yield from medline_records(file.text(), file.name)


def read_ris(file: OpenFile) -> Iterator[Item]:
    """One document per record of RIS."""
    text = file.text()
    begun = len(_BEGINS.findall(text))
    try:
        rows = rispy.loads(_regular(text), skip_unknown_tags=True)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise UnusableFileError(f"is no readable RIS ({error})") from error
    if len(rows) < max(1, begun):
        yield Skipped(file.name, f"has {begun} records, of which {len(rows)} can be read")
    for number, row in enumerate(rows, start=1):
        where = f"{file.name}, record {number}"
        yield _document(
            str(row.get("title") or row.get("primary_title") or row.get("short_title") or ""),
            str(row.get("abstract") or row.get("notes_abstract") or "").strip(),
            where,
            id_=_id_of(str(row.get("doi") or ""), _pmid_of(row)),
            journal=str(
                row.get("journal_name") or row.get("secondary_title") or row.get("alternate_title3") or file.name
            ),
            date=str(row.get("year") or row.get("publication_year") or row.get("date") or ""),
            about=_about(row, url=next(iter(row.get("urls") or []), ""), keywords=row.get("keywords") or ()),
        )


def _regular(text: str) -> str:
    """RIS with an end to every record, the spaces that the format wants, and one line for each abstract."""
    lines: list[str] = []
    tag = ""
    for line in text.split("\n"):
        found = _RIS_TAG.match(line)
        if found is None:
            lines.append(line)
            continue
        if found[1] == "TY" and tag not in ("", "ER"):
            lines.append("ER  - ")
        if found[1] == tag and tag in ("AB", "N2"):
            lines[-1] += f" {found[2]}"
            continue
        tag = found[1]
        lines.append(f"{tag}  - {found[2].strip()}")
    return "\n".join([*lines, *([] if tag in ("", "ER") else ["ER  - "]), ""])


def read_bibtex(file: OpenFile) -> Iterator[Item]:
    """One document per entry of BibTeX that has an abstract."""
    # Many exports leave these as they are, and LaTeX would take what follows for a comment or a column.
    text = re.sub(r"(?<!\\)([%&])", r"\\\1", file.text())
    library = parse_string(text, append_middleware=[LatexDecodingMiddleware()])
    if not library.entries and not library.failed_blocks:
        yield Skipped(file.name, "has no entry")
    for failed in library.failed_blocks:
        yield Skipped(f"{file.name}, line {(failed.start_line or 0) + 1}", f"is no BibTeX entry ({failed.error})")
    for entry in library.entries:
        row = {field.key.lower(): str(field.value) for field in entry.fields}
        yield _document(
            row.get("title", "").replace("{", "").replace("}", ""),
            row.get("abstract", "").replace("{", "").replace("}", ""),
            f"{file.name}, {entry.key}",
            id_=_id_of(row.get("doi", ""), row.get("pmid", "")) or f"{file.name}:{entry.key}",
            journal=row.get("journal") or row.get("booktitle") or row.get("publisher") or file.name,
            date=row.get("year") or row.get("date") or "",
            about=_about(
                {**row, "authors": re.split(r"\s+and\s+", row.get("author", ""))},
                url=row.get("url", ""),
                keywords=re.split(r"[;,]", row.get("keywords", "")),
            ),
        )


def _pmid_of(row: Mapping[str, Any]) -> str:
    """An accession number, where the database that gave it is PubMed; the numbers of programs are none."""
    database = str(row.get("name_of_database") or row.get("database_provider") or "").lower()
    number = str(row.get("accession_number") or "").strip()
    return number if number.isdecimal() and any(name in database for name in ("pubmed", "medline", "nlm")) else ""


def _id_of(doi: str, pmid: str) -> str:
    if pmid.strip().isdecimal():
        return f"pmid:{pmid.strip()}"
    plain = plain_doi(doi)
    return f"doi:{plain}" if plain else ""


def _about(row: Mapping[str, Any], *, url: str, keywords: Sequence[str]) -> Bibliography:
    said = {"url": url, "keywords": list(keywords), "doi": row.get("doi"), "language": row.get("language")}
    said |= {"authors": row.get("authors") or row.get("first_authors"), "date": row.get("year") or row.get("date")}
    said |= {"journal": row.get("journal_name") or row.get("journal") or row.get("secondary_title")}
    return Bibliography.of_row(said | {"pmid": row.get("pmid")})


def _document(title: str, abstract: str, where: str, *, id_: str, journal: str, date: str, about: Bibliography) -> Item:
    sections = (Section("", abstract),) if abstract.strip() else ()
    document = Document(" ".join(title.split()), sections, journal, id=id_, year=year_in(date), about=about)
    return usable(document, where)
