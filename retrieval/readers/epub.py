"""EPUB: the chapters in their reading order, by their headings."""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote

from lxml import etree, html

from medagent.retrieval.bibliography import Bibliography, iso_date
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, encoding_of, open_zip
from medagent.retrieval.readers.html_text import document_of, without_entities
from medagent.retrieval.readers.html_tree import prepare

_XML = etree.XMLParser(resolve_entities=False, recover=True)
_XHTML = html.XHTMLParser(resolve_entities=False, recover=True, huge_tree=True)


def read_epub(file: OpenFile) -> Iterator[Item]:
    """One document of a book; an `UnusableFileError` where its chapters are encrypted."""
    try:
        with open_zip(file.whole()) as book:
            container = etree.fromstring(book.read("META-INF/container.xml"), _XML)
            path = next(container.iter("{*}rootfile")).get("full-path", "")
            package = etree.fromstring(book.read(path), _XML)
            chapters = list(_chapters(package, posixpath.dirname(path)))
            if "META-INF/encryption.xml" in book.namelist():
                locked = etree.fromstring(book.read("META-INF/encryption.xml"), _XML)
                if {unquote(each.get("URI", "")) for each in locked.iter("{*}CipherReference")} & set(chapters):
                    raise UnusableFileError("is encrypted (DRM); export it without protection")
            css = "".join(
                book.read(name).decode("utf-8", "replace") for name in book.namelist() if name.endswith(".css")
            )
            pages = [_page(book.read(name)) for name in chapters if name in book.namelist()]
    except (KeyError, StopIteration, RuntimeError, zipfile.BadZipFile, etree.XMLSyntaxError) as error:
        raise UnusableFileError(f"is no readable EPUB ({type(error).__name__}: {error})") from error
    left_out = sum((prepare(page, css) for page in pages), Counter[str]())
    said = {
        name: [each for each in package.iter(f"{{*}}{name}") if each.text] for name in ("creator", "date", "language")
    }
    dates = [
        each.text
        for each in said["date"]
        if each.get("{http://www.idpf.org/2007/opf}event", "publication") == "publication"
    ]
    about = Bibliography(
        authors=tuple(each.text.strip() for each in said["creator"]),
        date=iso_date(dates[0]) if dates else "",
        language=said["language"][0].text.strip() if said["language"] else "",
    )
    title = " ".join(package.findtext(".//{http://purl.org/dc/elements/1.1/}title", "").split())
    yield from document_of(file.name, title, pages, left_out, about)


def _chapters(package: etree._Element, folder: str) -> Iterator[str]:
    """The names of the pages in reading order; those that list the contents are left out."""
    items = {item.get("id"): item for item in package.iter("{*}item")}
    lists = {
        unquote(each.get("href", "").partition("#")[0])
        for each in package.iter("{*}reference")
        if each.get("type") == "toc"
    }
    for reference in package.iter("{*}itemref"):
        item = items.get(reference.get("idref"))
        if (
            item is not None
            and "nav" not in item.get("properties", "").split()
            and unquote(item.get("href", "")) not in lists
        ):
            yield posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))


def _page(raw: bytes) -> html.HtmlElement:
    text = re.sub(r"^\s*<\?xml.*?\?>", "", raw.decode(encoding_of(raw), "replace"), flags=re.DOTALL)
    page = html.fromstring(without_entities(text), parser=_XHTML)
    html.xhtml_to_html(page)
    return page.find("body") if page.find("body") is not None else page
