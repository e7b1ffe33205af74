"""Files of XML, article by article in bounded memory; defusedxml refuses entity tricks."""

import html.entities
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException, EntitiesForbidden
from defusedxml.ElementTree import iterparse

from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import jats, medline, registries
from medagent.retrieval.readers.base import UNREADABLE, Item, OpenFile, UnusableFileError, Withdrawn, left_out_of
from medagent.retrieval.readers.xml_text import local, prepare, text_of

_Reader = Callable[[Element, str], Item]
_JATS = (jats.article, dict[str, str]())
# By root and element: the reader of an article, and its elements' names in JATS, or None where it needs none.
_READERS: dict[tuple[str, str], tuple[_Reader, Mapping[str, str] | None]] = {
    ("PubmedArticleSet", "PubmedArticle"): (medline.article, None),
    ("PubmedArticleSet", "PubmedBookArticle"): (medline.book, None),
    ("PubmedBookArticleSet", "PubmedBookArticle"): (medline.book, None),
    ("article", "article"): _JATS,
    ("pmc-articleset", "article"): _JATS,
    ("article-set", "article"): _JATS,
    ("OAI-PMH", "article"): _JATS,
    ("OAI-PMH", "dc"): (jats.dublin_core, {}),
    ("document", "document"): (jats.label, jats.SPL_NAMES),
    ("TEI", "TEI"): (jats.tei_article, jats.TEI_NAMES),
    ("teiCorpus", "TEI"): (jats.tei_article, jats.TEI_NAMES),
    ("collection", "document"): (registries.of_element, None),
}
_BOOKS = {"book-part-wrapper", "book"}
_ROOTS = {*_BOOKS, *(root for root, _ in _READERS)}
_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]{1,31});")
_OWN = {"amp", "lt", "gt", "quot", "apos"}  # what XML itself has
_LONGEST_ENTITY = 40


class _KnownEntities:
    """A stream in which character entities of the DTDs (&alpha; &nbsp;) are numbers, which need no DTD."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._held = stream, b""

    def read(self, size: int = -1) -> bytes:
        """So many bytes, about."""
        block = self._stream.read(size)
        whole = self._held + block
        cut = whole.rfind(b"&", max(0, len(whole) - _LONGEST_ENTITY)) if block else -1
        if cut >= 0 and b";" not in whole[cut:]:  # an entity may go on in the next block
            whole, self._held = whole[:cut], whole[cut:]
        else:
            self._held = b""
        found = _ENTITY.sub(_numbered, whole)
        return found if found or not block else self.read(size)


def _numbered(found: re.Match[bytes]) -> bytes:
    name = found[1].decode()
    text = "" if name in _OWN else html.entities.html5.get(f"{name};", "")
    return "".join(f"&#{ord(char)};" for char in text).encode() or found[0]


def read_xml(file: OpenFile) -> Iterator[Item]:
    """The articles of a file, told apart by its root and their elements."""
    done = 0
    root: Element | None = None
    outer = ""  # its name
    book = Element("book-meta")
    try:
        for event, element in iterparse(_KnownEntities(file.stream), events=("start", "end")):
            if event == "start":
                if root is None:
                    root, outer = element, local(element)
                    if outer not in _ROOTS:  # not read further: the whole of it would be held in memory
                        raise UnusableFileError(
                            f"holds no article: its root is <{outer}>; wanted MEDLINE (PubmedArticleSet), JATS "
                            "(article), BITS (book-part-wrapper, book), OAI-PMH, DailyMed's labels (document), TEI or "
                            "BioC (collection)"
                        )
                continue
            name = local(element)
            if name == "book-meta":
                prepare(element, {})
                book = element
                continue
            if name == "DeleteCitation":
                yield from medline.deleted(element, file.name)
            elif name == "book-part" and outer in _BOOKS and element.find(".//{*}book-part") is None:
                shelf = "" if root is None else root.get("id", "")
                yield from _read(element, file.name, partial(jats.chapter, book=book, shelf=shelf), {})
            elif (outer, name) in _READERS and (element is root or name != outer):
                yield from _read(element, file.name, *_READERS[outer, name])
            elif name == "record" and element.find("{*}header[@status='deleted']") is not None:
                where = text_of(element.find("{*}header/{*}identifier"))
                yield Withdrawn(f"{file.name}, {where}", (where,), "deleted", "was deleted by its repository")
            else:
                continue
            done += 1
            element.clear()
            if root is not None and root is not element and name != "record":
                root.clear()  # else the emptied articles pile up under the root
    except EntitiesForbidden as error:
        raise UnusableFileError(
            f"defines an entity of its own (<!ENTITY {error.name} ...>), which is refused; save it with its entities "
            f"written out; {done:,} articles before that place are used"
        ) from error
    except (ParseError, DefusedXmlException, *UNREADABLE) as error:
        what = "cannot be read to its end" if isinstance(error, UNREADABLE) else "is no well-formed XML"
        raise UnusableFileError(f"{what} ({error}); {done:,} articles before that place are used") from error
    if not done:
        raise UnusableFileError(f"holds no article in its <{outer}>")


def _read(element: Element, name: str, read: _Reader, names: Mapping[str, str] | None) -> Iterator[Item]:
    """The document of an article, and what was left out of it."""
    left_out = Counter[str]() if names is None else prepare(element, names)
    item = read(element, name)
    yield item
    if isinstance(item, Document):
        yield from left_out_of(f"{name}, {item.id}" if item.id else name, left_out)
