"""Records of sources in JSON: Europe PMC, ClinicalTrials.gov, openFDA's labels, bioRxiv, medRxiv, BioC (in XML too)."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from medagent.lazy import packaged
from medagent.retrieval.bibliography import plain_doi
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.documents import ARTICLE_OF, PREPRINT_OF
from medagent.retrieval.readers.base import Item, Skipped, Withdrawn, left_out_of, table_lines
from medagent.retrieval.readers.fields import at, document_of_fields, fields_at
from medagent.retrieval.readers.html_text import plain_text
from medagent.retrieval.readers.jats import label_fields, rows_of
from medagent.retrieval.readers.medline import RETRACTED
from medagent.retrieval.readers.xml_text import prepare, text_of

_SKIPPED = {"REF", "AUTH_CONT", "ACK_FUND", "COMP_INT", "KEYWORD", "AUTHORS"}  # section types that are no text
_NAMES = {"INTRO": "Introduction", "DISCUSS": "Discussion", "CONCL": "Conclusions", "FIG": "Figures"}
_TITLE = re.compile(r"(?:abstract_)?title(?:_(\d))?|table(?:_title)?_caption")


def of_element(element: Element, name: str) -> Item:
    """The document of a <document>."""
    return _bioc(_as_record(element), name, source=name)


def _as_record(element: Element) -> dict[str, Any]:
    """A document or passage as it is in JSON."""
    text = element.findtext("text") or " ".join(map(text_of, element.iterfind("sentence/text")))
    infons = {each.get("key", ""): (each.text or "").strip() for each in element.findall("infon")}
    passages = [_as_record(each) for each in element.findall("passage")]
    return {"id": text_of(element.find("id")), "text": text, "infons": infons, "passages": passages}


def _bioc(row: Mapping[str, Any], where: str, *, source: str) -> Item:
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
        # "surname:Roe;given-names:Ann"
        "authors": [" ".join(re.findall(r":([^;]+)", infons.get(f"name_{at}", ""))) for at in range(len(infons))],
        "journal": infons.get("journal-title") or row.get("journal"),
        "date": infons.get("year") or row.get("date"),
        "licence": infons.get("license"),
    }
    names = (f"pmc:{pmc.removeprefix('PMC')}", f"pmid:{fields['pmid']}", f"doi:{plain_doi(str(fields['doi']))}")
    texts = (Section(heading, "\n".join(lines)) for heading, lines in sections.items())
    return document_of_fields(fields, names, texts, where, source=source)


def _rows(infons: Mapping[str, Any], text: str) -> list[str]:
    """The rows of a table: PubMed Central gives its XML too, else rows end where a cell begins with a space."""
    try:
        table = fromstring(str(infons.get("xml") or ""))
    except (ParseError, DefusedXmlException):
        return table_lines([[cell.strip() for cell in row.split("\t")] for row in re.split(r"\t \t|\n", text)])
    prepare(table, {})
    return rows_of(table)


Row = Mapping[str, Any]
_PLACES = packaged("medagent.retrieval.readers", "records.yaml")
_ANALYSIS = (
    "groupDescription statisticalMethod pValue paramType paramValue ciPctValue ciLowerLimit ciUpperLimit".split()
)
_ESCAPED = re.compile(r"\\([^\w\s])")  # ClinicalTrials.gov writes Markdown


def reader_of(row: Any) -> Callable[..., Item] | None:
    """The reader of a source's record; None for what is none."""
    if not isinstance(row, Mapping):
        return None
    if isinstance(row.get("passages"), list):
        return _bioc
    if isinstance(row.get("protocolSection"), Mapping):
        return _trial
    if row.get("set_id") and ("openfda" in row or "effective_time" in row):
        return _label
    if at(row, "biorxiv_doi|preprint_doi") or str(row.get("server")).lower() in ("biorxiv", "medrxiv"):
        return _preprint
    return _article if "abstractText" in row or {"source", "authorString", "pubYear"} <= row.keys() else None


def records_in(row: Any) -> list[Any]:
    """The records of a source's answer; none in what is no answer."""
    for found in (at(row, path) for path in _PLACES["answers"]):
        records = found if isinstance(found, list) else [found]
        if any(map(reader_of, records)):
            return records
    return []


