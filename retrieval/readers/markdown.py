"""Markdown: CommonMark with tables, struck-out text and HTML, footnotes, and carets around superscripts."""

import re
from collections.abc import Iterator

import yaml
from lxml import html
from markdown_it import MarkdownIt

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.readers.base import Item, OpenFile
from medagent.retrieval.readers.html_text import PARSER, document_of, lines_of
from medagent.retrieval.readers.html_tree import prepare, strikes_as_del

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
