"""Exports of reference managers with abstracts: MEDLINE text (.nbib), RIS (rispy) and BibTeX (bibtexparser)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rispy
from bibtexparser.entrypoint import parse_string
from bibtexparser.middlewares import LatexDecodingMiddleware

from medagent.lazy import packaged
from medagent.retrieval.bibliography import plain_doi
from medagent.retrieval.chunking import Section
from medagent.retrieval.readers.base import Item, OpenFile, Skipped, UnusableFileError
from medagent.retrieval.readers.fields import document_of_fields, fields_at
from medagent.retrieval.readers.medline import medline_records

_RIS_TAG = re.compile(r"^\s*([A-Z][A-Z0-9])\s{0,2}-\s?(.*)$")
_BEGINS = re.compile(r"^\s*TY\s{0,2}-", re.MULTILINE)
_RIS: dict[str, str] = packaged("medagent.retrieval.readers", "records.yaml")["ris"]


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
        fields, where = fields_at(row, _RIS), f"{file.name}, record {number}"
        fields["url"] = next(iter(row.get("urls") or []), "")
        names = (f"pmid:{_pmid_of(row)}", f"doi:{plain_doi(str(row.get('doi') or ''))}")
        yield _document(fields, names, where, str(row.get("alternate_title3") or file.name))


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
        fields: dict[str, Any] = {name: row.get(name, "") for name in ("journal", "doi", "pmid", "url", "language")}
        fields |= {name: re.sub("[{}]", "", row.get(name, "")) for name in ("title", "abstract")}
        fields |= {"date": row.get("year") or row.get("date"), "keywords": re.split("[;,]", row.get("keywords", ""))}
        fields["authors"] = re.split(r"\s+and\s+", row.get("author", ""))
        pmid, doi = row.get("pmid", "").strip(), plain_doi(row.get("doi", ""))
        known = [f"pmid:{pmid}"] if pmid.isdecimal() else [f"doi:{doi}"] if doi else [f"{file.name}:{entry.key}"]
        source = row.get("booktitle") or row.get("publisher") or file.name
        yield _document(fields, known, file.name, source)


def _pmid_of(row: Mapping[str, Any]) -> str:
    """An accession number, where the database that gave it is PubMed; the numbers of programs are none."""
    database = str(row.get("name_of_database") or row.get("database_provider") or "").lower()
    number = str(row.get("accession_number") or "").strip()
    return number if number.isdecimal() and any(name in database for name in ("pubmed", "medline", "nlm")) else ""


def _document(fields: Mapping[str, Any], names: Sequence[str], where: str, source: str) -> Item:
    text = str(fields.get("abstract") or "").strip()
    return document_of_fields(fields, names, [Section("", text)], where, source=source, nothing="has no abstract")
