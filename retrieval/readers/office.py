"""Excel workbooks (openpyxl) and slides (python-pptx) as they are shown: what is hidden or struck out is counted."""

import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from html import escape
from itertools import groupby
from typing import Any

import openpyxl
import pptx
from lxml import etree, html
from openpyxl.cell.rich_text import CellRichText, TextBlock
from pptx.oxml.ns import qn

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers import base
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, left_out_of
from medagent.retrieval.readers.html_text import PARSER, document_of, plain_text, prepare
from medagent.retrieval.readers.tables import documents_of_cells, known_name
from medagent.retrieval.readers.text import NO_TITLE, title_from_name

_CHOICES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_FOOTERS = "./*/*/p:ph[@type='dt' or @type='ftr' or @type='hdr' or @type='sldNum']"
_SAME_LINE = 228_600  # EMU, a quarter of an inch: shapes whose tops are as near stand side by side
# What openpyxl does not read, and formulas without a stored value; that of type "str" is an empty text.
_UNREAD = {
    "drawing": rb"<(?:sp|pic|chart)[ >]",
    "formula": rb'<c (?![^>]*t="str")[^>]*>\s*<f(?:\s[^>]*)?(?:/>|>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>',
}
# Parts of a number format: digits, text, a currency, a colour or filling, other signs.
_FORMAT = re.compile(
    r"(?P<digits>General|@|[0#?][0#?.,]*)|\"(?P<text>[^\"]*)\"|\\(?P<sign>.)"
    r"|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].|(?P<other>.)"
)
_FORMATS = re.compile(r';(?=(?:[^"]*"[^"]*")*[^"]*$)')  # for positive numbers, negative ones and zero


def read_xlsx(file: OpenFile) -> Iterator[Item]:
    """One document of a workbook, a section per sheet; a row of a sheet with a column of texts is a document."""
    yield from _items(file, "workbook", _workbook)


def read_pptx(file: OpenFile) -> Iterator[Item]:
    """One document of a presentation, a section per slide and per page of notes."""
    yield from _items(file, "presentation", _presentation)


def _items(file: OpenFile, kind: str, read: Callable[[bytes, str], Iterator[Item]]) -> list[Item]:
    raw = file.whole()
    try:
        base.open_zip(raw).close()
        with warnings.catch_warnings(action="ignore"):  # they tell what could not be written again
            return [*read(raw, file.name)]
    except UnusableFileError:
        raise
    except Exception as error:  # a damaged part may end in any
        asked = "is it encrypted, or in the format of before 2007?"
        raise UnusableFileError(f"is no readable {kind} ({type(error).__name__}: {error}); {asked}") from error


def _title(name: str, *titles: str | None) -> str:
    """The first of the titles that is one, else the file's name."""
    return next((each for each in titles if each and not NO_TITLE.search(each)), title_from_name(name))


def _run(text: str, *, struck: bool | None, raised: bool) -> str:
    """A run of text in HTML."""
    tag = "del" if struck else "sup" if raised else "span"
    return f"<{tag}>{escape(text)}</{tag}>"


def _workbook(raw: bytes, name: str) -> Iterator[Item]:
    # Not openpyxl's read-only mode: it knows no hidden rows and columns, no merged cells and no notes.
    book = openpyxl.load_workbook(io.BytesIO(raw), data_only=True, rich_text=True)
    sections, rows_read, counts = list[Section](), False, Counter[str]()
    for sheet in book.worksheets:
        if sheet.sheet_state != "visible":
            counts["hidden sheet"] += 1
            continue
        rows = list(_rows(sheet, counts))
        first = next((at for at, row in enumerate(rows) if sum(map(bool, row.cells)) > 1), len(rows))
        fields = [known_name(cell) for row in rows[first : first + 1] for cell in row.cells]
        if "text" in fields and len({*fields, ""}) > 2:
            rows_read = True
            for row in rows[first + 1 :]:
                yield from documents_of_cells(fields, row.cells, f"{name}, {sheet.title}, row {row.number}", name)
        elif rows:
            sections.append(Section(sheet.title, "\n".join(_sheet_lines(rows)), kind="table"))
    with base.open_zip(raw) as archive:
        for part in filter(re.compile(r"xl/(drawings|worksheets)/\w+\.xml$").match, archive.namelist()):
            content = re.sub(rb"(</?)\w+:", rb"\1", archive.read(part))
            counts.update({what: len(re.findall(mark, content)) for what, mark in _UNREAD.items()})
    if sections or not rows_read:
        title = _title(name, book.properties.title)
        yield base.usable(Document(title, tuple(sections), name, name=name), name, "has no text")
    yield from left_out_of(name, counts)


