"""MEDLINE XML, JATS, BITS and OAI-PMH, article by article in bounded memory; defusedxml refuses entity tricks."""

from __future__ import annotations

import html.entities
import re
from collections.abc import Callable, Iterator
from typing import IO
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException, EntitiesForbidden
from defusedxml.ElementTree import iterparse

from medagent.retrieval.readers import jats, medline
from medagent.retrieval.readers.base import UNREADABLE, Item, OpenFile, UnusableFileError, Withdrawn
from medagent.retrieval.readers.xml_text import local, text_of

_SETS = {"pmc-articleset", "article-set", "OAI-PMH"}
_BOOKS = {"book-part-wrapper", "book"}
_ROOTS = {"PubmedArticleSet", "PubmedBookArticleSet", "article", *_SETS, *_BOOKS}
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
    """The articles of a MEDLINE, JATS or OAI-PMH file, told apart by their elements."""
    done = 0
    root: Element | None = None
    book = jats.Book()
    try:
        for event, element in iterparse(_KnownEntities(file.stream), events=("start", "end")):
            name = local(element)
            if event == "start":
                if root is None:
                    root = element
                    if name not in _ROOTS:  # not read further: the whole of it would be held in memory
                        raise UnusableFileError(
                            f"holds no article: its root is <{name}>; wanted MEDLINE (PubmedArticleSet), JATS "
                            "(article), BITS (book-part-wrapper, book) or OAI-PMH"
                        )
                continue
            if name == "book-meta":
                book = jats.book_of(element)
                continue
            if name == "DeleteCitation":
                yield from medline.deleted(element, file.name)
            elif name == "book-part" and local(root) in _BOOKS and element.find(".//{*}book-part") is None:
                yield jats.chapter(element, file.name, book, shelf="" if root is None else root.get("id", ""))
            elif (read := _reader_of(name, element, root)) is not None:
                yield read(element, file.name)
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
        raise UnusableFileError(f"holds no article in its <{local(root)}>")


def _reader_of(name: str, element: Element, root: Element | None) -> Callable[[Element, str], Item] | None:
    """The reader of an element; None if it is no article of its own."""
    if name == "PubmedArticle":
        return medline.article
    if name == "PubmedBookArticle":
        return medline.book
    if name == "article" and (element is root or local(root) in _SETS):
        return jats.article
    return jats.dublin_core if name == "dc" and local(root) == "OAI-PMH" else None
