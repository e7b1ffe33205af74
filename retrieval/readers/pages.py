"""HTML pages, by their main text (trafilatura)."""

import logging
from collections import Counter
from collections.abc import Iterator

import trafilatura
from trafilatura.htmlprocessing import convert_to_html
from trafilatura.settings import Document as TrafilaturaDocument
from trafilatura.utils import load_html

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError
from medagent.retrieval.readers.html_text import document_of
from medagent.retrieval.readers.html_tree import CHARSET, prepare, strikes_as_del
from medagent.retrieval.readers.marks import expand_ligatures
from medagent.retrieval.readers.years import published

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