@dataclass(frozen=True)
class _Row:
    number: int
    block: int  # grows after an empty row
    cells: list[str]  # one for each column of the sheet
    head: bool  # all of it is bold, or it is the first of what Excel calls a table
    grouped: bool  # a cell stands over several columns, and another beside it


def _rows(sheet: Any, counts: Counter[str]) -> Iterator[_Row]:
    """The rows that are shown and not empty, merged cells filled; a cell over the whole row stands once."""
    block = last = 0
    width = max((place[1] for place, cell in sheet._cells.items() if cell.value is not None), default=0)
    for area in sheet.merged_cells.ranges:  # openpyxl keeps empty cells in place of the others
        first = sheet._cells[area.min_row, area.min_col]
        sheet._cells.update({place: first for place in area.cells if place in sheet._cells and place[1] <= width})
    columns = [each for each in sheet.column_dimensions.values() if each.hidden or each.width == 0]
    hidden = {column for each in columns for column in range(each.min, min(each.max, width) + 1)}
    unseen = {number for number, each in sheet.row_dimensions.items() if each.hidden or each.height == 0}
    heads = {int(re.sub(r"^\D+|:.*", "", table.ref)) for table in sheet.tables.values()}
    missed = set[tuple[str, int]]()
    # Only cells that exist: a stray one in the last row makes no million of rows.
    for number, places in groupby(sorted(sheet._cells), key=lambda place: place[0]):
        texts, shown = [""] * width, Counter[Any]()
        for place in places:
            cell, gone = sheet._cells[place], number in unseen or place[1] in hidden
            again = gone or place != (cell.row, cell.column)
            text = _cell_text(cell, Counter() if again else counts)
            if text and gone:
                missed.add(("hidden row", number) if number in unseen else ("hidden column", place[1]))
            elif text:
                texts[place[1] - 1] = text
                shown[cell] += 1
        if shown:
            block += number > last + 1
            if len(shown) == 1:
                texts = [text if text not in texts[:at] else "" for at, text in enumerate(texts)]
            bold = number in heads or all(cell.font.b for cell in shown)
            yield _Row(number, block, texts, bold, len(shown) > 1 and max(shown.values()) > 1)
        last = number if shown or number in unseen else last
    counts.update(what for what, _ in missed)


def _cell_text(cell: Any, counts: Counter[str]) -> str:
    counts["comment"] += cell.comment is not None
    if cell.value is None:
        return ""
    if cell.font.strike:
        counts["struck-out cell"] += 1
        return ""
    if not isinstance(cell.value, CellRichText):
        shown = _shown(cell.value, cell.number_format)
        counts["hidden value"] += not shown and not isinstance(cell.value, str)
        return shown
    runs = [(str(run), run.font if isinstance(run, TextBlock) else cell.font) for run in cell.value]
    marked = (_run(text, struck=font.strike, raised=font.vertAlign == "superscript") for text, font in runs)
    return " ".join(plain_text("".join(marked), counts).split())


def _shown(value: Any, code: str) -> str:
    """A value by Excel's number format, with the units around it; dates in ISO 8601."""
    if type(value) not in (int, float):
        return " ".join(str(value).removesuffix(" 00:00:00").split())
    formats = _FORMATS.split(code)
    own = formats[1 if value < 0 and len(formats) > 1 else 2 if value == 0 and len(formats) > 2 else 0]
    parts = [*_FORMAT.finditer(own)]
    shapes = [part["digits"] for part in parts if part["digits"]]
    # Fractions, telephones, exponents, numbers in thousands, and choices.
    if len(shapes) > 1 or any(each.endswith(",") for each in shapes) or re.search(r"\[[<>=]", code):
        return _digits(Decimal(repr(value)), "General")
    size = Decimal(repr(value if len(formats) == 1 else abs(value))) * 100 ** sum(part[0] == "%" for part in parts)
    shown = [_digits(size, part[0]) if part["digits"] else "".join(filter(None, part.groups())) for part in parts]
    return " ".join("".join(shown).split())


def _digits(size: Decimal, shape: str) -> str:
    """A number with the digits of a format such as "#,##0.0#"."""
    if shape in ("General", "@"):
        return str(int(size)) if size == int(size) else f"{Decimal(f'{float(size):.10g}'):f}"
    whole, _, decimals = shape.partition(".")
    with localcontext(rounding=ROUND_HALF_UP):
        text = f"{size:{',' * (',' in whole)}.{len(decimals)}f}"
    end = len(text) - len(decimals) + len(decimals.rstrip("#?"))  # what is behind it is shown if it is not zero
    return (text[:end] + text[end:].rstrip("0")).rstrip(".")


