"""Articles in TEI, as GROBID makes them of PDFs."""

from xml.etree.ElementTree import Element

from medagent.retrieval.bibliography import iso_date, plain_doi
from medagent.retrieval.readers.base import Item
from medagent.retrieval.readers.fields import document_of_fields
from medagent.retrieval.readers.jats import sections_of
from medagent.retrieval.readers.xml_text import LANGUAGE, text_of

NAMES = {"div": "sec", "head": "title", "item": "list-item", "row": "tr", "cell": "td", "note": "fn", "lb": "break"}
NAMES |= {"figDesc": "caption", "ref": "xref", "formula": "disp-formula", "listBibl": "ref-list", "figure": "fig"}
_ABOUT_THE_WORK = ("acknowledgement", "funding", "references", "contribution", "availability")


def article(element: Element, name: str) -> Item:
    """The document of a <TEI>."""
    _as_in_jats(element)
    head = element.find("teiHeader")
    head = Element("teiHeader") if head is None else head
    said = {each.get("type", "").upper(): text_of(each).removeprefix("PMC") for each in head.iter("idno")}
    dates = [each.get("when") or text_of(each) for each in head.iter("date") if each.get("type") in (None, "published")]
    fields = {
        "title": text_of(head.find("fileDesc/titleStmt/title")),
        "doi": said.get("DOI", ""),
        "pmid": said.get("PMID", ""),
        "authors": [_author(each) for each in head.iterfind(".//biblStruct/analytic/author")],
        "journal": text_of(head.find(".//monogr/title")),
        "date": next(filter(None, map(iso_date, dates)), ""),
        "keywords": [text_of(each) for each in head.iterfind(".//keywords//term")],
        "language": head.get(LANGUAGE, ""),
        "licence": text_of(head.find(".//licence")),
        "name": name,
    }
    names = (
        f"doi:{plain_doi(said.get('DOI', ''))}",
        f"pmid:{fields['pmid']}",
        f"pmc:{said.get('PMCID', said.get('PMC', ''))}",
    )
    places = (("Abstract", "teiHeader/profileDesc/abstract"), ("", "text/body"), ("", "text/back"))
    parts = [(heading, part) for heading, path in places if (part := element.find(path)) is not None]
    sections = [each for heading, part in parts for each in sections_of(part, heading)]
    return document_of_fields(fields, names, sections, name, source=name)


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
