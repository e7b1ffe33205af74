"""Articles in TEI, as GROBID makes them of PDFs."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from medagent.retrieval.bibliography import Bibliography, iso_date, plain_doi
from medagent.retrieval.chunking import Document
from medagent.retrieval.readers.base import Item, usable
from medagent.retrieval.readers.jats import sections_of
from medagent.retrieval.readers.xml_text import LANGUAGE, text_of

NAMES = {"div": "sec", "head": "title", "item": "list-item", "row": "tr", "cell": "td", "note": "fn", "lb": "break"}
NAMES |= {"figDesc": "caption", "ref": "xref", "formula": "disp-formula", "listBibl": "ref-list", "figure": "fig"}
_PREFIXES = {"DOI": "doi:", "PMID": "pmid:", "PMCID": "pmc:", "PMC": "pmc:"}
_ABOUT_THE_WORK = ("acknowledgement", "funding", "references", "contribution", "availability")


def article(element: Element, name: str) -> Item:
    """The document of a <TEI>."""
    _as_in_jats(element)
    head = element.find("teiHeader")
    head = Element("teiHeader") if head is None else head
    said = {each.get("type", "").upper(): text_of(each) for each in head.iter("idno")}
    ids = [prefix + plain_doi(said[kind]).removeprefix("pmc") for kind, prefix in _PREFIXES.items() if said.get(kind)]
    title = text_of(head.find("fileDesc/titleStmt/title"))
    dates = [each.get("when") or text_of(each) for each in head.iter("date") if each.get("type") in (None, "published")]
    date = next(filter(None, map(iso_date, dates)), "")
    journal = text_of(head.find(".//monogr/title"))
    sections = []
    for heading, path in (("Abstract", "teiHeader/profileDesc/abstract"), ("", "text/body"), ("", "text/back")):
        if (part := element.find(path)) is not None:
            sections += sections_of(part, heading)
    document = Document(
        title,
        tuple(sections),
        journal or name,
        id=ids[0] if ids else "",
        year=int(date[:4]) if date else None,
        licence=text_of(head.find(".//licence"))[:200],
        name=name,
        aliases=tuple(ids[1:]),
        about=Bibliography(
            doi=plain_doi(said.get("DOI", "")),
            pmid=said.get("PMID", ""),
            authors=tuple(filter(None, map(_author, head.iterfind(".//biblStruct/analytic/author")))),
            journal=journal,
            date=date,
            keywords=tuple(text for each in head.iterfind(".//keywords//term") if (text := text_of(each))),
            language=head.get(LANGUAGE, ""),
        ),
    )
    return usable(document, f"{name}, {document.id}" if document.id else name, "has neither abstract nor body")


def _author(author: Element) -> str:
    return " ".join(filter(None, (text_of(author.find(".//surname")), *map(text_of, author.iterfind(".//forename")))))


def _as_in_jats(element: Element) -> None:
    """Attributes as JATS has them, and no sections on the making of the article."""
    for node in list(element.iter()):
        kind = node.get("type", "")
        if node.tag == "xref":
            node.set("ref-type", "fn" if kind == "foot" else kind or "link")
        elif node.tag == "hi" and node.get("rend", "").startswith("sup"):
            node.tag = "sup"
        elif node.tag == "title" and node.get("n"):
            node.text = f"{node.get('n')} {node.text or ''}"
        elif node.tag == "sec" and kind in _ABOUT_THE_WORK:
            node.tag = "ack"
        elif node.tag == "fig":
            node.tag = "table-wrap" if kind == "table" else "fig"
            for number in node.findall("label") if node.find("title") is not None else ():
                node.remove(number)  # the title has it too
        elif node.tag == "table":
            rows = list(node.iter("tr"))
            for row in [row for row in rows if row.get("role") == "label"] or rows[:1]:
                for cell in row.findall("td"):
                    cell.tag = "th"
        elif node.tag in ("td", "th"):
            node.attrib |= {"colspan": node.get("cols", "1"), "rowspan": node.get("rows", "1")}
