"""Documents of a source's fields: by paths into its JSON, or found in its XML."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medagent.retrieval.bibliography import Bibliography, says, year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, usable


def at(row: Any, paths: str) -> Any:
    """What stands at the first of the paths ("a.b|c") that says something, else None."""
    for path in paths.split("|"):
        found = row
        for key in path.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        if says(found):
            return found
    return None


def fields_at(row: Any, by_field: Mapping[str, str]) -> dict[str, Any]:
    """What stands at the path of each field, where something does."""
    return {name: found for name, path in by_field.items() if (found := at(row, path)) is not None}


def document_of_fields(
    fields: Mapping[str, Any],
    names: Sequence[str],
    sections: Iterable[Section],
    where: str,
    *,
    source: str,
    links: Iterable[str] = (),
    nothing: str = "has no text",
) -> Item:
    """The document of fields that are named as in users' rows, and a version; its names, as far as they are known.

    Sections without text are left out. `links` are further aliases. `source` stands in for a journal that is unknown.
    """
    about = Bibliography.of_row(fields)
    known = list(dict.fromkeys(name for name in names if name and name[-1] != ":"))
    document = Document(
        " ".join(str(fields.get("title") or "").split()),
        tuple(each for each in sections if each.text.strip()),
        str(fields.get("source") or about.journal or source),
        id=known[0] if known else "",
        year=year_in(fields.get("year") or about.date),
        licence=str(fields.get("licence") or "")[:200],
        name=str(fields.get("name") or ""),
        aliases=(*known[1:], *links),
        version=str(fields.get("version") or ""),
        about=about,
    )
    return usable(document, f"{where}, {document.id}" if known else where, nothing)
