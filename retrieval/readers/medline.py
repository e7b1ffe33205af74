"""Articles and book chapters of PubMed's MEDLINE XML (the NLM's PubMed DTD)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from xml.etree.ElementTree import Element

from medagent.retrieval.chunking import Section
from medagent.retrieval.documents import ARTICLE_OF, PREPRINT_OF
from medagent.retrieval.readers.base import Item, Skipped, Withdrawn, retraction_in_title
from medagent.retrieval.readers.fields import document_of_fields
from medagent.retrieval.readers.xml_text import date_of, text_of, year_of

_BRACKETED = re.compile(r"^\[([^\]]*?)\.?\]\.?$")  # how PubMed marks titles that it translated
_FILE = re.compile(r"pubmed(\d\d)n(\d+)")  # "pubmed25n1276.xml.gz": its year, and its place among that year's files
_NOTICES = {
    "ErratumIn": "erratum",
    "ExpressionOfConcernIn": "expression of concern",
    "PartialRetractionIn": "part retracted",
}
# Reviews have updates too: only those of documents with the type of preprints count.
_LINKED = {"UpdateIn": PREPRINT_OF, "UpdateOf": ARTICLE_OF}
RETRACTED = {"retracted publication", "retraction of publication", "retraction notice"}
_NOTHING = "has no abstract"
_TAGGED = re.compile(r"^([A-Z][A-Z0-9]{1,3}) {0,2}- ?(.*)$")
_CONTINUED = re.compile(r"^ {4,}(\S.*)$")
_PMID = re.compile(r"\bPMID:? ?(\d+)")


def article(element: Element, name: str) -> Item:
    """The document of a <PubmedArticle>, or why there is none; type, title or links may say that it was retracted."""
    number = element.find("MedlineCitation/PMID")
    pmid = text_of(number)
    where = f"{name}, pmid:{pmid or '(none)'}"
    found = element.find("MedlineCitation/Article")
    if not pmid or found is None:
        return Skipped(where, "has no PMID or no article")
    revised = element.find("MedlineCitation/DateRevised")
    parts = ("Year", "Month", "Day")
    date = "" if revised is None else "".join(text_of(revised.find(part)).zfill(2) for part in parts)
    version = _version(date, "" if number is None else number.get("Version", ""), name)

    def withdrawn(reason: str, *others: str) -> Withdrawn:
        return Withdrawn(where, (f"pmid:{pmid}", *others), "retracted", reason, version)

    kinds = {text_of(kind).lower() for kind in found.iter("PublicationType")}
    links = [
        (link.get("RefType"), text_of(link.find("PMID")), text_of(link.find("RefSource")))
        for link in element.iter("CommentsCorrections")
    ]
    of = [f"pmid:{other}" for kind, other, _ in links if kind == "RetractionOf" and other]
    if kinds & RETRACTED:
        return withdrawn(f"is a {min(kinds & RETRACTED)}", *of)
    if any(kind == "RetractionOf" for kind, *_ in links):
        return withdrawn("is the notice of a retraction", *of)
    if any(kind == "RetractionIn" for kind, *_ in links):
        return withdrawn("is a retracted article: it names the notice")
    title = _BRACKETED.sub(r"\1.", text_of(found.find("ArticleTitle"))) or text_of(found.find("VernacularTitle"))
    journal = text_of(found.find("Journal/ISOAbbreviation")) or text_of(found.find("Journal/Title"))
    issued = found.find("Journal/JournalIssue/PubDate")
    dated = found.find("ArticleDate")
    ids = [(each.get("IdType"), text_of(each)) for each in element.iterfind("PubmedData/ArticleIdList/ArticleId")]
    dois = [value for kind, value in ids if kind == "doi"]
    dois += [text_of(each) for each in found.iterfind("ELocationID[@EIdType='doi']")]
    fields = {
        "title": title,
        "source": _source(journal),
        "doi": dois[0] if dois else "",
        "pmid": pmid,
        "authors": [_author(each) for each in found.iterfind("AuthorList/Author")],
        "journal": text_of(found.find("Journal/Title")),
        "year": year_of(issued),
        "date": date_of(issued if dated is None else dated),
        "types": [text_of(each) for each in found.iter("PublicationType")],
        "keywords": list(dict.fromkeys(map(text_of, (*element.iter("DescriptorName"), *element.iter("Keyword"))))),
        "language": "; ".join(text_of(each) for each in found.iterfind("Language")),
        "notices": [f"{_NOTICES[kind]}: {source}" for kind, _, source in links if kind in _NOTICES],
        "version": version,
    }
    names = [f"pmid:{pmid}"]
    names += [f"{kind}:{value.lower().removeprefix('pmc')}" for kind, value in ids if value and kind in ("doi", "pmc")]
    linked = [_LINKED[kind] + f"pmid:{other}" for kind, other, _ in links if kind in _LINKED]
    sections = _abstracts(found, element)
    return document_of_fields(fields, names, sections, name, source="PubMed", links=linked, nothing=_NOTHING)


def _source(journal: str) -> str:
    return f"PubMed: {journal}" if journal else "PubMed"


def _author(author: Element) -> str:
    parts = filter(None, (text_of(author.find("LastName")), text_of(author.find("Initials"))))
    return " ".join(parts) or text_of(author.find("CollectiveName"))


def deleted(element: Element, name: str) -> Iterator[Withdrawn]:
    """The documents that a <DeleteCitation> withdraws."""
    for pmid in element.iter("PMID"):
        where = f"{name}, pmid:{text_of(pmid)}"
        yield Withdrawn(where, (f"pmid:{text_of(pmid)}",), "deleted", "was deleted by PubMed", _version("", "", name))


def _version(date: str, number: str, name: str) -> str:
    """The version of a record: the date of its revision, its number, and the place of its file among PubMed's files."""
    place = _FILE.search(PurePath(name).name)
    return f"{date:0>8}.{number:0>3}.{place[1] if place else '':0>2}{place[2] if place else '':0>6}"


