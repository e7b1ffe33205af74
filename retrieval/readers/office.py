"""Excel workbooks (openpyxl) and slides (python-pptx) as they are shown: what is hidden or struck out is counted."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from itertools import groupby
from typing import Any

import openpyxl
import pptx
from lxml import etree
from openpyxl.cell.rich_text import CellRichText, TextBlock
from pptx.enum.shapes import PP_PLACEHOLDER
from pptx.oxml.ns import qn

from medagent.retrieval.chunking import Document, Section
from medagent.retrieval.readers import base
from medagent.retrieval.readers.base import Item, LeftOut, OpenFile, UnusableFileError, table_lines
from medagent.retrieval.readers.marks import superscript
from medagent.retrieval.readers.tables import documents_of_cells, known_name
from medagent.retrieval.readers.text import NO_TITLE, title_from_name

_OLE = b"\xd0\xcf\x11\xe0"  # begins encrypted files, and those of before 2007
_CHOICES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_FOOTERS = (PP_PLACEHOLDER.DATE, PP_PLACEHOLDER.FOOTER, PP_PLACEHOLDER.HEADER, PP_PLACEHOLDER.SLIDE_NUMBER)
_SAME_LINE = 228_600  # EMU, a quarter of an inch: shapes whose tops are as near stand side by side
# Parts of a number format: digits, text, a currency, a colour or filling, other signs.
_FORMAT = re.compile(
    r"(?P<digits>General|@|[0#?][0#?.,]*(?:E[+-]0+)?)|\"(?P<text>[^\"]*)\"|\\(?P<sign>.)"
    r"|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].|(?P<other>.)"
)
_FORMATS = re.compile(r';(?=(?:[^"]*"[^"]*")*[^"]*$)')  # for positive numbers, negative ones and zero


def read_xlsx(file: OpenFile) -> Iterator[Item]:
    """One document of a workbook, a section per sheet; a row of a sheet with a column of texts is a document."""
    yield from _items(file, "workbook", _workbook)


def read_pptx(file: OpenFile) -> Iterator[Item]:
    """One document of a presentation, a section per slide and per page of notes."""
    yield from _items(file, "presentation", _presentation)


def _items(file: OpenFile, kind: str, read: Callable[[bytes, str, Counter[str]], list[Item]]) -> list[Item]:
    raw, counts = file.whole(), Counter[str]()
    if raw.startswith(_OLE):
        raise UnusableFileError("is encrypted, or in the format of before 2007; save it anew, without a password")
    try:
        base.open_zip(raw).close()
        with warnings.catch_warnings(action="ignore"):  # they tell what could not be written again
            found = read(raw, file.name, counts)
    except UnusableFileError:
        raise
    except Exception as error:  # a damaged part may end in any
        raise UnusableFileError(f"is no readable {kind} ({type(error).__name__}: {error})") from error
    told = [f"{number:,} {what.replace('|', '' if number == 1 else 's')}" for what, number in counts.items() if number]
    return [*found, LeftOut(file.name, ", ".join(told))] if told else found


def _document(titles: Sequence[str | None], sections: Sequence[Section], name: str) -> Item:
    """The document with the first of the titles that is one, else with its file's name."""
    title = next((each for each in titles if each and not NO_TITLE.search(each)), title_from_name(name))
    kept = tuple(section for section in sections if section.text)
    return base.usable(Document(title, kept, name, name=name), name, "has no text")


def _with_run(before: str, said: str, struck: bool, raised: bool, counts: Counter[str]) -> str:
    """The text with a run more, which may be struck out or superscript."""
    if struck:
        counts["struck-out text|"] += bool(said.strip())
        return before
    return before + (superscript(said.strip(), before.rstrip()) if raised else said)


