"""PubMed's exports as text, in the NLM's MEDLINE display format: a tag of four characters, a hyphen, and the value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, Skipped, Withdrawn
from medagent.retrieval.readers.retractions import why_left_out
from medagent.retrieval.years import iso_date, year_in

_TAGGED = re.compile(r"^([A-Z][A-Z0-9]{1,3}) {0,2}- ?(.*)$")
_CONTINUED = re.compile(r"^ {4,}(\S.*)$")
_PMID = re.compile(r"\bPMID:? ?(\d+)")
_RETRACTED = {"retracted publication", "retraction of publication", "retraction notice"}


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
    where = f"{name}, PMID {pmid or '(none)'}"
    kinds = {kind.lower() for kind in fields.get("PT", ())}
    reason = f"{why_left_out(title)}, by its title" if why_left_out(title) else ""
    if kinds & _RETRACTED or "RIN" in fields or "ROF" in fields:
        reason = "is a retracted article, or the notice of a retraction"
    if reason:
        others = [f"pmid:{found[1]}" for field in fields.get("ROF", ()) if (found := _PMID.search(field))]
        names = (*([f"pmid:{pmid}"] if pmid else []), *others)
        return Withdrawn(where, names, "retracted", reason) if names else Skipped(where, reason)
    sections = [Section("", first("AB"))] if first("AB") else []
    languages = [*fields.get("OABL", ()), *[""] * len(fields.get("OAB", ()))]
    for text, language in zip(fields.get("OAB", ()), languages, strict=False):
        sections.append(Section(f"Abstract, {language or 'other'}", text))
    if not sections:
        return Skipped(where, "has no abstract")
    journal = first("TA", "JT")
    return Document(
        title,
        tuple(sections),
        f"PubMed: {journal}" if journal else "PubMed",
        id=f"pmid:{pmid}" if pmid else "",
        year=year_in(first("DP")),
        about=Bibliography(
            doi=next((value.split()[0].lower() for value in fields.get("AID", ()) if value.endswith("[doi]")), ""),
            pmid=pmid,
            authors=tuple(fields.get("AU", ())),
            journal=first("JT", "TA"),
            date=iso_date(first("DP")),
            types=tuple(fields.get("PT", ())),
            keywords=tuple(term.strip("*") for term in fields.get("MH", ())),
            language="; ".join(fields.get("LA", ())),
        ),
        version=f"{first('LR') or '':0>8}.{'':0>3}.{'':0>8}" if first("LR") else "",
    )