def read_record(row: Any, where: str, *, source: str) -> Iterator[Item]:
    """The document of a source's record, and what was left out of it."""
    read, left_out = reader_of(row), Counter[str]()
    try:
        item = read(row if read is _bioc else _plain(row, left_out), where, source=source) if read else None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # one field is of another kind
        item = Skipped(where, f"is no readable record of its source ({type(error).__name__}: {error})")
    if item is not None:
        yield item
        yield from left_out_of(where, left_out) if isinstance(item, Document) else ()


def _plain(value: Any, left_out: Counter[str]) -> Any:
    """The record without HTML in its texts."""
    if isinstance(value, Mapping):
        return {key: _plain(each, left_out) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, left_out) for each in value]
    return plain_text(value, left_out) if isinstance(value, str) else value


def _article(row: Row, where: str, *, source: str) -> Item:
    """The document of a record of Europe PMC."""
    fields, kind, own = fields_at(row, _PLACES["europe_pmc"]), str(row.get("source") or ""), str(row.get("id") or "")
    fields["pmid"] = str(row.get("pmid") or (own if kind in ("MED", "") and own.isdecimal() else ""))
    fields["authors"] = [name.strip() for name in str(row.get("authorString") or "").rstrip(".").split(",")]
    pmc = str(row.get("pmcid") or (own if kind == "PMC" else ""))
    names = [f"pmid:{fields['pmid']}", f"pmc:{pmc.removeprefix('PMC')}", f"doi:{plain_doi(str(row.get('doi') or ''))}"]
    names += [f"{kind.lower()}:{own}"] if kind not in ("MED", "PMC", "") else []
    types = fields.get("types") or []
    fields["types"] = types = [each.strip() for each in (types.split(";") if isinstance(types, str) else types)]
    linked = [
        (str(each.get("type")).lower(), _name(each), at(each, "reference|id"))
        for each in at(row, "commentCorrectionList.commentCorrection") or ()
    ]
    kinds, links = {each.lower() for each in types}, [what for what, _, _ in linked]
    if kinds & RETRACTED or "retraction in" in links or "retraction of" in links:
        known = [*names, *(name for what, name, _ in linked if what == "retraction of")]
        known = [name for name in known if name.partition(":")[2]]
        reason = "is retracted, or the notice of a retraction"
        return Withdrawn(f"{where}, {known[0]}", tuple(known), "retracted", reason)
    if kind == "PPR" and "Preprint" not in types:
        types.append("Preprint")
    noticed = ("erratum in", "expression of concern in")
    fields["notices"] = [f"{what.removesuffix(' in')}: {said}" for what, _, said in linked if what in noticed]
    prefixes = {"preprint of": PREPRINT_OF, "preprint in": ARTICLE_OF}
    aliases = [prefixes[what] + name for what, name, _ in linked if what in prefixes]
    sections = [Section("", str(row.get("abstractText") or ""))]
    return document_of_fields(fields, names, sections, where, source="Europe PMC", links=aliases)


def _name(link: Row) -> str:
    source = {"MED": "pmid", "PMC": "pmc"}.get(str(link.get("source")), str(link.get("source")).lower())
    return f"{source}:{str(link.get('id') or '').removeprefix('PMC')}"


def _preprint(row: Row, where: str, *, source: str) -> Item:
    """The document of a record of bioRxiv or medRxiv; `published` is the DOI of its article."""
    fields = fields_at(row, _PLACES["preprint"]) | {"types": ["Preprint"]}
    fields["version"] = str(fields.get("version") or "").zfill(3)
    article = plain_doi(str(at(row, "published|published_doi") or ""))
    links = [f"{PREPRINT_OF}doi:{article}"] if article else []
    sections = [Section("", str(at(row, "abstract|preprint_abstract") or ""))]
    return document_of_fields(
        fields, [f"doi:{plain_doi(str(fields.get('doi')))}"], sections, where, source=source, links=links
    )


