"""Articles in JATS 1.3 (ANSI/NISO Z39.96), and what is brought into its form: TEI and drug labels; Dublin Core."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from medagent.retrieval.bibliography import iso_date, plain_doi
from medagent.retrieval.chunking import Section
from medagent.retrieval.documents import ARTICLE_OF, PREPRINT_OF
from medagent.retrieval.readers.base import Item, Skipped, Withdrawn, has_header, is_retracted, named_lines, spread
from medagent.retrieval.readers.fields import document_of_fields
from medagent.retrieval.readers.xml_text import LANGUAGE, date_of, running_text, text_of, year_of

# Parts of a body that are no running text.
_SILENT = frozenset("table-wrap graphic media ref-list supplementary-material ack subject".split())
WRAPPER = "wrapper"  # an element around sections, in the place of which its content stands
_ARTICLES = ("article", "journal-article", "published-article", "peer-reviewed-article", "version-of-record")
# Their files say "research-article". DOIs of journals with the same prefix go on with letters: 10.1101/gr.
_SERVER = re.compile(r"(?:bio|med)rxiv|\b10\.1101/\d", re.IGNORECASE)
_TEASERS = ("graphical", "toc", "teaser")
SHELF = "https://www.ncbi.nlm.nih.gov/books/"


def article(element: Element, name: str) -> Item:
    """The document of an <article>, or why there is none."""
    meta = element.find("front/article-meta")
    if meta is None:
        return Skipped(name, "is a JATS article without <article-meta>")
    ids = {node.get("pub-id-type", ""): text_of(node) for node in meta.findall("article-id")}
    kinds = (("pmc", "pmc:"), ("pmcid", "pmc:"), ("pmid", "pmid:"), ("doi", "doi:"))
    names = [f"{prefix}{ids[kind].lower().removeprefix('pmc')}" for kind, prefix in kinds if ids.get(kind)]
    id_ = names[0] if names else ""
    where = f"{name}, {id_}" if id_ else name
    title = text_of(meta.find("title-group/article-title"))
    related = {found.get("related-article-type", "") for found in meta.findall("related-article")}

    def withdrawn(reason: str, *others: str) -> Item:
        known = tuple(dict.fromkeys((*names, *others)))
        return Withdrawn(where, known, "retracted", reason) if known else Skipped(where, reason)

    if element.get("article-type") in ("retraction", "withdrawal") or "retracted-article" in related:
        return withdrawn("is the notice of a retraction", *_related(meta, ("retracted-article",)))
    # A notice points back at what it retracts; what was retracted points forward at its notice, or says so in its
    # title.
    if related & {"retraction-forward", "retraction"} or is_retracted(title):
        return withdrawn("is a retracted article")
    journal = text_of(element.find("front/journal-meta//journal-title"))
    said = (text_of(element.find("front/journal-meta")), plain_doi(ids.get("doi", "")))
    kind = "preprint" if _SERVER.search(" ".join(said)) else element.get("article-type", "").replace("-", " ")
    is_preprint = kind == "preprint"
    linked = _related(meta, _ARTICLES if is_preprint else ("preprint",))
    links = [(PREPRINT_OF if is_preprint else ARTICLE_OF) + other for other in linked]
    fields = _fields(element, meta, ids) | {"title": title, "journal": journal, "types": [kind], "name": name}
    fields["date"] = min((date for each in meta.findall("pub-date") if (date := date_of(each))), default="")
    nothing = "has neither abstract nor body"
    return document_of_fields(fields, names, _sections(element, meta), name, source=name, links=links, nothing=nothing)


def _fields(element: Element, meta: Element, ids: Mapping[str, str]) -> dict[str, Any]:
    """What articles and chapters have alike, named as in users' rows."""
    return {
        "doi": ids.get("doi", ""),
        "pmid": ids.get("pmid", ""),
        "authors": [
            " ".join(map(text_of, (*each.findall("surname"), *each.findall("given-names"))))
            for each in meta.iterfind("contrib-group/contrib[@contrib-type='author']/name")
        ],
        "keywords": [text_of(each) for each in meta.iterfind("kwd-group/kwd")],
        "language": element.get(LANGUAGE, ""),
        "licence": licence_of(meta),
    }


