"""Word files by mammoth, as they show with all changes accepted. What mammoth cannot read is rewritten before."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator

import mammoth
from lxml import etree, html
from mammoth.docx.dingbats import dingbats

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, is_number
from medagent.retrieval.readers.html_text import PARSER, document_of, lines_of
from medagent.retrieval.readers.html_tree import paragraph, plain_table, prepare
from medagent.retrieval.readers.text import NO_TITLE

_OFF = ("0", "false", "off", "none", None)
_PLAIN = ("fldSimple", "dir", "bdo", "ruby", "rubyBase", "oMathPara")  # elements whose content counts, not they
_OTHERS = {"cr": "br", "ptab": "tab"}
_BOXES = {("Wingdings", 0xA8): "☐", ("Wingdings", 0xFD): "☒", ("Wingdings", 0xFE): "☑", ("Symbol", 0x6D): "µ"}
Properties = dict[str, str]


def read_word(file: OpenFile) -> Iterator[Item]:
    """One document of a Word file, with notes behind the blocks that refer to them, and tables row by row."""
    try:
        shown, named, left_out = _rewritten(file.whole())
        page = mammoth.convert_to_html(shown, style_map="p.Title => h1.title:fresh").value
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, RuntimeError, etree.XMLSyntaxError) as error:
        raise UnusableFileError(
            f"is no readable Word file ({type(error).__name__}: {error}); is it encrypted?"
        ) from error
    tree = html.fragment_fromstring(page, create_parent="div", parser=PARSER)
    _place_notes(tree)
    _prepare_tables(tree)
    prepare(tree)
    headline = next((" ".join(node.text_content().split()) for node in tree.findall(".//h1[@class='title']")), "")
    title = headline or ("" if NO_TITLE.search(named) else named)
    yield from document_of(file.name, title, [tree], left_out, Bibliography())


def _place_notes(tree: html.HtmlElement) -> None:
    for mark in reversed(tree.xpath(".//a[starts-with(@href, '#footnote-') or starts-with(@href, '#endnote-')]")):
        if (note := tree.find(f".//li[@id='{mark.get('href')[1:]}']")) is not None:
            for back in note.xpath(".//a[. = '↑']"):
                back.drop_tree()
            note.tag = "div"
            next(node for node in (mark, *mark.iterancestors()) if node.getparent() is tree).addnext(note)


def _prepare_tables(tree: html.HtmlElement) -> None:
    """First rows as headers where Word marks none and they look so; tables within tables as lines of their cells."""
    for table in reversed(list(tree.iter("table"))):
        first, *others = table.findall("tr") or [()]  # none where Word marks a head
        texts = [[cell.text_content().strip() for cell in row[1:]] for row in (first, *others)]
        numbers = all(is_number(text) for row in texts[1:] for text in row if text)
        if others and not any(map(is_number, texts[0])) and (len(first) > 2 or numbers):
            for cell in first:
                cell.tag = "th"
        if next(table.iterancestors("table"), None) is not None:
            plain_table(table)
            table.getparent().replace(table, paragraph("; ".join(line for _, line in lines_of(table)), table.tail))


def _rewritten(raw: bytes) -> tuple[io.BytesIO, str, Counter[str]]:
    """The file without pictures and with its parts rewritten, its title, and what was left out."""
    made, title, left_out = io.BytesIO(), "", Counter[str]()
    parser = etree.XMLParser(resolve_entities=False, huge_tree=True)
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(made, "w") as target:
        parts = {name: source.read(name) for name in source.namelist() if name.endswith((".xml", ".rels"))}
        roots = {name: etree.fromstring(part, parser) for name, part in parts.items() if name.endswith(".xml")}
        styles = _styles([root for root in roots.values() if _name(root) == "styles"])
        for root in roots.values():
            if _name(root) in ("document", "footnotes", "endnotes") and "wordprocessingml" in root.tag:
                left_out += _rewrite(root, styles)
            elif _name(root) == "coreProperties":
                title = " ".join(root.findtext("{*}title", "").split())
        for name, part in parts.items():
            target.writestr(name, etree.tostring(roots[name]) if name in roots else part)
    made.seek(0)
    return made, title, left_out


def _name(node: etree._Element) -> str:
    return etree.QName(node).localname if isinstance(node.tag, str) else ""


def _own(node: etree._Element | None, *paths: str) -> Properties:
    """The properties below an element by their names."""
    w = "" if node is None else f"{{{etree.QName(node).namespace}}}"
    found = [each for path in paths if node is not None for each in node.iterfind(path)]
    return {_name(each): each.get(f"{w}val") or each.get(f"{w}ascii") or "on" for each in found}


def _styles(roots: list[etree._Element]) -> dict[str, Properties]:
    """By a style's id its properties, those of the styles that it is based on included."""
    found = {}
    for style in (each for root in roots for each in root.iter("{*}style")):
        number = style.get(f"{{{etree.QName(style).namespace}}}styleId", "")
        found[number] = _own(style, "{*}name", "{*}basedOn", "{*}pPr/{*}outlineLvl", "{*}rPr/*")

    def whole(number: str, depth: int = 0) -> Properties:
        own = found.get(number, {})
        return (whole(own["basedOn"], depth + 1) if "basedOn" in own and depth < 20 else {}) | own

    return {number: whole(number) for number in found}


