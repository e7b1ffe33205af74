"""EPUB: the chapters in their reading order, by their headings."""

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
    raw, left_out = file.whole(), Counter[str]()
    try:
        with open_zip(raw) as book:
            path = _read(book, "META-INF/container.xml").xpath("string(//*[local-name()='rootfile']/@full-path)")
            package, files = _read(book, path), book.namelist()
            chapters = _chapters(package, posixpath.dirname(path))
            if "META-INF/encryption.xml" in files:
                locked = _read(book, "META-INF/encryption.xml").xpath("//*[local-name()='CipherReference']/@URI")
                if {unquote(each) for each in locked} & set(chapters):
                    raise UnusableFileError("is encrypted (DRM); export it without protection")
            left_out["missing chapter"] += len(set(chapters) - set(files))
            css = "".join(book.read(name).decode("utf-8", "replace") for name in files if name.endswith(".css"))
            pages = [_page(book.read(name)) for name in chapters if name in files]
    except (KeyError, RuntimeError, zipfile.BadZipFile, etree.XMLSyntaxError) as error:
        raise UnusableFileError(f"is no readable EPUB ({type(error).__name__}: {error})") from error
    for page in pages:
        left_out += prepare(page, css)
    dated = "local-name()='date' and not(@*[local-name()='event'] != 'publication')"
    parts = ("local-name()='title'", "local-name()='language'", dated)
    title, language, date = (package.xpath(f"normalize-space(//*[{each}])") for each in parts)
    authors = tuple(" ".join(each.split()) for each in package.xpath("//*[local-name()='creator']/text()"))
    about = Bibliography(authors=authors, language=language, date=iso_date(date))
    yield from document_of(file.name, title, pages, left_out, about)


def _read(book: zipfile.ZipFile, name: str) -> etree._Element:
    return etree.fromstring(book.read(name), _XML)


def _chapters(package: etree._Element, folder: str) -> list[str]:
    """The names of the pages in reading order; those that list the contents are left out."""
    items = {item.get("id"): item.get("href", "") for item in package.iter("{*}item")}
    lists = package.xpath(
        "//*[local-name()='reference'][@type='toc']/@href"
        " | //*[local-name()='item'][contains(concat(' ', @properties, ' '), ' nav ')]/@href"
    )
    found = (items.get(each.get("idref"), "") for each in package.iter("{*}itemref"))
    return [posixpath.normpath(posixpath.join(folder, unquote(href))) for href in found if href and href not in lists]


def _page(raw: bytes) -> html.HtmlElement:
    text = re.sub(r"^\s*<\?xml.*?\?>", "", raw.decode(encoding_of(raw), "replace"), flags=re.DOTALL)
    page = html.fromstring(without_entities(text), parser=_XHTML)
    html.xhtml_to_html(page)
    page.tag = "div"  # a page of a book needs no script to be shown
    for title in page.findall("head/title"):
        title.drop_tree()
    return page