def _sheet_lines(rows: Sequence[_Row]) -> Iterator[str]:
    """Lines of a sheet: titles, and tables row by row. A table after an empty row may have no names, but no others'."""
    heads: list[list[str]] | None = None
    for _, group in groupby(rows, key=lambda row: row.block):
        block = list(group)
        while block and sum(map(bool, block[0].cells)) == 1:
            yield from filter(None, block.pop(0).cells)
        if block:
            cells = [row.cells for row in block]
            number = _num_heads(block, sure=heads is not None)
            if heads is None or number or not any(map(base.is_number, cells[0][1:])):
                heads, cells = cells[:number], cells[number:]
            yield from base.named_lines([*heads, *cells], len(heads))


def _num_heads(rows: Sequence[_Row], *, sure: bool) -> int:
    """How many rows name the columns; with `sure` only where their letters or the numbers below tell."""
    used = [at for at in range(len(rows[0].cells)) if any(row.cells[at] for row in rows)]
    top, *others = grid = [[row.cells[at] for at in used] for row in rows]
    named = base.has_header(grid, [row.head for row in rows])
    if not sure and others and top.count("") < 2 and not any(map(base.is_number, top)):
        named |= len(used) > 2 or all(base.is_number(cells[-1]) for cells in others if cells[-1])
    number = int(named)
    while 0 < number < len(rows) - 1 and rows[number - 1].grouped and not any(map(base.is_number, grid[number])):
        number += 1
    return number


def _presentation(raw: bytes, name: str) -> Iterator[Item]:
    deck, counts = pptx.Presentation(io.BytesIO(raw)), Counter[str]()
    page, titles = "", list[str]()
    for number, slide in enumerate(deck.slides, start=1):
        if slide._element.get("show") in ("0", "false"):
            counts["hidden slide"] += 1
            continue
        etree.strip_elements(slide._element, f"{_CHOICES}Fallback")  # an older form of what a newer one says
        etree.strip_tags(slide._element, f"{_CHOICES}*")
        first = slide.shapes.title
        title = re.sub("</?p>", " ", _paragraphs(first._element)) if first is not None else ""
        titles.append(plain_text(title))
        others = [shape for shape in slide.shapes if first is None or shape.shape_id != first.shape_id]
        text = "".join(_shape(shape, counts) for shape in _in_order(others))
        shown = bool(titles[-1] and plain_text(text))  # else the title is all of the slide
        page += f"<h1>slide {number}{shown * f': {title}'}</h1>{text if shown else f'<p>{title}</p>{text}'}"
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            page += f"<h2>Notes</h2>{_paragraphs(notes._element)}"
    tree = html.fragment_fromstring(page, create_parent="div", parser=PARSER)
    title = _title(name, *titles[:1], deck.core_properties.title)
    yield from document_of(name, title, [tree], prepare(tree) + counts, Bibliography())


def _in_order(shapes: Iterable[Any]) -> list[Any]:
    """Shapes from top to bottom, and from left to right where they stand side by side."""
    return sorted(shapes, key=lambda shape: (round((shape.top or 0) / _SAME_LINE), shape.left or 0))


def _shape(shape: Any, counts: Counter[str]) -> str:
    """A shape in HTML; what has no text is counted."""
    if shape._element.xpath("./*/p:cNvPr[@hidden='1' or @hidden='true']"):
        counts["hidden shape"] += 1
    elif hasattr(shape, "shapes"):
        return "".join(_shape(each, counts) for each in _in_order(shape.shapes))
    elif shape._element.xpath(_FOOTERS):
        counts["footer"] += bool(shape.text_frame.text)
    elif getattr(shape, "has_table", False):
        return _table(shape.table)
    elif shape.has_text_frame:
        return _paragraphs(shape._element)
    elif diagram := shape._element.xpath(".//@r:dm"):
        return _paragraphs(etree.fromstring(shape.part.related_part(diagram[0]).blob))
    else:
        what = "chart" if getattr(shape, "has_chart", False) else "picture"
        counts[what] += shape._element.tag != qn("p:cxnSp")
    return ""


def _paragraphs(element: Any) -> str:
    """The paragraphs below an element in HTML."""
    text = ""
    for paragraph in element.iter(qn("a:p")):
        text += "<p>"
        for run in paragraph:
            form: Any = next(run.iterfind(qn("a:rPr")), {})
            struck, baseline = form.get("strike", "noStrike") != "noStrike", form.get("baseline", "0").rstrip("%")
            said = " " if run.tag == qn("a:br") else run.xpath("string()")
            text += _run(said, struck=struck, raised=float(baseline) > 0)
        text += "</p>"
    return text


def _table(table: Any) -> str:
    rows = ""
    for at, row in enumerate(table.rows):
        tag = "th" if table.first_row and not at else "td"
        rows += "<tr>"
        for cell in (cell for cell in row.cells if not cell.is_spanned):
            rows += f"<{tag} colspan={cell.span_width} rowspan={cell.span_height}>{_paragraphs(cell._tc)}</{tag}>"
    return f"<table>{rows}</table>"