def _workbook(raw: bytes, name: str, counts: Counter[str]) -> list[Item]:
    # Not openpyxl's read-only mode: it knows no hidden rows and columns, no merged cells and no notes.
    book = openpyxl.load_workbook(io.BytesIO(raw), data_only=True, rich_text=True)
    sections, found = list[Section](), list[Item]()
    for sheet in book.worksheets:
        if sheet.sheet_state != "visible":
            counts["hidden sheet|"] += 1
            continue
        rows = list(_rows(sheet, counts))
        first = next((at for at, row in enumerate(rows) if row.filled > 1), len(rows))
        fields = [known_name(cell) for row in rows[first : first + 1] for cell in row.cells]
        if "text" in fields and len({*fields, ""}) > 2:
            for row in rows[first + 1 :]:
                found.extend(documents_of_cells(fields, row.cells, f"{name}, {sheet.title}, row {row.number}", name))
        elif rows:
            sections.append(Section(sheet.title, "\n".join(_sheet_lines(rows)), kind="table"))
    _count_unread(raw, book, counts)
    return [_document([book.properties.title], sections, name), *found] if sections or not found else found


def _count_unread(raw: bytes, book: Any, counts: Counter[str]) -> None:
    """Count formulas without a stored value, and what openpyxl does not read."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        names = [each for each in archive.namelist() if re.match(r"xl/(drawings|worksheets)/\w+\.xml$", each)]
        parts = b"".join(map(archive.read, names))
    for what, mark in (("shape|", rb"<xdr:sp[ >]"), ("picture|", rb"<xdr:pic[ >]"), ("chart|", rb"<c:chart[ >]")):
        counts[what] += len(re.findall(mark, parts))
    if not re.search(rb"<(\w+:)?f[ >/]", parts):
        return
    for sheet in openpyxl.load_workbook(io.BytesIO(raw), read_only=True).worksheets:
        for cell in (cell for row in sheet.rows for cell in row if cell.data_type == "f"):
            kept = book[sheet.title][cell.coordinate]
            if sheet.sheet_state == "visible" and kept.value is None and kept.data_type != "str":  # "str" is empty text
                counts["formula| without a stored value"] += 1


@dataclass(frozen=True)
class _Row:
    number: int
    cells: list[str]  # one for each column of the sheet
    filled: int  # how many of them hold a text
    head: bool  # all of it is bold, or it is the first of what Excel calls a table
    grouped: bool  # a cell stands over several columns, and another beside it
    begins: bool  # after an empty row


def _rows(sheet: Any, counts: Counter[str]) -> Iterator[_Row]:
    """The rows that are shown and not empty, merged cells filled; a cell over the whole row stands once."""
    height, last = sheet.max_row, 0
    width = max((place[1] for place, cell in sheet._cells.items() if cell.value is not None), default=0)
    merged = {
        (row, column): (area.min_row, area.min_col)
        for area in sheet.merged_cells.ranges
        for row in range(area.min_row, min(area.max_row, height) + 1)
        for column in range(area.min_col, min(area.max_col, width) + 1)
    }
    columns = [each for each in sheet.column_dimensions.values() if each.hidden or each.width == 0]
    hidden = {column for each in columns for column in range(each.min, min(each.max, width) + 1)}
    unseen = {number for number, each in sheet.row_dimensions.items() if each.hidden or each.height == 0}
    heads = {int(re.sub(r"^\D+|:.*", "", table.ref)) for table in sheet.tables.values()}
    missed = set[int]()
    # Only cells that exist: a stray one in the last row makes no million of rows.
    for number, places in groupby(sorted(sheet._cells), key=lambda place: place[0]):
        found = dict[int, tuple[str, tuple[int, int]]]()
        for place in places:
            origin, gone = merged.get(place, place), number in unseen or place[1] in hidden
            text = _cell_text(sheet.cell(*origin), Counter() if gone or origin != place else counts)
            if text and (number in unseen or not gone):
                found[place[1]] = text, origin
            elif text:
                missed.add(place[1])
        begins, last = number > last + 1, number if found else last
        if number in unseen:
            counts["hidden row|"] += bool(found)
        elif found:
            origins = Counter(origin for _, origin in found.values())
            kept = dict([*found.items()][:1]) if len(origins) == 1 else found
            bold = number in heads or all(sheet.cell(*origin).font.b for origin in origins)
            cells = [kept[column][0] if column in kept else "" for column in range(1, width + 1)]
            yield _Row(number, cells, len(kept), bold, len(origins) > 1 and max(origins.values()) > 1, begins)
    counts["hidden column|"] += len(missed)


def _cell_text(cell: Any, counts: Counter[str]) -> str:
    counts["comment|"] += cell.comment is not None
    if cell.value is None:
        return ""
    if cell.font.strike:
        counts["struck-out cell|"] += 1
        return ""
    if not isinstance(cell.value, CellRichText):
        shown = _shown(cell.value, cell.number_format)
        counts["hidden value|"] += not shown and not isinstance(cell.value, str)
        return shown
    text = ""
    for run in cell.value:
        rich = isinstance(run, TextBlock)
        text = _with_run(text, str(run), rich and run.font.strike, rich and run.font.vertAlign == "superscript", counts)
    return " ".join(text.split())


def _shown(value: Any, code: str) -> str:
    """A value by Excel's number format, with the units around it; dates in ISO 8601."""
    if type(value) not in (int, float):
        return " ".join(str(value).removesuffix(" 00:00:00").split())
    formats = _FORMATS.split(code)
    own = formats[1 if value < 0 and len(formats) > 1 else 2 if value == 0 and len(formats) > 2 else 0]
    parts = [*_FORMAT.finditer(own)]
    if sum(bool(part["digits"]) for part in parts) > 1 or re.search(r"\[[<>=]", code):  # fractions, telephones, choices
        return _digits(Decimal(repr(value)), "General")
    size = Decimal(repr(value if len(formats) == 1 else abs(value))) * 100 ** sum(part[0] == "%" for part in parts)
    shown = [_digits(size, part[0]) if part["digits"] else "".join(filter(None, part.groups())) for part in parts]
    return " ".join("".join(shown).split())


