"""A tree of HTML made ready: nothing hidden or struck out, raised text in line, plain tables, lists and captions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lxml import html
from lxml.html import HtmlElement

from medagent.retrieval.readers.base import has_header, table_lines
from medagent.retrieval.readers.text import superscript

CHARSET = re.compile(rb"<meta\b[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_STRUCK = re.compile(r"text-decoration[\w-]*\s*:[^;]*line-through", re.IGNORECASE)
_CONDITIONAL = re.compile(r"/\*.*?\*/|@[^{}]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", re.DOTALL)
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_SELECTOR = re.compile(r"([\w-]*)(?:([.#])([\w-]+))?")
_WARNING = re.compile(r"warn|caution|alert|danger|important|callout|admonition|note|contraindic", re.IGNORECASE)
_SILENT = {"template", "noscript", "script", "style", "annotation"}
_MENUS = {"nav", "header", "footer", "aside", "form", "button", "select"}
INLINE = frozenset(
    "a abbr acronym b bdi bdo big br cite code col colgroup del dfn em font i img ins kbd label mark math q s samp "
    "script small span strike strong style sub sup template time tt u var wbr".split()
)
_LINKED = re.compile(r"[\W\d]*[a-z]?[\W\d]*")
_MAX_COLUMNS = 60


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
    for figure in list(tree.iter("figcaption")):
        _as_paragraph(figure)
    for table in list(tree.iter("table")):
        plain_table(table)
    for terms in list(tree.iter("dl")):
        _plain_list(terms)
    return left_out


def _apply_style(tree: HtmlElement, css: str) -> None:
    """Write into elements what a style sheet strikes out or hides, by simple selectors; not what is for print alone."""
    for selectors, said in _RULE.findall(_CONDITIONAL.sub("", css)):
        if _STRUCK.search(said) or _HIDDEN.search(said):
            found = (_SELECTOR.fullmatch(each.strip()) for each in selectors.split(","))
            wanted = {(each[1].lower(), each[2] or "", each[3] or "") for each in found if each and each[0]}
            for node in tree.iter(html.etree.Element):
                names = [("", ""), *((".", each) for each in node.get("class", "").split()), ("#", node.get("id"))]
                if any((tag, *name) in wanted for tag in ("", node.tag) for name in names):
                    node.set("style", f"{node.get('style', '')};{said}")


def _leave_out(tree: HtmlElement) -> Counter[str]:
    """Drop what nobody sees, but for what holds most of the page: that is shown once its scripts run."""
    left_out: Counter[str] = Counter()
    most = len(tree.text_content()) / 2
    for node in list(tree.iter(html.etree.Element)):
        style = node.get("style", "")
        struck = node.tag in ("del", "s", "strike") or _STRUCK.search(style)
        hidden = node.get("hidden") is not None or _HIDDEN.search(style)
        if node.tag in _SILENT or struck or hidden or node.get("aria-hidden") == "true":
            words = node.text_content()
            if tree not in node.iterancestors() or (len(words) >= most and not (struck or node.tag in _SILENT)):
                continue
            if node.tag not in _SILENT and (struck or hidden) and re.search(r"\w", words) and not _in_menu(node):
                left_out["struck-out text" if struck else "hidden text"] += 1
            _drop(node)
    return left_out


def _in_menu(node: HtmlElement) -> bool:
    return any(each.tag in _MENUS for each in (node, *node.iterancestors()))


def _drop(node: HtmlElement) -> None:
    if node.getparent() is not None:
        node.drop_tree()


def _set_in_line(node: HtmlElement) -> None:
    """Raised and lowered text as PDFs' are read: marks of references go, exponents get a circumflex."""
    text = " ".join(node.text_content().split())
    if node.tag == "sup":
        linked = node.find(".//a") is not None and _LINKED.fullmatch(text)
        added = "" if linked else superscript(text, _text_before(node).rstrip())
        if not added:
            _drop(node)
            return
        if added != text:
            node.text = f"^{node.text or ''}"
    if node.getparent() is not None:
        node.drop_tag()


def _text_before(node: HtmlElement) -> str:
    """What stands in the line before an element, if need be before the elements of a line that it begins."""
    above = node.getparent()
    for before in node.itersiblings(preceding=True):
        if text := str(before.tail or (before.text_content() if isinstance(before.tag, str) else "")):
            return text
    if above is None or above.text or above.tag not in INLINE:
        return str(above.text or "") if above is not None else ""
    return _text_before(above)


def _as_paragraph(caption: HtmlElement) -> None:
    """A figure's caption in place of the figure; a table in it stays."""
    figure = next((above for above in caption.iterancestors("figure")), None)
    text = " ".join(caption.text_content().split())
    if figure is None or figure.getparent() is None or not text:
        return
    if figure.find(".//table") is not None:
        caption.tag = "p"
        figure.drop_tag()
        return
    figure.getparent().replace(figure, paragraph(text, figure.tail))


