"""What is read as HTML: pages by their main text (trafilatura), EPUB by its chapters, and Markdown (CommonMark)."""

import logging
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote

import trafilatura
import yaml
from lxml import etree, html
from markdown_it import MarkdownIt
from trafilatura.htmlprocessing import convert_to_html
from trafilatura.settings import Document as TrafilaturaDocument
from trafilatura.utils import load_html

from medagent.retrieval.bibliography import Bibliography, iso_date, published
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, encoding_of, open_zip
from medagent.retrieval.readers.html_text import (
    CHARSET,
    PARSER,
    document_of,
    lines_of,
    prepare,
    strikes_as_del,
    without_entities,
)
from medagent.retrieval.readers.marks import expand_ligatures

# It tells in the log of every page that has little text; what has none is reported here.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def read_html(file: OpenFile) -> Iterator[Item]:
    """One document of a page's main text: menus, banners and footers are left out, tables kept."""
    tree = load_html(strikes_as_del(file.text(declared=CHARSET)))
    date = "" if tree is None else published(tree)
    left_out = Counter[str]() if tree is None else prepare(tree)
    made = tree is not None and trafilatura.bare_extraction(
        tree, include_comments=False, include_tables=True, favor_recall=True, with_metadata=True
    )
    if not isinstance(made, TrafilaturaDocument) or made.body is None:
        raise UnusableFileError("has no main text")
    title, source = expand_ligatures(str(made.title or "")).strip(), str(made.sitename or "")
    yield from document_of(file.name, title, [convert_to_html(made.body)], left_out, Bibliography(date=date), source)


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


_FRONT = re.compile(r"---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_NOTE = re.compile(r"^( {0,3})\[\^[^\]\s]+\]:[ \t]*|\[\^[^\]\s]+\]", re.MULTILINE)
_LINK = re.compile(r"^(?= {0,3}\[[^\]^]+\]:\s)", re.MULTILINE)  # the definition of a link; it may follow a note
_RAISED = re.compile(r"(?<=[\w)])\^([^\s^]+)\^")
_COMMONMARK = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_COMMONMARK.validateLink = lambda url: True  # type: ignore[method-assign]  # pictures in the file, of any kind


def read_markdown(file: OpenFile) -> Iterator[Item]:
    """One document, titled by its front matter, which may tell date and author, or by a first top-level heading."""
    text, front = file.text(), {}
    if found := _FRONT.match(text):
        try:
            said = yaml.safe_load(found[1])
        except yaml.YAMLError:
            said = None
        if isinstance(said, dict):
            front, text = {str(key).lower(): value for key, value in said.items()}, text[found.end() :]
    page = _COMMONMARK.render(_RAISED.sub(r"<sup>\1</sup>", _NOTE.sub(r"\1", _LINK.sub("\n", text))))
    tree = html.fragment_fromstring(strikes_as_del(page), create_parent="div", parser=PARSER)
    left_out = prepare(tree)
    tag, line = next(lines_of(tree), ("", ""))
    title = str(front.get("title") or (line if tag == "h1" else ""))
    yield from document_of(
        file.name, title, [tree], left_out, Bibliography.of_row({"date": front.get("year"), **front})
    )