def _label(row: Row, where: str, *, source: str) -> Item:
    """The document of a label of openFDA: each field with texts is a section, boxed warnings first."""
    keys = [key for key, value in row.items() if isinstance(value, list) and all(isinstance(x, str) for x in value)]
    sections = []
    for key in sorted(keys, key=lambda key: not key.startswith("boxed_warning")):
        heading = _words(key.removesuffix("_table")).capitalize()
        sections.append(Section(heading, "\n".join(row[key])))
    title = at(row, "openfda.brand_name|openfda.generic_name|spl_product_data_elements") or [""]
    maker = (at(row, "openfda.manufacturer_name") or [""])[0]
    fields = label_fields(str(row["set_id"]), str(row.get("effective_time")), str(row.get("version") or ""), maker)
    return document_of_fields(fields | {"title": title[0]}, [fields["id"]], sections, where, source=source)


def _trial(row: Row, where: str, *, source: str) -> Item:
    """The document of a study of ClinicalTrials.gov, with its results where it has them."""
    protocol = row["protocolSection"]
    fields = fields_at(protocol, _PLACES["trial"])
    fields |= {"journal": "ClinicalTrials.gov", "types": ["Clinical Trial Registration"]}
    number = str(at(protocol, "identificationModule.nctId") or "")
    fields |= {"url": f"https://clinicaltrials.gov/study/{number}", "version": fields.get("date")}
    sections = []
    for heading, path, *wanted in _PLACES["trial_sections"]:
        found = at(protocol, path)
        if wanted and isinstance(found, Mapping):
            found = {key: found[key] for key in wanted if key in found}
        sections.append(Section(heading, _said(found)))
    results = row.get("resultsSection")
    return document_of_fields(fields, [f"nct:{number}"], [*sections, *_results(results)], where, source=source)


def _said(value: Any) -> str:
    """Plain data as text: a line per object of a list, "field: value" for each of an object's fields."""
    if isinstance(value, Mapping):
        return "; ".join(f"{_words(key)}: {text}" for key, each in value.items() if (text := _said(each)))
    if isinstance(value, list):
        return ("\n" if any(isinstance(each, Mapping) for each in value) else ", ").join(map(_said, value))
    return "" if value in (None, "") else _ESCAPED.sub(r"\1", str(value))


def _words(key: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", key).lower()


def _results(row: Any) -> Iterator[Section]:
    """Outcomes measured, a line per category with the value of each group, and how many had each adverse event."""
    for outcome in at(row, "outcomeMeasuresModule.outcomeMeasures") or ():
        groups = _titles(outcome, "groups")
        lines = [_said({key: outcome.get(key) for key in ("timeFrame", "paramType", "dispersionType")})]
        for part in outcome.get("classes") or ():
            for category in part.get("categories") or ():
                said = [text for each in (part, category) if (text := _said(each.get("title")))]
                for each in category.get("measurements") or ():
                    value = f"{each.get('value')} {outcome.get('unitOfMeasure') or ''}".strip()
                    bounds = " to ".join(
                        str(each[key]) for key in ("spread", "lowerLimit", "upperLimit") if key in each
                    )
                    said.append(f"{groups.get(each.get('groupId'))}: {value}" + (f" ({bounds})" if bounds else ""))
                lines.append("; ".join(said))
        for each in outcome.get("analyses") or ():
            lines.append(_said({key: each.get(key) for key in _ANALYSIS}))
        yield Section(f"Results > {_said(outcome.get('title'))}", "\n".join(filter(None, lines)))
    events = at(row, "adverseEventsModule") or {}
    groups = _titles(events, "eventGroups")
    for kind in ("serious", "other"):
        lines = []
        for event in events.get(f"{kind}Events") or ():
            lines.append(str(event.get("term")))
            for each in event.get("stats") or ():
                counts = f"{each.get('numAffected')} of {each.get('numAtRisk')}"
                lines[-1] += f"; {groups.get(each.get('groupId'))}: {counts}"
        yield Section(f"Results > {kind.capitalize()} adverse events", "\n".join(lines))


def _titles(row: Row, field: str) -> dict[str, str]:
    return {each.get("id"): each.get("title") or each.get("id") for each in row.get(field) or ()}
