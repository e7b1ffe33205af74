"""PubMed's MEDLINE XML and JATS full text, article by article, so that a file of any size fits in memory.

Formats: the NLM's PubMed DTD (PubmedArticleSet) and JATS 1.3 (ANSI/NISO Z39.96). defusedxml refuses entity tricks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import iterparse

from retrieval.chunking import Document, Section
from retrieval.readers.base import UNREADABLE, Item, OpenFile, Skipped

_YEAR = re.compile(r"(?<!\d)(?:1[89]|20)\d\d(?!\d)")
_SETS = {"pmc-articleset", "article-set"}
_ROOTS = {"PubmedArticleSet", "PubmedBookArticleSet", "article", *_SETS}
_BRACKETED = re.compile(r"^\[([^\]]*?)\.?\]\.?$")  # how PubMed marks titles that it translated
_EXPONENT = re.compile(r"\s*[-+−–]?\d")
_RETRACTED = {"Retracted Publication", "Retraction of Publication"}
# Parts of a JATS body that are no running text.
_SILENT = {
    "xref",
    "table-wrap",
    "tex-math",
    "disp-formula",
    "graphic",
    "media",
    "ref-list",
    "supplementary-material",
    "fn-group",
    "ack",
}
_GAPS = {"break", "td", "th"}
_BLOCKS = {"p", "title", "list-item", "disp-quote", "caption", "label", "sec", "list"}


def read_xml(file: OpenFile) -> Iterator[Item]:
    """The articles of a MEDLINE or JATS file, told apart by their elements."""
    done = 0
    root: Element | None = None
    try:
        for event, element in iterparse(file.stream, events=("start", "end")):
            name = _local(element)
            if event == "start":
                if root is None:
                    root = element
                    if name not in _ROOTS:  # not read further: the whole of it would be held in memory
                        yield Skipped(
                            file.name,
                            f"holds no article: its root is <{name}>; wanted MEDLINE (PubmedArticleSet) or JATS "
                            "(article)",
                        )
                        return
                continue
            if name == "PubmedArticle":
                yield _medline(element, file.name)
            elif name == "PubmedBookArticle":
                yield _book(element, file.name)
            elif name == "DeleteCitation":
                for pmid in element.iter("PMID"):
                    yield Skipped(
                        f"{file.name}, PMID {pmid.text}",
                        "is named as deleted by PubMed; remove it from the index if it is there",
                    )
            elif name == "article" and (element is root or _local(root) in _SETS):
                yield _jats(element, file.name)
            else:
                continue
            done += 1
            element.clear()
            if root is not None and root is not element:
                root.clear()  # else the emptied articles pile up under the root
    except (ParseError, DefusedXmlException) as error:
        yield Skipped(file.name, f"is no well-formed XML ({error}); {done:,} articles before that place are used")
        return
    except UNREADABLE as error:
        yield Skipped(file.name, f"cannot be read to its end ({error}); {done:,} articles before that place are used")
        return
    if not done:
        yield Skipped(file.name, f"holds no article in its <{_local(root)}>")


def _medline(article: Element, name: str) -> Item:
    pmid = _text(article.find("MedlineCitation/PMID"))
    where = f"{name}, PMID {pmid or '(none)'}"
    found = article.find("MedlineCitation/Article")
    if not pmid or found is None:
        return Skipped(where, "has no PMID or no article")
    kinds = {_text(kind) for kind in found.iter("PublicationType")}
    if kinds & _RETRACTED:
        return Skipped(where, f"is a {min(kinds & _RETRACTED).lower()}")
    abstract = _labelled(found)
    if not abstract:
        return Skipped(where, "has no abstract")
    dated = found.find("Journal/JournalIssue/PubDate")
    journal = _text(found.find("Journal/ISOAbbreviation")) or _text(found.find("Journal/Title"))
    return Document(
        _BRACKETED.sub(r"\1.", _text(found.find("ArticleTitle"))) or _text(found.find("VernacularTitle")),
        (Section("", abstract),),
        f"PubMed: {journal}" if journal else "PubMed",
        id=f"pmid:{pmid}",
        year=_year(dated),
    )


def _book(article: Element, name: str) -> Item:
    """A chapter or book of the NCBI Bookshelf (GeneReviews, StatPearls) as PubMed has it: its abstract."""
    found = article.find("BookDocument")
    pmid = "" if found is None else _text(found.find("PMID"))
    where = f"{name}, PMID {pmid or '(none)'}"
    abstract = "" if found is None else _labelled(found)
    if found is None or not pmid or not abstract:
        return Skipped(where, "is a book article without PMID or abstract")
    book = _text(found.find("Book/BookTitle"))
    dates = (found.find(name) for name in ("ContributionDate", "DateRevised", "Book/PubDate"))
    year = next((year for date in dates if (year := _year(date))), None)
    title = _text(found.find("ArticleTitle")) or book
    return Document(title, (Section("", abstract),), f"PubMed: {book or 'Bookshelf'}", id=f"pmid:{pmid}", year=year)


def _labelled(article: Element) -> str:
    """An abstract with the labels of its parts, each in a line."""
    parts = []
    for part in article.findall("Abstract/AbstractText"):
        label, text = part.get("Label") or "", _text(part)
        if text:
            parts.append(f"{label.capitalize()}: {text}" if label and label != "UNLABELLED" else text)
    return "\n".join(parts)


def _jats(article: Element, name: str) -> Item:
    _without_namespaces(article)
    meta = article.find("front/article-meta")
    if meta is None:
        return Skipped(name, "is a JATS article without <article-meta>")
    ids = {node.get("pub-id-type", ""): _text(node) for node in meta.findall("article-id")}
    kinds = (("pmc", "pmc:"), ("pmcid", "pmc:"), ("pmid", "pmid:"), ("doi", "doi:"))
    id_ = next((prefix + ids[kind].removeprefix("PMC") for kind, prefix in kinds if ids.get(kind)), "")
    where = f"{name}, {id_}" if id_ else name
    title = _text(meta.find("title-group/article-title"))
    related = {found.get("related-article-type", "") for found in meta.findall("related-article")}
    if article.get("article-type") == "retraction" or "retracted-article" in related:
        return Skipped(where, "is the notice of a retraction")
    # A notice points back at what it retracts; what was retracted points forward at its notice, or says so in its
    # title.
    if related & {"retraction-forward", "retraction"} or re.match(r"\W*(retracted|withdrawn)\b", title, re.IGNORECASE):
        return Skipped(where, "is a retracted article")
    sections = [
        Section((part.get("abstract-type") or "abstract").replace("-", " ").capitalize(), _running(part))
        for part in meta.findall("abstract")
        if part.get("abstract-type") not in ("graphical", "toc", "teaser")
    ]
    for part in (article.find("body"), article.find("back/app-group")):
        sections += _sections(part, "") if part is not None else []
    sections = [section for section in sections if section.text]
    if not sections:
        return Skipped(where, "has neither abstract nor body")
    journal = _text(article.find("front/journal-meta//journal-title"))
    years = sorted(year for dated in meta.findall("pub-date") if (year := _year(dated)))
    licence = meta.find("permissions/license")
    address = (
        "" if licence is None else next((value for key, value in licence.attrib.items() if key.endswith("href")), "")
    )
    return Document(
        title,
        tuple(sections),
        journal or name,
        id=id_,
        year=years[0] if years else None,
        licence=address or _text(licence)[:200],
    )


def _sections(parent: Element, above: str) -> list[Section]:
    """Sections with their path of headings; text before the first heading belongs to the parent."""
    found: list[Section] = []
    loose: list[str] = []
    for child in parent:
        if child.tag in ("sec", "app"):
            heading = _text(child.find("title"))
            found += _sections(child, " > ".join(part for part in (above, heading) if part))
        elif child.tag != "title" and child.tag not in _SILENT:
            loose.append(_running(child))
    text = "\n".join(part for part in loose if part)
    return [Section(above, text), *found] if text else found


def _running(element: Element) -> str:
    """The text of an element with one line per block, without tables, formulas and reference marks."""
    lines = [""]

    def walk(node: Element) -> None:
        if node.tag not in _SILENT:
            if node.tag in _BLOCKS:
                lines.append("")
            lines[-1] += _raised(node, lines[-1]) + (" " if node.tag in _GAPS else "") + (node.text or "")
            for child in node:
                walk(child)
                lines[-1] += child.tail or ""
            if node.tag in _BLOCKS:
                lines.append("")

    walk(element)
    cleaned = (re.sub(r"\s*\[[\s,–-]*\]|\s*\([\s,;–-]*\)", "", " ".join(line.split())) for line in lines)
    return "\n".join(line for line in cleaned if line)


def _without_namespaces(article: Element) -> None:
    for node in article.iter():
        if isinstance(node.tag, str):
            node.tag = _local(node)


def _local(element: Element | None) -> str:
    return "" if element is None or not isinstance(element.tag, str) else element.tag.rpartition("}")[2]


def _text(element: Element | None) -> str:
    """All text of an element in a line."""
    if element is None:
        return ""
    found = ""
    for node in _with_tails(element):
        found += node if isinstance(node, str) else _raised(node, found) + (" " if _local(node) in _GAPS else "")
    return " ".join(found.split())


def _with_tails(element: Element) -> Iterator[Element | str]:
    """The element and its descendants, each followed by its text, in reading order."""
    yield element
    yield element.text or ""
    for child in element:
        yield from _with_tails(child)
        yield child.tail or ""


def _raised(node: Element, before: str) -> str:
    """A circumflex before an exponent: ten to the sixth must not read as 106."""
    exponent = _local(node) == "sup" and _EXPONENT.match(node.text or "") and before.rstrip()[-1:].isdigit()
    return "^" if exponent else ""


def _year(dated: Element | None) -> int | None:
    """The year of a date: its own element, or the first year in what else stands there."""
    if dated is None:
        return None
    texts = [_text(part) for part in dated if _local(part).lower() in ("year", "medlinedate")]
    match = _YEAR.search(" ".join((*texts, dated.get("iso-8601-date", ""), dated.text or "")))
    return int(match.group()) if match else None
