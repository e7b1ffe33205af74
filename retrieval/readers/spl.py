"""Drug labels in HL7's Structured Product Labeling, as DailyMed publishes them."""

from collections.abc import Iterator
from dataclasses import replace
from xml.etree.ElementTree import Element, SubElement

from medagent.retrieval.chunking import Section
from medagent.retrieval.readers.base import Item, Skipped
from medagent.retrieval.readers.fields import document_of_fields
from medagent.retrieval.readers.jats import WRAPPER, sections_of
from medagent.retrieval.readers.xml_text import text_of

NAMES = {"section": "sec", "paragraph": "p", "item": "list-item", "caption": "label", "table": "table-wrap"}
NAMES |= {"footnote": "fn", "br": "break", "renderMultiMedia": "graphic", "observationMedia": "graphic"}
NAMES |= dict.fromkeys(("component", "structuredBody", "excerpt", "highlight"), WRAPPER)
URL = "https://dailymed.nlm.nih.gov/dailymed/drugInfo.cfm?setid="
_BOXED = "code[@code='34066-1']"  # LOINC's code of a boxed warning


def label(element: Element, name: str) -> Item:
    """The document of a label: boxed warnings first, then its sections and the products' ingredients."""
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
    fields = {"id": f"setid:{set_id.lower()}", "url": URL + set_id.lower(), "authors": maker, "date": dated}
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