def licence_of(meta: Element) -> str:
    """The address of the licence, else the beginning of its words."""
    licence = meta.find("permissions/license")
    if licence is None:
        return ""
    address = next((value for key, value in licence.attrib.items() if key.endswith("href")), "")
    return address or text_of(licence)[:200]


def _related(meta: Element, kinds: Collection[str]) -> Iterator[str]:
    """The articles that one is related to in these ways, by DOI or PMID."""
    for found in meta.findall("related-article"):
        address = next((value for key, value in found.attrib.items() if key.endswith("href")), "").strip()
        if found.get("related-article-type") not in kinds or not address:
            continue
        if found.get("ext-link-type") == "pubmed" or address.isdecimal():
            yield f"pmid:{address}"
        elif doi := plain_doi(address):
            yield f"doi:{doi}"


def dublin_core(element: Element, name: str) -> Item:
    """The document of an OAI-PMH record in Dublin Core: its descriptions are the text."""
    texts, names = (
        [text for each in element.findall(tag) if (text := text_of(each))] for tag in ("description", "identifier")
    )
    years = sorted(year for dated in element.findall("date") if (year := year_of(dated)))
    source = text_of(element.find("publisher")) or text_of(element.find("source")) or name
    fields = {"title": text_of(element.find("title")), "year": years[0] if years else None}
    nothing = "is a Dublin Core record without a description"
    return document_of_fields(fields, names[:1], [Section("", "\n".join(texts))], name, source=source, nothing=nothing)


def abstracts_of(meta: Element) -> Iterator[Section]:
    """Abstracts and their translations, without teasers."""
    for part in (*meta.findall("abstract"), *meta.findall("trans-abstract")):
        if (kind := part.get("abstract-type")) not in _TEASERS:
            heading = (kind or "abstract").replace("-", " ").capitalize()
            if part.tag == "trans-abstract":
                heading = f"Abstract, {part.get(LANGUAGE) or 'translated'}"
            yield Section(heading, running_text(part, _SILENT))


def _sections(element: Element, meta: Element) -> tuple[Section, ...]:
    """Abstracts, then body and appendices, those with text."""
    names = ("body", "floats-group", "back/app-group", "back/glossary")
    parts = [part for name in names if (part := element.find(name)) is not None]
    notes = Element("fn-group")  # and not those on conflicts of interest and the like, which have a type
    notes.extend([note for note in element.iterfind("back/fn-group/fn") if note.get("fn-type", "other") == "other"])
    found = [*abstracts_of(meta), *(each for part in parts for each in sections_of(part, ""))]
    found += sections_of(notes, "Notes")
    return tuple(section for section in found if section.text)


def sections_of(parent: Element, above: str) -> list[Section]:
    """Sections with their path of headings; text before the first heading belongs to the parent."""
    found: list[Section] = []
    loose: list[str] = []
    for child in parent:
        if child.tag in ("sec", "app"):
            heading = text_of(child.find("title"))
            found += sections_of(child, " > ".join(part for part in (above, heading) if part))
        elif child.tag == WRAPPER:
            found += sections_of(child, above)
        elif child.tag != "title":
            loose.append(running_text(child, _SILENT))
            found += [table for each in child.iter("table-wrap") if (table := _table(each, above)) is not None]
    text = "\n".join(part for part in loose if part)
    return [Section(above, text), *found] if text else found


