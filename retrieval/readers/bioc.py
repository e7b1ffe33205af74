"""Articles in BioC, in XML and JSON, as PubMed Central and PubTator give them: passages with their kinds."""

import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from medagent.retrieval.bibliography import plain_doi
from medagent.retrieval.chunking import Section
from medagent.retrieval.readers.base import Item, table_lines
from medagent.retrieval.readers.fields import document_of_fields
from medagent.retrieval.readers.jats import rows_of
from medagent.retrieval.readers.xml_text import prepare, text_of

_SKIPPED = {"REF", "AUTH_CONT", "ACK_FUND", "COMP_INT", "KEYWORD", "AUTHORS"}  # section types that are no text
_NAMES = {"INTRO": "Introduction", "DISCUSS": "Discussion", "CONCL": "Conclusions", "FIG": "Figures"}
_TITLE = re.compile(r"(?:abstract_)?title(?:_(\d))?|table(?:_title)?_caption")


def of_element(element: Element, name: str) -> Item:
    """The document of a <document>."""
    return of_record(_as_record(element), name, source=name)


def _as_record(element: Element) -> dict[str, Any]:
    """A document or passage as it is in JSON."""
    text = element.findtext("text") or " ".join(map(text_of, element.iterfind("sentence/text")))
    infons = {each.get("key", ""): (each.text or "").strip() for each in element.findall("infon")}
    passages = [_as_record(each) for each in element.findall("passage")]
    return {"id": text_of(element.find("id")), "text": text, "infons": infons, "passages": passages}


def of_record(row: Mapping[str, Any], where: str, *, source: str) -> Item:
    """The document of a record with passages."""
    passages = [each for each in row["passages"] if isinstance(each, Mapping)]
    infons = {key: str(text) for each in (*reversed(passages), row) for key, text in (each.get("infons") or {}).items()}
    title, last, above = "", "", list[str]()
    sections: dict[str, list[str]] = {}
    for each in passages:
        own = each.get("infons") or {}
        section, kind = str(own.get("section_type") or "").upper(), str(own.get("type") or "").lower()
        text = " ".join(str(part.get("text") or "") for part in (each, *(each.get("sentences") or ()))).strip()
        above, last = above if section == last else [], section
        if section in _SKIPPED or kind in ("ref", "authors", "keywords"):
            continue
        if kind in ("front", "title") or section == "TITLE":
            title = title or text
        elif found := _TITLE.fullmatch(kind):
            above = [*above[: int(found[1] or 1) - 1], text]
        else:
            heading = " > ".join(above) or _NAMES.get(section) or (section or kind).capitalize()
            sections.setdefault(heading, []).extend(_rows(own, text) if kind == "table" else [text])
    number = str(row.get("id") or "")
    pmc = infons.get("article-id_pmc") or (number if number.startswith("PMC") else "")
    fields = {
        "title": title,
        "doi": infons.get("article-id_doi", ""),
        "pmid": infons.get("article-id_pmid") or ("" if pmc else number),
        "authors": [_name(infons[f"name_{at}"]) for at in range(len(infons)) if f"name_{at}" in infons],
        "journal": infons.get("journal-title") or row.get("journal"),
        "date": infons.get("year") or row.get("date"),
        "licence": infons.get("license"),
    }
    names = (f"pmc:{pmc.removeprefix('PMC')}", f"pmid:{fields['pmid']}", f"doi:{plain_doi(str(fields['doi']))}")
    texts = (Section(heading, "\n".join(lines)) for heading, lines in sections.items())
    return document_of_fields(fields, names, texts, where, source=source)


def _name(infon: str) -> str:
    """The name in "surname:Roe;given-names:Ann"."""
    return " ".join(re.findall(r":([^;]+)", infon))


def _rows(infons: Mapping[str, Any], text: str) -> list[str]:
    """The rows of a table: PubMed Central gives its XML too, else rows end where a cell begins with a space."""
    try:
        table = fromstring(str(infons.get("xml") or ""))
    except (ParseError, DefusedXmlException):
        return table_lines([[cell.strip() for cell in row.split("\t")] for row in re.split(r"\t \t|\n", text)])
    prepare(table, {})
    return rows_of(table)