def _digits(size: Decimal, shape: str) -> str:
    """A number with the digits of a format such as "#,##0.0#" or "0.00E+00"."""
    if shape in ("General", "@"):
        return str(int(size)) if size == int(size) else f"{Decimal(f'{float(size):.10g}'):f}"
    mantissa, power, zeros = shape.partition("E")
    whole, _, decimals = mantissa.rstrip(",").partition(".")
    size /= 1000 ** (len(mantissa) - len(mantissa.rstrip(",")))
    with localcontext(Context(rounding=ROUND_HALF_UP)):
        text = f"{size:{',' * (',' in whole)}.{len(decimals)}{'E' if power else 'f'}}"
    text, _, exponent = text.partition("E")
    before, _, after = text.partition(".")
    kept = len(decimals.rstrip("#?"))
    after = after[:kept] + after[kept:].rstrip("0")
    before = before.zfill(whole.count("0") + (size < 0)) if "," not in whole else before
    return before + (f".{after}" if after else "") + (f"E{int(exponent):+0{len(zeros)}d}" if power else "")


def _sheet_lines(rows: Sequence[_Row]) -> Iterator[str]:
    """Lines of a sheet: titles, and tables row by row. A table after an empty row may have no names, but no others'."""
    names, begun = list[str](), False
    starts = [at for at, row in enumerate(rows) if row.begins or not at]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        block = list(rows[start:end])
        while block and block[0].filled == 1:
            yield from filter(None, block.pop(0).cells)
        if not block:
            continue
        number = _num_heads(block, sure=begun)
        if number:
            columns = zip(*(row.cells for row in block[:number]), strict=True)
            names = [" ".join(dict.fromkeys(filter(None, column))) for column in columns]
        elif not any(map(base.is_number, block[0].cells[1:])):
            names = []
        begun = True
        body = [row.cells for row in block[number:]]
        yield from table_lines([names, *body] if names else body, named=bool(names))


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