def _table(wrap: Element, above: str) -> Section | None:
    """A table as a section: each row is a line of "column: cell" pairs, and its notes are the last lines."""
    lines = [line for table in list(wrap.iter("table")) or [wrap] for line in rows_of(table)]
    lines += [running_text(notes, _SILENT) for name in ("table-wrap-foot", "fn") for notes in wrap.findall(name)]
    if not any(lines):
        return None
    parts = (text_of(wrap.find(name)).rstrip(" .:") for name in ("title", "label", "caption"))
    heading = " > ".join(filter(None, (above, ". ".join(filter(None, parts)) or "Table")))
    return Section(heading, "\n".join(filter(None, lines)), "table")


def rows_of(table: Element) -> list[str]:
    """The rows of a table as lines. The first rows name the columns where they are its head, or all of headings."""
    heads, feet = ([row for part in table.iter(name) for row in part.iter("tr")] for name in ("thead", "tfoot"))
    rows = [*heads, *(row for row in table.iter("tr") if row not in heads and row not in feet), *feet]
    cells = [[cell for cell in row if cell.tag in ("td", "th")] for row in rows]
    grid = spread([[(text_of(cell), cell.get("colspan"), cell.get("rowspan")) for cell in row] for row in cells])
    named = len(heads)
    while not heads and named < len(rows) - 1 and all(cell.tag == "th" for cell in cells[named]):
        named += 1
    if not named and grid and has_header(grid, [all(map(_is_bold, row)) for row in cells]):
        named = 1
    return named_lines(grid, named)


def _is_bold(cell: Element) -> bool:
    styles = ("bold" in f"{node.get('styleCode')}{node.get('rend')}".lower() for node in cell.iter())
    return cell.find(".//bold") is not None or any(styles)


def chapter(element: Element, name: str, book: Element, *, shelf: str = "") -> Item:
    """The document of a <book-part>, or why there is none.

    `book` is the book's <book-meta>, empty where it has none. `shelf` is its number on the Bookshelf, as NBK546606.
    """
    meta = element.find("book-part-meta")
    meta = Element("book-part-meta") if meta is None else meta
    ids = {node.get("book-part-id-type", ""): text_of(node) for node in meta.findall("book-part-id")}
    pmid, own = ids.get("pmid", ""), element.get("id", "")
    pmid = pmid if pmid.isdecimal() else ""
    of_book = text_of(book.find("book-id"))
    id_ = f"pmid:{pmid}" if pmid else f"{of_book}:{own}" if of_book and own else own
    found = re.search(r"NBK\d+", " ".join((shelf, *ids.values())))
    fields = _fields(element, meta, {**ids, "pmid": pmid}) | {
        "title": text_of(meta.find("title-group/title")),
        "journal": text_of(book.find("book-title-group/book-title")),
        "date": _latest(meta) or _latest(book),
        "types": ["book chapter"],
        "url": f"{SHELF}{found[0]}/" if found else "",
        "name": name,
    }
    fields["licence"] = fields["licence"] or licence_of(book)
    nothing = "is a chapter without text"
    return document_of_fields(fields, [id_], _sections(element, meta), name, source=name, nothing=nothing)


def _latest(meta: Element) -> str:
    """The date of the last revision: chapters are revised in place."""
    dated = [*meta.findall("pub-date"), *meta.findall("pub-history/date"), *meta.findall("pub-history/event/date")]
    return max((found for each in dated if (found := date_of(each))), default="")


TEI_NAMES = {"div": "sec", "head": "title", "item": "list-item", "row": "tr", "cell": "td", "note": "fn", "lb": "break"}
TEI_NAMES |= {"figDesc": "caption", "ref": "xref", "formula": "disp-formula", "listBibl": "ref-list", "figure": "fig"}
_ABOUT_THE_WORK = ("acknowledgement", "funding", "references", "contribution", "availability")


