"""Chapters of books in BITS 2.0, the book form of JATS, in which NCBI Bookshelf gives StatPearls and others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.chunking import Document
from medagent.retrieval.readers.base import Item, Skipped
from medagent.retrieval.readers.jats import abstracts_of, authors_of, licence_of, sections_of
from medagent.retrieval.readers.retractions import why_left_out
from medagent.retrieval.readers.xml_text import LANGUAGE, date_of, text_of, without_namespaces

SHELF = "https://www.ncbi.nlm.nih.gov/books/"


@dataclass(frozen=True)
class Book:
    """What the chapters of a book share; what is unknown is empty."""

    id: str = ""
    title: str = ""
    date: str = ""
    licence: str = ""


def book_of(meta: Element) -> Book:
    """The book of a <book-meta>."""
    without_namespaces(meta)
    title = text_of(meta.find("book-title-group/book-title"))
    return Book(text_of(meta.find("book-id")), title, _latest(meta), licence_of(meta))


def is_chapter(element: Element) -> bool:
    """Whether a <book-part> has text of its own and is no part of chapters."""
    return element.find(".//{*}book-part") is None


def chapter(element: Element, name: str, book: Book, *, shelf: str = "") -> Item:
    """The document of a <book-part>, or why there is none; `shelf` is its number on the Bookshelf, as NBK546606."""
    without_namespaces(element)
    meta = element.find("book-part-meta")
    meta = Element("book-part-meta") if meta is None else meta
    ids = {node.get("book-part-id-type", ""): text_of(node) for node in meta.findall("book-part-id")}
    pmid, own = ids.get("pmid", ""), element.get("id", "")
    id_ = f"pmid:{pmid}" if pmid.isdecimal() else f"{book.id}:{own}" if book.id and own else own
    where = f"{name}, {id_}" if id_ else name
    title = text_of(meta.find("title-group/title"))
    if reason := why_left_out(title):
        return Skipped(where, f"{reason}, by its title")
    sections = list(abstracts_of(meta))
    for part in (element.find("body"), element.find("back/app-group")):
        sections += sections_of(part, "") if part is not None else []
    sections = [section for section in sections if section.text]
    if not sections:
        return Skipped(where, "is a chapter without text")
    date = _latest(meta) or book.date
    found = re.search(r"NBK\d+", " ".join((shelf, *ids.values())))
    return Document(
        title,
        tuple(sections),
        book.title or name,
        id=id_,
        year=int(date[:4]) if date else None,
        licence=licence_of(meta) or book.licence,
        name=name,
        about=Bibliography(
            url=f"{SHELF}{found[0]}/" if found else "",
            doi=ids.get("doi", "").lower(),
            pmid=pmid if pmid.isdecimal() else "",
            authors=authors_of(meta),
            journal=book.title,
            date=date,
            types=("book chapter",),
            keywords=tuple(text for each in meta.iterfind("kwd-group/kwd") if (text := text_of(each))),
            language=element.get(LANGUAGE, ""),
        ),
    )


def _latest(meta: Element) -> str:
    """The date of the last revision: chapters are revised in place."""
    dated = [*meta.findall("pub-date"), *meta.findall("pub-history/date"), *meta.findall("pub-history/event/date")]
    return max((found for each in dated if (found := date_of(each))), default="")