def book(element: Element, name: str) -> Item:
    """The abstract of a chapter or book of the NCBI Bookshelf (GeneReviews, StatPearls) as PubMed has it."""
    found = element.find("BookDocument")
    pmid = "" if found is None else text_of(found.find("PMID"))
    where = f"{name}, pmid:{pmid or '(none)'}"
    abstract = "" if found is None else _labelled(found.findall("Abstract/AbstractText"))
    if found is None or not pmid or not abstract:
        return Skipped(where, "is a book article without PMID or abstract")
    title_of_book = text_of(found.find("Book/BookTitle"))
    dates = (found.find(name) for name in ("ContributionDate", "DateRevised", "Book/PubDate"))
    year = next((year for date in dates if (year := year_of(date))), None)
    fields: dict[str, Any] = {"title": text_of(found.find("ArticleTitle")) or title_of_book, "year": year, "pmid": pmid}
    fields |= {"types": ["Book chapter"], "source": _source(title_of_book or "Bookshelf")}
    return document_of_fields(fields, [f"pmid:{pmid}"], [Section("", abstract)], name, source="PubMed")


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


def is_medline(text: str) -> bool:
    """Whether a text is in the MEDLINE display format: its first line with words is that of a PMID."""
    return bool(re.match(r"\s*PMID- ?\d", text))


def medline_records(text: str, name: str) -> Iterator[Item]:
    """The records of a text in the MEDLINE display format; a line "PMID- " begins one."""
    fields: dict[str, list[str]] = {}
    last = ""
    for line in [*text.split("\n"), "PMID- "]:
        tagged = _TAGGED.match(line)
        if tagged and tagged[1] == "PMID":
            if fields:
                yield _medline_document(fields, name)
            fields = {}
        if tagged:
            last = tagged[1]
            fields.setdefault(last, []).append(tagged[2].strip())
        elif (more := _CONTINUED.match(line)) and fields:
            fields[last][-1] += f" {more[1].strip()}"


def _medline_document(fields: Mapping[str, Sequence[str]], name: str) -> Item:
    def first(*tags: str) -> str:
        return next((fields[tag][0] for tag in tags if fields.get(tag)), "")

    pmid, title = first("PMID"), first("TI", "BTI", "TT")
    where = f"{name}, pmid:{pmid or '(none)'}"
    kinds = {kind.lower() for kind in fields.get("PT", ())}
    reason = f"{retraction_in_title(title)}, by its title" if retraction_in_title(title) else ""
    if kinds & RETRACTED or "RIN" in fields or "ROF" in fields:
        reason = "is a retracted article, or the notice of a retraction"
    if reason:
        others = [f"pmid:{found[1]}" for field in fields.get("ROF", ()) if (found := _PMID.search(field))]
        names = (*([f"pmid:{pmid}"] if pmid else []), *others)
        return Withdrawn(where, names, "retracted", reason) if names else Skipped(where, reason)
    sections = [Section("", first("AB"))] if first("AB") else []
    languages = [*fields.get("OABL", ()), *[""] * len(fields.get("OAB", ()))]
    for text, language in zip(fields.get("OAB", ()), languages, strict=False):
        sections.append(Section(f"Abstract, {language or 'other'}", text))
    known = {
        "title": title,
        "source": _source(first("TA", "JT")),
        "doi": next((value.split()[0] for value in fields.get("AID", ()) if value.endswith("[doi]")), ""),
        "pmid": pmid,
        "authors": fields.get("AU"),
        "journal": first("JT", "TA"),
        "date": first("DP"),
        "types": fields.get("PT"),
        "keywords": [term.strip("*") for term in fields.get("MH", ())],
        "language": "; ".join(fields.get("LA", ())),
        "version": f"{first('LR'):0>8}.{'':0>3}.{'':0>8}" if first("LR") else "",
    }
    return document_of_fields(known, [f"pmid:{pmid}"], sections, name, source="PubMed", nothing=_NOTHING)