def paragraph(text: str, tail: str | None = None) -> HtmlElement:
    """A paragraph with this text, and this text behind it."""
    made = html.Element("p")
    made.text, made.tail = text, tail
    return made


def plain_table(table: HtmlElement) -> None:
    """Make it a table without spans, one row naming its columns, after its caption; those that lay out a page stay."""
    parent = table.getparent()
    if parent is None or table.get("role") == "presentation" or table.find(".//table") is not None:
        return
    if next(table.iter("h1", "h2", "h3", "h4", "form"), None) is not None:
        return
    for caption in table.findall("caption"):
        text = " ".join(caption.text_content().split())
        _drop(caption)
        if text:
            parent.insert(parent.index(table), paragraph(text))
    parts = ("thead", "tbody", "tfoot")  # in the order in which they are shown
    rows = sorted(
        table.iter("tr"), key=lambda row: parts.index(row.getparent().tag) if row.getparent().tag in parts else 1
    )
    cells, heads = _spread(rows)
    if len(cells) < 2 or max(map(len, cells)) < 2:
        return
    begun = 0
    while begun < len(cells) - 1 and heads[begun]:
        begun += 1
    if not begun and has_header(cells, [_is_bold(row) for row in rows]):
        begun = 1
    names = [" ".join(dict.fromkeys(filter(None, column))) for column in zip(*cells[:begun], strict=True)]
    for child in list(table):
        table.remove(child)
    if next(table.iterancestors("li", "dd"), None) is not None:
        table.tag = "ul"
        for text in table_lines([names, *cells[begun:]] if begun else cells, named=bool(begun)):
            html.etree.SubElement(table, "li").text = text
        return
    for number, row in enumerate([names, *cells[begun:]] if begun else cells):
        line = html.etree.SubElement(table, "tr")
        for text in row:
            html.etree.SubElement(line, "th" if begun and not number else "td").text = text


def _spread(rows: list[HtmlElement]) -> tuple[list[list[str]], list[bool]]:
    """The texts of rows with spans written out (names in each column, else in the first), and which rows are heads."""
    found: list[list[str]] = []
    heads: list[bool] = []
    open_: dict[int, tuple[int, str]] = {}  # by column: rows still to fill, and with what
    for row in rows:
        own = [cell for cell in row if cell.tag in ("th", "td")]
        filled = [cell for cell in own if cell.text_content().strip()]
        in_head = row.getparent() is not None and row.getparent().tag == "thead"
        is_head = in_head or (bool(filled) and all(cell.tag == "th" for cell in filled) and len(filled) > 1)
        texts: list[str] = []

        def fill(texts: list[str] = texts) -> None:
            while len(texts) in open_:
                left, text = open_[len(texts)]
                open_[len(texts)] = (left - 1, text)
                if left <= 1:
                    del open_[len(texts)]
                texts.append(text)

        for cell in own:
            fill()
            text = " ".join(cell.text_content().split())
            for at in range(min(_number(cell.get("colspan")), _MAX_COLUMNS)):
                shown = text if is_head or not at else ""
                if (down := _number(cell.get("rowspan"))) > 1:
                    open_[len(texts)] = (down - 1, shown)
                texts.append(shown)
        fill()
        found.append(texts)
        heads.append(is_head)
    width = max(map(len, found), default=0)
    return [texts + [""] * (width - len(texts)) for texts in found], heads


def _number(value: str | None) -> int:
    return int(value) if value and value.strip().isdecimal() and int(value) > 0 else 1


def _is_bold(row: HtmlElement) -> bool:
    cells = [cell for cell in row if cell.text_content().strip()] if len(row) else []
    return bool(cells) and all(next(cell.iter("b", "strong"), None) is not None for cell in cells)


def _plain_list(terms: HtmlElement) -> None:
    """A list of terms as a list of "term: what it means"."""
    items = list(_definitions(terms))
    if not items or terms.find(".//table") is not None:
        return
    for child in list(terms):
        terms.remove(child)
    terms.tag, terms.text = "ul", None
    for text in items:
        html.etree.SubElement(terms, "li").text = text


def _definitions(terms: HtmlElement) -> Iterator[str]:
    names: list[str] = []
    meanings: list[str] = []
    for node in [*terms.iter("dt", "dd"), None]:
        if (node is None or node.tag == "dt") and meanings:
            yield f"{', '.join(names)}: {' '.join(meanings)}" if names else " ".join(meanings)
            names, meanings = [], []
        if node is not None:
            (names if node.tag == "dt" else meanings).append(" ".join("".join(_own_text(node)).split()))
    if names:
        yield ", ".join(names)


def _own_text(node: HtmlElement) -> Iterator[str]:
    """The text of a term without the terms in it: one that was not closed holds the next."""
    yield str(node.text or "")
    for child in node:
        if child.tag not in ("dt", "dd"):
            yield from _own_text(child) if isinstance(child.tag, str) else ()
        yield str(child.tail or "")
