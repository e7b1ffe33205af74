"""HTML: trees made ready and read as their reader sees them, and fragments in fields to plain text."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from html import escape, unescape
from html.entities import html5

from cssselect import SelectorError
from lxml import etree, html
from lxml.html import HtmlElement, defs

from medagent.retrieval.bibliography import Bibliography, printed_year, year_in
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers.base import Item, has_header, left_out_of, named_lines, spread, table_lines, usable
from medagent.retrieval.readers.marks import expand_ligatures, superscript
from medagent.retrieval.readers.text import title_from_name

CHARSET = re.compile(rb"<meta\b[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_STRUCK = re.compile(r"text-decoration[\w-]*\s*:[^;]*line-through", re.IGNORECASE)
_COMMENT, _PLAIN_MEDIA = re.compile(r"/\*.*?\*/", re.DOTALL), re.compile(r"media\b[^(]*\b(?:screen|all)\b[^(]*", re.I)
_GROUPED = re.compile(r"@(\w[^{};]*)\{((?:[^{}]*\{[^{}]*\})*[^{}]*)\}")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_SHOWN = re.compile("display|visibility|text-decoration", re.IGNORECASE)
_STRIKE = re.compile(r"<(/?)(?:s|strike)(?=[\s>])", re.IGNORECASE)
_WARNING = re.compile(r"warn|caution|alert|danger|important|callout|admonition|note|contraindic", re.IGNORECASE)
_SILENT = {"template", "noscript", "script", "style", "annotation"}
_MENUS = {"nav", "header", "footer", "aside", "form", "button", "select"}
BLOCKS = (defs.block_tags - {"del", "ins"}) | frozenset(
    "article aside body details figcaption figure footer header html main nav section summary".split()
)
_LINKED = re.compile(r"[\W\d]*[a-z]?[\W\d]*")


def strikes_as_del(page: str) -> str:
    """The page with <del> in place of <s> and <strike>, which the parser would close before a block in them."""
    return _STRIKE.sub(r"<\1del", page)


def prepare(tree: HtmlElement, css: str = "") -> Counter[str]:
    """Make a tree ready in place; counts what was left out: "struck-out text", "hidden text". `css` is its style."""
    _apply_style(tree, "".join([css, *(str(node.text) for node in tree.iter("style"))]))
    left_out = _leave_out(tree)
    for node in tree.iter("br", "p", "div", "li"):
        node.tail = f" {node.tail or ''}"
    for aside in tree.iter("aside"):  # in search of the main text these would be taken for menus
        if _WARNING.search(f"{aside.get('class')} {aside.get('role')}"):
            aside.tag = "div"
    for formula in tree.iter("msup", "mfrac"):
        if len(formula) == 2:
            formula[0].tail = "^" if formula.tag == "msup" else "/"
    for mark in list(tree.iter("sup", "sub")):
        _set_in_line(mark)
    for caption in list(tree.iter("figcaption")):
        figure = next(caption.iterancestors("figure"), tree)
        if figure is not tree:  # its caption takes its place, and a table in it stays
            caption.tag = "p"
            etree.strip_elements(figure, "img", with_tail=False)
            figure.drop_tag()
    whole = tree.tag == "html"  # tables around tables lay out pages
    for table in [each for each in tree.iter("table") if not whole or each.find(".//table") is None][::-1]:
        _table_as_lines(table)
    for terms in list(tree.iter("dl")):
        _plain_list(terms)
    return left_out


def _apply_style(tree: HtmlElement, css: str) -> None:
    """Write into elements what a style sheet says of their being shown; rules for print alone do not count."""
    styles: dict[HtmlElement, dict[str, str]] = defaultdict(dict)  # the last rule counts
    css = _COMMENT.sub("", css)
    while _GROUPED.search(css):  # the inner groups first
        css = _GROUPED.sub(_shown_group, css)
    for selectors, said in _RULE.findall(css):
        for selector in selectors.split(",") if _SHOWN.search(said) else ():
            with suppress(SelectorError):  # such as "p::before", which is no element
                for node in tree.cssselect(selector):
                    styles[node] |= _declared(said)
    for node, of_rules in styles.items():
        declared = of_rules | _declared(node.get("style", ""))
        node.set("style", ";".join(map(":".join, declared.items())))


def _shown_group(group: re.Match[str]) -> str:
    """The rules within @media screen, @supports and @layer; others hold on paper or some screens alone."""
    name = group[1].lower()
    return group[2] if name.startswith(("supports", "layer")) or _PLAIN_MEDIA.fullmatch(name.strip()) else ""


def _declared(style: str) -> dict[str, str]:
    """The properties that a style declares."""
    parts = (each.partition(":") for each in style.split(";"))
    return {name.strip().lower(): value for name, _, value in parts if value}


def _leave_out(tree: HtmlElement) -> Counter[str]:
    """Drop what nobody sees, but for what holds most of a page: that is shown once its scripts run."""
    left_out: Counter[str] = Counter()
    most = len(tree.text_content()) / 2 if tree.tag == "html" else math.inf
    for node in [each for each in tree.iter(etree.Element) if each is not tree]:
        style, silent = node.get("style", ""), node.tag in _SILENT
        struck = node.tag in ("del", "s", "strike") or _STRUCK.search(style)
        hidden = node.get("hidden") is not None or _HIDDEN.search(style)
        if (silent or struck or hidden or node.get("aria-hidden") == "true") and tree in node.iterancestors():
            words = node.text_content()
            if len(words) >= most and not (silent or struck):
                continue
            in_menu = node.tag in _MENUS or next(node.iterancestors(*_MENUS), None) is not None
            if (struck or hidden) and not silent and re.search(r"\w", words) and not in_menu:
                left_out["struck-out text" if struck else "hidden text"] += 1
            if struck and node.tag in ("td", "th"):  # the others of its row stay in their columns
                node[:], node.text = [], None
            else:
                node.drop_tree()
    return left_out


def _set_in_line(node: HtmlElement) -> None:
    """Raised and lowered text as PDFs' are read: marks of references go, exponents get a circumflex."""
    text = _text(node)
    if node.getparent() is None:
        return
    if node.tag == "sup":
        linked = node.find(".//a") is not None and _LINKED.fullmatch(text)
        added = "" if linked else superscript(text, _text_before(node), node.tail or "")
        if not added:
            node.drop_tree()
            return
        if added != text:
            node[:], node.text = [], added
    node.drop_tag()