def tei_article(element: Element, name: str) -> Item:
    """The document of a <TEI>, as GROBID makes them of PDFs."""
    _as_in_jats(element)
    head = element.find("teiHeader")
    head = Element("teiHeader") if head is None else head
    said = {each.get("type", "").upper(): text_of(each).removeprefix("PMC") for each in head.iter("idno")}
    dates = [each.get("when") or text_of(each) for each in head.iter("date") if each.get("type") in (None, "published")]
    fields = {
        "title": text_of(head.find("fileDesc/titleStmt/title")),
        "doi": said.get("DOI", ""),
        "pmid": said.get("PMID", ""),
        "authors": [
            " ".join(map(text_of, (*each.findall(".//surname"), *each.findall(".//forename"))))
            for each in head.iterfind(".//biblStruct/analytic/author")
        ],
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


SPL_NAMES = {"section": "sec", "paragraph": "p", "item": "list-item", "caption": "label", "table": "table-wrap"}
SPL_NAMES |= {"footnote": "fn", "br": "break", "renderMultiMedia": "graphic", "observationMedia": "graphic"}
SPL_NAMES |= dict.fromkeys(("component", "structuredBody", "excerpt", "highlight"), WRAPPER)
DAILYMED = "https://dailymed.nlm.nih.gov/dailymed/drugInfo.cfm?setid="
_BOXED = "code[@code='34066-1']"  # LOINC's code of a boxed warning


def label(element: Element, name: str) -> Item:
    """The document of a label (DailyMed's SPL): boxed warnings, then its sections and the products' ingredients."""
    set_id = _value(element.find("setId"), "root")
    if not set_id:
        return Skipped(name, "is no drug label: its <document> has no <setId>")
    for section in element.iter("sec"):
        code = _value(section.find("code"), "displayName")
        if not text_of(section.find("title")) and "UNCLASSIFIED" not in code:
            SubElement(section, "title").text = code.capitalize()
    first = Element("body")
    first.extend([each for each in element.iter("sec") if each.find(_BOXED) is not None])
    sections = [replace(each, kind="boxed warning") for each in sections_of(first, "")]
    for each in first:
        each.clear()  # else it would stand twice
    sections += [each for wrapped in element.findall(WRAPPER) for each in sections_of(wrapped, "")]
    sections += [Section("Products", "\n".join(_products(element)))]
    dated, version = (_value(element.find(each), "value") for each in ("effectiveTime", "versionNumber"))
    maker = text_of(element.find("author/assignedEntity/representedOrganization/name"))
    fields = label_fields(set_id, dated, version, maker) | {"title": text_of(element.find("title"))}
    return document_of_fields(fields, [fields["id"]], sections, name, source=name)


def label_fields(set_id: str, dated: str, version: str, maker: str) -> dict[str, str]:
    """The fields that a label has in all formats. Its numbers of versions sort as text."""
    fields = {"id": f"setid:{set_id.lower()}", "url": DAILYMED + set_id.lower(), "authors": maker, "date": dated}
    return fields | {"version": version.zfill(6), "journal": "DailyMed", "types": "Drug Label"}


def _value(element: Element | None, name: str) -> str:
    return "" if element is None else element.get(name, "")


def _products(element: Element) -> Iterator[str]:
    """A line for each product: its name, form, active ingredients with their strengths, and the inactive ones."""
    for product in element.iter("manufacturedProduct"):
        if product.find("name") is None:  # around another
            continue
        form = _value(product.find("formCode"), "displayName")
        said: dict[bool, list[str]] = {True: [], False: []}
        for each in product.iter("ingredient"):
            substance = text_of(each.find("ingredientSubstance/name"))
            parts = (each.find(f"quantity/{part}") for part in ("numerator", "denominator"))
            amounts = (f"{_value(part, 'value')} {_value(part, 'unit')}".removesuffix(" 1").strip() for part in parts)
            strength = " in ".join(amount for amount in amounts if amount not in ("", "1"))
            said[each.get("classCode", "").startswith("ACT")].append(f"{substance} {strength}".strip())
        line = f"{', '.join(filter(None, (text_of(product.find('name')), form)))}: {', '.join(said[True])}"
        if said[True]:
            yield line + (f"; inactive: {', '.join(said[False])}" if said[False] else "")