def _rewrite(root: etree._Element, styles: dict[str, Properties]) -> Counter[str]:
    """Make a part such that mammoth reads all that it shows, and nothing else."""
    w, left_out = f"{{{etree.QName(root).namespace}}}", Counter[str]()
    left_out["formula"] += sum(each.get("ProgID", "").startswith("Equation") for each in root.iter("{*}OLEObject"))
    left_out["embedded document"] += len(list(root.iter(f"{w}altChunk")))
    for node in reversed(list(root.iter("{*}AlternateContent", f"{w}drawing", f"{w}pict", f"{w}object"))):
        if _name(node) == "AlternateContent":  # a text box stands in it twice
            choices = [each for each in node if next(each.iter("{*}t"), None) is not None]
            node.tag, node[:] = f"{w}smartTag", [child for each in choices[:1] for child in each]
        else:  # of pictures and shapes only the text in boxes
            boxes = [
                box for box in node.iter(f"{w}txbxContent") if box not in set(node.iterfind(f".//{box.tag}//{box.tag}"))
            ]
            node.tag, node[:] = f"{w}pict", boxes
    _drop_deleted(root, w, left_out)
    for node in list(root.iter(etree.Element)):
        name = _name(node)
        if name in ("bookmarkStart", "checkbox", "rt"):
            node.getparent().remove(node)
        elif name == "oMath":
            text = _formula(node)
            left_out["formula"] += not text.strip()
            run = etree.Element(f"{w}r")
            etree.SubElement(run, f"{w}t").text = text
            node.getparent().replace(node, run)
        elif name in _PLAIN:
            node.tag = f"{w}smartTag"
        elif node.tag in (f"{w}br", f"{w}cr", f"{w}ptab"):
            node.tag = f"{w}{_OTHERS.get(name, name)}"
            node.attrib.clear()
        elif node.tag == f"{w}sym":
            code = int(node.get(f"{w}char", "0"), 16)
            node.text = _glyph(node.get(f"{w}font", ""), code | 0xF000 if code < 0x100 else code, left_out)
            node.tag = f"{w}t"
        elif node.tag == f"{w}noBreakHyphen":
            node.tag, node.text = f"{w}t", "-"
    for block in root.iter(f"{w}p"):
        _mark_heading(block, w, styles)
    before = ""
    for run in list(root.iter(f"{w}r")):
        before = _rewrite_run(run, w, styles, before, left_out)
    return left_out


def _drop_deleted(root: etree._Element, w: str, left_out: Counter[str]) -> None:
    for row in list(root.iter(f"{w}tr")):
        if row.find(f"{w}trPr/{w}del") is not None:
            left_out["deletion"] += 1
            row.getparent().remove(row)
    for cell in root.iter(f"{w}tc"):
        if cell.find(f"{w}tcPr/{w}cellDel") is not None:
            left_out["deletion"] += 1
            cell[:] = cell[:1]
    for node in list(root.iter(f"{w}del", f"{w}moveFrom")):
        above = node.getparent()
        if not _name(above).endswith("Pr"):
            left_out["deletion" if _name(node) == "del" else "moved text"] += bool("".join(node.itertext()).strip())
            above.remove(node)
        elif (block := next(node.iterancestors(f"{w}p"), None)) is not None:
            following = block.getnext()
            if following is None or following.tag != block.tag:  # mammoth would join it with the next paragraph
                above.remove(node)


