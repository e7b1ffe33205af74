"""Articles and book chapters of PubMed's MEDLINE XML (the NLM's PubMed DTD)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from retrieval.chunking import Document, Section
from retrieval.readers.base import Item, Skipped
from retrieval.readers.retractions import why_left_out
from retrieval.readers.xml_text import text_of, year_of

_BRACKETED = re.compile(r"^\[([^\]]*?)\.?\]\.?$")  # how PubMed marks titles that it translated
_RETRACTED = {"Retracted Publication", "Retraction of Publication", "Retraction Notice"}


def article(element: Element, name: str) -> Item:
    """The document of a <PubmedArticle>, or why there is none.

    An article is left out where its type, its title, or a link to a notice says that it was retracted.
    """
    pmid = text_of(element.find("MedlineCitation/PMID"))
    where = f"{name}, PMID {pmid or '(none)'}"
    found = element.find("MedlineCitation/Article")
    if not pmid or found is None:
        return Skipped(where, "has no PMID or no article")
    kinds = {text_of(kind) for kind in found.iter("PublicationType")}
    if kinds & _RETRACTED:
        return Skipped(where, f"is a {min(kinds & _RETRACTED).lower()}")
    links = {link.get("RefType") for link in element.iter("CommentsCorrections")}
    if "RetractionOf" in links:
        return Skipped(where, "is the notice of a retraction")
    if "RetractionIn" in links:
        return Skipped(where, "is a retracted article: it names the notice")
    title = _BRACKETED.sub(r"\1.", text_of(found.find("ArticleTitle"))) or text_of(found.find("VernacularTitle"))
    if reason := why_left_out(title):
        return Skipped(where, f"{reason}, by its title")
    sections = tuple(_abstracts(found, element))
    if not sections:
        return Skipped(where, "has no abstract")
    dated = found.find("Journal/JournalIssue/PubDate")
    journal = text_of(found.find("Journal/ISOAbbreviation")) or text_of(found.find("Journal/Title"))
    return Document(
        title,
        sections,
        f"PubMed: {journal}" if journal else "PubMed",
        id=f"pmid:{pmid}",
        year=year_of(dated),
    )


def book(element: Element, name: str) -> Item:
    """The abstract of a chapter or book of the NCBI Bookshelf (GeneReviews, StatPearls) as PubMed has it."""
    found = element.find("BookDocument")
    pmid = "" if found is None else text_of(found.find("PMID"))
    where = f"{name}, PMID {pmid or '(none)'}"
    abstract = "" if found is None else _labelled(found.findall("Abstract/AbstractText"))
    if found is None or not pmid or not abstract:
        return Skipped(where, "is a book article without PMID or abstract")
    title_of_book = text_of(found.find("Book/BookTitle"))
    dates = (found.find(name) for name in ("ContributionDate", "DateRevised", "Book/PubDate"))
    year = next((year for date in dates if (year := year_of(date))), None)
    title = text_of(found.find("ArticleTitle")) or title_of_book
    source = f"PubMed: {title_of_book or 'Bookshelf'}"
    return Document(title, (Section("", abstract),), source, id=f"pmid:{pmid}", year=year)


def _abstracts(found: Element, element: Element) -> Iterator[Section]:
    """The abstract, and others with their language (MEDLINE's three letters): translations, and for patients."""
    if abstract := _labelled(found.findall("Abstract/AbstractText")):
        yield Section("", abstract)
    for other in element.iter("OtherAbstract"):
        if text := _labelled(other.findall("AbstractText")):
            kind = (other.get("Type") or "").replace("-", " ")
            about = [kind] if kind and kind.lower() != "publisher" else []
            yield Section(", ".join(("Abstract", *about, other.get("Language") or "eng")), text)


def _labelled(parts: list[Element]) -> str:
    """An abstract with the labels of its parts, each in a line."""
    lines = []
    for part in parts:
        label, text = part.get("Label") or "", text_of(part)
        if text:
            lines.append(f"{label.capitalize()}: {text}" if label and label != "UNLABELLED" else text)
    return "\n".join(lines)