def _text_before(node: HtmlElement) -> str:
    """What stands in the line before an element, if need be before the elements of a line that it begins."""
    above = node.getparent()
    for before in node.itersiblings(preceding=True):
        if text := str(before.tail or (before.text_content() if isinstance(before.tag, str) else "")):
            return text
    if above is None or above.text or above.tag in BLOCKS:
        return str(above.text or "") if above is not None else ""
    return _text_before(above)


def _table_as_lines(table: HtmlElement) -> None:
    """A line per row in place of a table, after its caption; tables that lay out a page stay."""
    if table.get("role") == "presentation" or next(table.iter("h1", "h2", "h3", "h4", "form"), None) is not None:
        return
    rows = sorted(table.iter("tr"), key=lambda row: {"thead": 0, "tfoot": 2}.get(row.getparent().tag, 1))  # as shown
    spans = ([(_text(cell), cell.get("colspan"), cell.get("rowspan")) for cell in cells_of(row)] for row in rows)
    cells = spread([*spans])
    if len(cells) < 2 or len(cells[0]) < 2:
        return
    begun = next((at for at, row in enumerate(rows[:-1]) if not _is_head(row)), len(rows) - 1)
    if not begun and has_header(cells, [_is_bold(row) for row in rows]):
        begun = 1
    lines = [text for caption in table.findall("caption") if (text := _text(caption))] + named_lines(cells, begun)
    tail = table.tail
    table.clear()
    table.tag, table.tail = "div", tail
    for line in lines:
        made = etree.SubElement(table, "p")
        made.text, made.tail = line, " "


def _text(node: HtmlElement) -> str:
    return " ".join(node.text_content().split())


def cells_of(row: HtmlElement) -> list[HtmlElement]:
    """The cells of a table's row."""
    return [cell for cell in row if cell.tag in ("th", "td")]


def _is_head(row: HtmlElement) -> bool:
    filled = [cell.tag for cell in cells_of(row) if _text(cell)]
    return (len(filled) > 1 and {*filled} == {"th"}) or row.getparent().tag == "thead"


def _is_bold(row: HtmlElement) -> bool:
    cells = [cell for cell in cells_of(row) if _text(cell)]
    return bool(cells) and all(next(cell.iter("b", "strong"), None) is not None for cell in cells)


def _plain_list(terms: HtmlElement) -> None:
    """A list of terms as a list of "term: what it means"."""
    items, last = [""], "dd"
    if terms.find(".//table") is not None:
        return
    for node in terms.iter("dt", "dd"):
        # Without the terms in it: one that was not closed holds the next.
        depth = 1 + len([*node.iterancestors("dt", "dd")])
        own = node.xpath("descendant::text()[count(ancestor::dt | ancestor::dd) = $depth]", depth=depth)
        text = " ".join("".join(own).split())
        if node.tag == "dt" and last == "dd":
            items.append(text)
        else:
            items[-1] += (", " if node.tag == "dt" else ": " if last == "dt" else " ") + text
        last = node.tag
    if any(items):
        terms[:], terms.tag, terms.text = [], "ul", None
        for text in filter(None, items):
            etree.SubElement(terms, "li").text = text.strip()


PARSER = html.HTMLParser(huge_tree=True)  # pictures may stand in the text
_TOP = 2_000  # characters at the head of a document that may state its year

