"""Reads terms of one meaning from files: MeSH, HPO (hp.obo), ICD-10-CM, and lists of a user's own."""

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from defusedxml.ElementTree import iterparse

_NARROWER = {"NRW", "BRD", "REL"}  # entry terms of MeSH that are not of the same meaning
_EXACT = re.compile(r'"((?:[^"\\]|\\.)+)" EXACT(?! obsolete_synonym)')
_PHENOTYPES = "HP:0000118"  # the other branches of HPO are of general words, such as "severe" and "left"
# A class of ICD-10-CM for what remains, or for several things, has narrower terms and no synonyms.
_MANY = re.compile(r"\b(other|unspecified|multiple|and|or|NOS|NEC|elsewhere|classified)\b", re.IGNORECASE)
_ORDER_LINE = re.compile(r"\d{5} [A-Z]\w{2,6} +[01] (.{60}) (.+)")


def groups_of(file: Path) -> Iterator[list[str]]:
    """The terms of one meaning in a file, which may be compressed as .gz."""
    name = file.name.removesuffix(".gz")
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        if name.endswith(".xml"):
            yield from _of_xml(opened)
            return
        with TextIOWrapper(opened, encoding="utf-8-sig") as lines:
            yield from _of_obo(lines.read()) if name.endswith(".obo") else _of_lines(map(str.rstrip, lines))


def _of_xml(opened: gzip.GzipFile | BufferedReader) -> Iterator[list[str]]:
    """MeSH's descriptors, or the tabular list of ICD-10-CM: the name of each class, and its inclusion terms."""
    classes = []
    for _, element in iterparse(opened):
        if element.tag == "DescriptorRecord":
            # Not the strings of qualifiers and of pharmacological actions, and of its concepts the preferred.
            concepts = element.findall("ConceptList/Concept")
            preferred = [each for each in concepts if each.get("PreferredConceptYN", "Y") == "Y"]
            terms = [term.text for each in preferred for term in each.iterfind("TermList/Term/String")]
            yield [term for term in (element.findtext("DescriptorName/String"), *terms) if term]
            element.clear()
        elif element.tag == "diag":
            classes.append(
                [element.findtext("desc") or "", *(n.text or "" for n in element.iterfind("inclusionTerm/*"))]
            )
            element.clear()
    yield from _apart(_of_class(terms) for terms in classes)


def _of_class(terms: list[str]) -> list[str]:
    """The names of a class of ICD-10-CM, without the modifiers in parentheses; "[common cold]" is another name."""
    if _MANY.search(terms[0]):
        return []
    plain = [re.sub(r"\s*(\([^)]*\)|\[[^]]*\])", "", term) for term in terms if not _MANY.search(term)]
    return [*plain, *re.findall(r"\[([^]]+)\]", terms[0])]


def _of_obo(text: str) -> Iterator[list[str]]:
    """Names and exact synonyms of an ontology's terms; not of obsolete ones, and of HPO the phenotypes alone."""
    names, parents = dict[str, list[str]](), dict[str, list[str]]()
    for stanza in re.split(r"^\[", text, flags=re.MULTILINE):
        fields = re.findall(r"^([\w-]+): *(.*?)\s*$", stanza, re.MULTILINE)
        told = dict(reversed(fields))
        if stanza.startswith("Term]") and told.get("is_obsolete") != "true" and "name" in told:
            exact = [found[1] for key, value in fields if key == "synonym" and (found := _EXACT.match(value))]
            names[told["id"]] = [told["name"], *(re.sub(r"\\(.)", r"\1", each) for each in exact)]
            parents[told["id"]] = [value.split()[0] for key, value in fields if key == "is_a"]

    @cache
    def wanted(id: str) -> bool:
        return _PHENOTYPES not in parents or id == _PHENOTYPES or any(map(wanted, parents.get(id, ())))

    yield from _apart(terms for id, terms in names.items() if wanted(id))


def _apart(groups: Iterable[list[str]]) -> Iterator[list[str]]:
    """The groups without synonyms that another has as well: they would join what differs."""
    groups = [list({term.casefold(): term for term in reversed(group)}.values())[::-1] for group in groups if group]
    uses = Counter(term.casefold() for group in groups for term in group)
    yield from ([group[0], *(term for term in group[1:] if uses[term.casefold()] == 1)] for group in groups)


def _of_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """MeSH's ASCII records ("MH = ", "ENTRY = " with fields after the term), or a group in each line.

    Lines of ICD-10-CM's order file give the short and the long name of a code.
    """
    record: list[str] | None = None
    for line in lines:
        if line.strip() == "*NEWRECORD":
            if record:
                yield record
            record = []
        elif record is not None:
            name, _, value = line.partition(" = ")
            term, *about = value.split("|")
            if name in ("MH", "ENTRY", "PRINT ENTRY") and not _NARROWER & set(about):
                record.append(term.strip())
        elif code := _ORDER_LINE.fullmatch(line):
            yield _of_class([code[2].strip(), code[1].strip()])
        elif line.strip() and not line.startswith("#"):
            yield [term.strip() for term in line.replace("\t", "|").split("|") if term.strip()]
    if record:
        yield record
