"""Drug labels in HL7's Structured Product Labeling, as DailyMed publishes them."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement

from medagent.retrieval.bibliography import Bibliography, iso_date
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, Skipped, usable
from medagent.retrieval.readers.jats import WRAPPER, sections_of
from medagent.retrieval.readers.xml_text import text_of

NAMES = {"section": "sec", "paragraph": "p", "item": "list-item", "caption": "label", "table": "table-wrap"}
NAMES |= {"footnote": "fn", "br": "break", "renderMultiMedia": "graphic", "observationMedia": "graphic"}
NAMES |= dict.fromkeys(("component", "structuredBody", "excerpt", "highlight"), WRAPPER)
URL = "https://dailymed.nlm.nih.gov/dailymed/drugInfo.cfm?setid="
_BOXED = "code[@code='34066-1']"  # LOINC's code of a boxed warning


def label(element: Element, name: str) -> Item:
    """The document of a label: boxed warnings first, then its sections and the products' ingredients."""
    set_id = _value(element.find("setId"), "root").lower()
    if not set_id:
        return Skipped(name, "is no drug label: its <document> has no <setId>")
    for section in element.iter("sec"):
        code = _value(section.find("code"), "displayName")
        if not text_of(section.find("title")) and "UNCLASSIFIED" not in code:
            SubElement(section, "title").text = code.capitalize()
    first = Element("body")
    first.extend([each for each in element.iter("sec") if each.find(_BOXED) is not None])
    sections = sections_of(first, "")
    for each in first:
        each.clear()  # else it would stand twice
    for wrapped in element.findall(WRAPPER):
        sections += sections_of(wrapped, "")
    products = list(_products(element))
    sections += [Section("Products", "\n".join(products))] if products else []
    date = iso_date(_value(element.find("effectiveTime"), "value"))
    maker = text_of(element.find("author/assignedEntity/representedOrganization/name"))
    document = Document(
        text_of(element.find("title")) or ": ".join(products[:1]).partition(":")[0],
        tuple(sections),
        "DailyMed",
        id=f"setid:{set_id}",
        year=int(date[:4]) if date else None,
        version=_value(element.find("versionNumber"), "value").zfill(6),
        about=about_label(set_id, date, maker),
    )
    return usable(document, f"{name}, setid:{set_id}", "is a drug label without text")


def about_label(set_id: str, date: str, maker: str) -> Bibliography:
    """The bibliography of a label."""
    authors = (maker,) if maker else ()
    return Bibliography(url=URL + set_id, authors=authors, journal="DailyMed", date=date, types=("Drug Label",))


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
            amounts = (_amount(each.find(f"quantity/{part}")) for part in ("numerator", "denominator"))
            strength = " in ".join(amount for amount in amounts if amount not in ("", "1"))
            said[each.get("classCode", "").startswith("ACT")].append(f"{substance} {strength}".strip())
        line = f"{', '.join(filter(None, (text_of(product.find('name')), form)))}: {', '.join(said[True])}"
        yield line + (f"; inactive: {', '.join(said[False])}" if said[False] else "")


def _amount(found: Element | None) -> str:
    return f"{_value(found, 'value')} {_value(found, 'unit')}".removesuffix(" 1").strip()