def _presentation(raw: bytes, name: str, counts: Counter[str]) -> list[Item]:
    deck = pptx.Presentation(io.BytesIO(raw))
    sections, titles = list[Section](), list[str]()
    for number, slide in enumerate(deck.slides, start=1):
        if slide._element.get("show") in ("0", "false"):
            counts["hidden slide|"] += 1
            continue
        for both in list(slide._element.iter(f"{_CHOICES}AlternateContent")):  # a newer form and an older one
            for shape in list(both[0]):
                both.addprevious(shape)
            both.getparent().remove(both)
        first = slide.shapes.title
        title = " ".join(_frame_lines(first._element, counts)) if first is not None else ""
        others = [shape for shape in slide.shapes if first is None or shape.shape_id != first.shape_id]
        text = "\n".join(line for shape in _in_order(others) for line in _shape_lines(shape, counts))
        titles.append(title)
        heading = f"slide {number}"
        sections.append(Section(f"{heading}: {title}" if title and text else heading, text or title))
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
            sections.append(Section(f"{heading} > Notes", "\n".join(_frame_lines(notes._element, counts))))
    return [_document([*titles[:1], deck.core_properties.title], sections, name)]


def _in_order(shapes: Iterable[Any]) -> list[Any]:
    """Shapes from top to bottom, and from left to right where they stand side by side."""
    return sorted(shapes, key=lambda shape: (round((shape.top or 0) / _SAME_LINE), shape.left or 0))


def _shape_lines(shape: Any, counts: Counter[str]) -> Iterator[str]:
    if shape._element.xpath("./*/p:cNvPr[@hidden='1' or @hidden='true']"):
        counts["hidden shape|"] += 1
    elif hasattr(shape, "shapes"):
        for each in _in_order(shape.shapes):
            yield from _shape_lines(each, counts)
    elif shape.is_placeholder and shape.placeholder_format.type in _FOOTERS:
        counts["footer|"] += bool(shape.text_frame.text)
    elif getattr(shape, "has_table", False):
        yield from table_lines(_cells(shape.table, counts), named=shape.table.first_row)
    elif getattr(shape, "has_chart", False):
        yield from _chart_lines(shape.chart, counts)
    elif shape.has_text_frame:
        yield from _frame_lines(shape._element, counts)
    elif diagram := shape._element.xpath(".//@r:dm"):
        yield from _frame_lines(etree.fromstring(shape.part.related_part(diagram[0]).blob), counts)
    else:
        counts["picture| or object|"] += shape._element.tag != qn("p:cxnSp")


def _frame_lines(element: Any, counts: Counter[str]) -> list[str]:
    """The paragraphs below an element, without what is struck out."""
    lines = []
    for paragraph in element.iter(qn("a:p")):
        text = ""
        for run in paragraph:
            form = run.find(qn("a:rPr"))
            form = {} if form is None else form
            struck, baseline = form.get("strike", "noStrike") != "noStrike", form.get("baseline", "0").rstrip("%")
            said = " " if run.tag == qn("a:br") else run.xpath("string()")
            text = _with_run(text, said, struck, float(baseline) > 0, counts)
        lines.append(" ".join(text.split()))
    return [line for line in lines if line]


def _cells(table: Any, counts: Counter[str]) -> list[list[str]]:
    """The texts of a table, merged cells filled; a cell over the whole row stands once."""
    width = len(table.columns)
    grid = [[""] * width for _ in table.rows]
    for row in range(len(grid)):
        for column in range(width):
            cell = table.cell(row, column)
            if cell.is_spanned:
                continue
            text = " ".join(_frame_lines(cell._tc, counts))
            for down in range(cell.span_height):
                for across in range(1 if cell.span_width == width else cell.span_width):
                    grid[row + down][column + across] = text
    return grid


def _chart_lines(chart: Any, counts: Counter[str]) -> Iterator[str]:
    if chart.has_title and chart.chart_title.has_text_frame:
        yield from _frame_lines(chart.chart_title._element, counts)
    for plot in chart.plots:
        labels, series = [str(label) for label in plot.categories], list(plot.series)
        counts["chart| without categories"] += not labels
        columns = [["" if value is None else _shown(value, "General") for value in each.values] for each in series]
        rows = [["", *(str(each.name) for each in series)], *map(list, zip(labels, *columns, strict=False))]
        yield from table_lines(rows)