_NAMES = "|".join([*(defs.tags | BLOCKS), "template", r"jats:[\w-]+"])
_OPENED = re.compile("<[/A-Za-z!]")  # quick to find
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'<>]+)"""
# Known tags only, with attributes that have values: "p <q and q> 3" and "<5 mg" are text.
_TAG = re.compile(rf"(</?(?:{_NAMES})(?:\s+[\w:.-]+\s*=\s*{_VALUE}|\s+hidden)*\s*/?>|<!--.*?-->)", re.I | re.S)
_BLOCK = re.compile(rf"<(?:{'|'.join(BLOCKS)}|br|jats:[\w-]+)\b", re.I)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z]\w{1,31});", re.I)


def sections_of(tree: etree._Element, title: str = "") -> tuple[Section, ...]:
    """Sections by the headings of a tree, "Medicines > First line"; a heading that repeats the title is none."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    above: list[tuple[str, str]] = []  # tag and words of the headings that a section stands under
    for tag, line in lines_of(tree):
        if not tag:
            sections[-1][1].append(line)
        elif line != title:
            above = [*((each, words) for each, words in above if each < tag), (tag, line)]
            sections.append((" > ".join(words for _, words in above), []))
    return tuple(Section(heading, "\n".join(lines)) for heading, lines in sections if lines)


def document_of(
    name: str, title: str, trees: Iterable[HtmlElement], left_out: Counter[str], about: Bibliography, source: str = ""
) -> Iterator[Item]:
    """The document of a file's trees, with the year that is in `about` or printed, and what was left out."""
    title = title or title_from_name(name)
    sections = tuple(section for tree in trees for section in sections_of(tree, title))
    year = year_in(about.date) or printed_year("\n".join(each.text for each in sections)[:_TOP])
    yield usable(Document(title, sections, source or name, year=year, name=name, about=about), name, "has no text")
    yield from left_out_of(name, left_out)


def plain_text(fragment: str, left_out: Counter[str] | None = None) -> str:
    """The text of a field that may hold HTML: a line per block, struck-out text left out; other text is unchanged.

    >>> plain_text("p &lt; 0.05 at 10<sup>9</sup>/L, <del>9</del> <5 mg")
    'p < 0.05 at 10^9/L, <5 mg'
    """
    for _ in range(2):  # some exports escape what is escaped already
        if _OPENED.search(fragment) and _TAG.search(fragment):
            fragment = _without_tags(fragment, Counter() if left_out is None else left_out)
        elif "&" in fragment:
            fragment = _ENTITY.sub(_character, fragment)
        else:
            break
    return fragment


def _character(entity: re.Match[str]) -> str:
    known = entity[0][1] == "#" or entity[0][1:] in html5
    return unescape(entity[0]) if known else entity[0]


def without_entities(text: str) -> str:
    """Marked-up text with its characters in place of entities, but for those that XML needs."""
    return _ENTITY.sub(lambda found: escape(_character(found), quote=False), text)


def _without_tags(fragment: str, left_out: Counter[str]) -> str:
    pieces = _TAG.split(fragment)
    pieces[::2] = [escape(_ENTITY.sub(_character, text), quote=False) for text in pieces[::2]]
    if not _BLOCK.search(fragment):  # then its line ends are meant
        pieces[::2] = [text.replace("\n", "<br><br>") for text in pieces[::2]]
    whole = re.sub(r"(</?)jats:", r"\1", re.sub(r"(</?)jats:title\b", r"\1h4", "".join(pieces), flags=re.I), flags=re.I)
    tree = html.fragment_fromstring(strikes_as_del(whole), create_parent="div")
    left_out += prepare(tree)
    return "\n".join(line for _, line in lines_of(tree))


def lines_of(node: etree._Element) -> Iterator[tuple[str, str]]:
    """A line for each block and where lines are broken twice, with the tag of a heading; a line per row of a table."""
    parts: list[str] = []

    def flushed(tag: str = "") -> Iterator[tuple[str, str]]:
        text = re.sub(r"\r\s*\r[\s\r]*", "\n", expand_ligatures("".join(parts)))
        parts.clear()
        for each in text.split("\n"):
            if line := " ".join(each.split()):
                yield tag, line

    def walk(part: etree._Element, within: bool) -> Iterator[tuple[str, str]]:
        if not isinstance(part.tag, str):
            return
        if part.tag == "tr":  # of a table that lays out a page
            yield from flushed()
            cells = (" ".join(line for _, line in lines_of(cell)) for cell in cells_of(part))
            yield from (("", line) for line in table_lines([list(cells)], named=False) if line)
            return
        if part.tag in BLOCKS:
            yield from flushed()
        parts.append("\r" if part.tag == "br" else " ".join((part.text or part.get("alt") or "").split("\n")))
        held = within or part.tag in ("p", "li", "dd", "blockquote", "table")
        for child in part:
            yield from walk(child, held)
            parts.append(" ".join((child.tail or "").split("\n")))
        if part.tag in BLOCKS:
            yield from flushed("" if within or not re.fullmatch("h[1-6]", part.tag) else part.tag)

    yield from walk(node, False)
    yield from flushed()