def _mark_heading(block: etree._Element, w: str, styles: dict[str, Properties]) -> None:
    """Give headings and the title the style by which mammoth knows them; in tables they are text."""
    own = _own(block, f"{w}pPr/{w}pStyle", f"{w}pPr/{w}outlineLvl")
    style = styles.get(own.get("pStyle", ""), {"name": own.get("pStyle", "")})
    found = re.fullmatch(r"heading ?([1-9])", style.get("name", ""), re.IGNORECASE)
    level = own.get("outlineLvl") or style.get("outlineLvl") or (str(int(found[1]) - 1) if found else "9")
    title = style.get("name") == "Title"
    if title or level in "012345678":
        for old in block.findall(f"{w}pPr/{w}pStyle"):
            old.getparent().remove(old)
        if next(block.iterancestors(f"{w}tbl"), None) is None:
            _set(block, f"{w}pPr", f"{w}pStyle", "Title" if title else f"Heading{min(int(level) + 1, 6)}")


def _set(node: etree._Element, group: str, name: str, value: str) -> None:
    properties = node.find(group)
    if properties is None:
        properties = etree.Element(group)
        node.insert(0, properties)
    etree.SubElement(properties, name).set(f"{{{etree.QName(name).namespace}}}val", value)


def _rewrite_run(
    run: etree._Element, w: str, styles: dict[str, Properties], before: str, left_out: Counter[str]
) -> str:
    """Drop a run that does not show, and return why; `before` is what was returned for the run before it."""
    outer = _own(next(run.iterancestors(f"{w}p"), None), f"{w}pPr/{w}pStyle").get("pStyle", "")
    own = _own(run, f"{w}rPr/*")
    said = styles.get(outer, {}) | styles.get(own.get("rStyle", ""), {}) | own
    on = {name for name, value in said.items() if value not in _OFF}
    if unseen := "hidden text" if "vanish" in on else "struck-out text" if on & {"strike", "dstrike"} else "":
        left_out[unseen] += unseen != before and bool(re.search(r"\w", "".join(run.itertext())))
        run.getparent().remove(run)
        return unseen
    raised = said.get("vertAlign") or ("superscript" if said.get("position", "").isdecimal() else "")
    if raised and "vertAlign" not in own:
        _set(run, f"{w}rPr", f"{w}vertAlign", raised)
    for text in run.iterfind(f"{w}t"):
        codes = [ord(char) for char in text.text or ""]
        if (said.get("rFonts", ""), 65) in dingbats:
            codes = [code | 0xF000 if code < 0x80 else code for code in codes]
        if max(codes, default=0) >= 0xF000:
            text.text = "".join(_glyph(said.get("rFonts", ""), code, left_out) for code in codes)
    return ""


def _glyph(font: str, code: int, left_out: Counter[str]) -> str:
    """The character of a code from F000 to F0FF, where symbol fonts have their signs; others are what they are."""
    if not 0xF000 <= code < 0xF100:
        return chr(code)
    key = (font if (font, 65) in dingbats else "Symbol", code - 0xF000)
    found = _BOXES.get(key) or chr(dingbats.get(key, 0))
    left_out["symbol"] += found == "\0"
    return found.strip("\0")


def _formula(node: etree._Element) -> str:
    """An equation in a line: "10^9", "(a+b)/c", "√x"."""
    if _name(node) == "t":
        return node.text or ""
    said = ""
    for child in node:
        name, text = _name(child), _formula(child)
        if name in ("num", "den", "sup", "deg") and not re.fullmatch(r"[−-]?[\w.]*", text):
            text = f"({text})"
        said += {"den": "/", "sup": "^" if text else "", "rad": "√"}.get(name, "") + text
    return f"({said})" if _name(node) == "d" or (_name(node) == "e" and _name(node.getparent()) == "rad") else said
