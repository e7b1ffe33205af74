"""Word files by mammoth, as they show with all changes accepted. What mammoth cannot read is rewritten before."""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator

import mammoth
from lxml import etree, html
from mammoth.docx.dingbats import dingbats

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.readers.base import Item, OpenFile, UnusableFileError, is_number, open_zip
from medagent.retrieval.readers.html_text import PARSER, document_of, prepare
from medagent.retrieval.readers.text import NO_TITLE

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT = b"http://purl.oclc.org/ooxml/wordprocessingml/main"
_OFF = ("0", "false", "off", "none")
# What mammoth reads in place of what it does not know. The content of a smart tag is read as if it were not there.
_READ_AS = dict.fromkeys(("hyperlink", "fldSimple", "dir", "bdo", "ruby", "rubyBase", "oMathPara"), "smartTag") | {
    "cr": "br",
    "ptab": "tab",
}
_SIGNS = {("Wingdings", 0xA8): "☐", ("Wingdings", 0xFD): "☒", ("Wingdings", 0xFE): "☑", ("Symbol", 0x6D): "µ"}
Properties = dict[str, str]


def read_word(file: OpenFile) -> Iterator[Item]:
    """One document of a Word file, with notes behind the blocks that refer to them, and tables row by row."""
    raw = file.whole()
    try:
        shown, named, left_out = _rewritten(raw)
        page = mammoth.convert_to_html(shown, style_map="p.Title => h1.title:fresh").value
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, RuntimeError, etree.XMLSyntaxError) as error:
        raise UnusableFileError(
            f"is no readable Word file ({type(error).__name__}: {error}); is it encrypted?"
        ) from error
    tree = html.fragment_fromstring(page, create_parent="div", parser=PARSER)
    _place_notes(tree)
    _mark_headers(tree)
    for box in tree.iter("input"):
        box.tail = f"{'☐' if box.get('checked') is None else '☒'}{box.tail or ''}"
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


def _mark_headers(tree: html.HtmlElement) -> None:
    """First rows as headers where Word marks none and they look so."""
    for table in tree.iter("table"):
        first, *others = table.findall("tr") or [()]  # none where Word marks a head
        texts = [[cell.text_content().strip() for cell in row[1:]] for row in (first, *others)]
        numbers = all(is_number(text) for row in texts[1:] for text in row if text)
        if others and not any(map(is_number, texts[0])) and (len(first) > 2 or numbers):
            for cell in first:
                cell.tag = "th"


def _rewritten(raw: bytes) -> tuple[io.BytesIO, str, Counter[str]]:
    """The file without pictures and with its parts rewritten, its title, and what was left out."""
    made, title, left_out = io.BytesIO(), "", Counter[str]()
    parser = etree.XMLParser(resolve_entities=False, huge_tree=True)
    with open_zip(raw) as source, zipfile.ZipFile(made, "w") as target:
        parts = {name: source.read(name) for name in source.namelist() if name.endswith((".xml", ".rels"))}
        roots = {
            name: etree.fromstring(part.replace(_STRICT, _W[1:-1].encode()), parser) for name, part in parts.items()
        }
        styles = _styles([style for root in roots.values() for style in root.iter(f"{_W}style")])
        for name, root in roots.items():
            if root.tag in (f"{_W}document", f"{_W}footnotes", f"{_W}endnotes"):
                left_out += _rewrite(root, styles)
            elif _name(root) == "coreProperties":
                title = " ".join(root.findtext("{*}title", "").split())
            target.writestr(name, etree.tostring(root))
    made.seek(0)
    return made, title, left_out


def _name(node: etree._Element) -> str:
    return str(etree.QName(node).localname)


def _own(node: etree._Element, *paths: str) -> Properties:
    """The properties below an element by their names."""
    found = (each for path in paths for each in node.iterfind(path, {"w": _W[1:-1]}))
    return {_name(each): each.get(f"{_W}val") or each.get(f"{_W}ascii") or "on" for each in found}


def _styles(styles: list[etree._Element]) -> dict[str, Properties]:
    """By a style's id its properties, those of the styles that it is based on included."""
    for each in styles:  # mammoth wants a type
        each.set(f"{_W}type", each.get(f"{_W}type", "paragraph"))
    own = {
        each.get(f"{_W}styleId"): _own(each, "w:name", "w:basedOn", "w:pPr/w:outlineLvl", "w:rPr/*") for each in styles
    }

    def whole(style: str, depth: int = 0) -> Properties:
        said = own.get(style, {})
        return (whole(said["basedOn"], depth + 1) if "basedOn" in said and depth < 20 else {}) | said

    return {style: whole(style) for style in own}


def _rewrite(root: etree._Element, styles: dict[str, Properties]) -> Counter[str]:
    """Make a part such that mammoth reads all that it shows, and nothing else."""
    left_out = Counter[str]()
    left_out["formula"] += sum(each.get("ProgID", "").startswith("Equation") for each in root.iter("{*}OLEObject"))
    left_out["embedded document"] += len(list(root.iter(f"{_W}altChunk")))
    for node in reversed(list(root.iter("{*}AlternateContent", f"{_W}drawing", f"{_W}pict", f"{_W}object"))):
        if _name(node) == "AlternateContent":  # a text box stands in it twice
            choices = [each for each in node if next(each.iter("{*}t"), None) is not None]
            node.tag, node[:] = f"{_W}smartTag", [child for each in choices[:1] for child in each]
        else:  # of pictures and shapes only the text in boxes
            within = set(node.iterfind(f".//{_W}txbxContent//{_W}txbxContent"))
            node.tag, node[:] = f"{_W}pict", [box for box in node.iter(f"{_W}txbxContent") if box not in within]
    _drop_deleted(root, left_out)
    for node in list(root.iter(etree.Element)):
        name = _name(node)
        if name in ("bookmarkStart", "checkbox", "rt"):
            node.getparent().remove(node)
        elif name == "oMath":
            text = _formula(node)
            left_out["formula"] += not text.strip()
            node.clear()
            node.tag = f"{_W}r"
            etree.SubElement(node, f"{_W}t").text = text
        elif name in _READ_AS:
            node.tag = _W + _READ_AS[name]
        elif name == "sym":
            code = int(node.get(f"{_W}char", "0"), 16)
            node.text = _glyph(node.get(f"{_W}font", ""), code | 0xF000 if code < 0x100 else code, left_out)
            node.tag = f"{_W}t"
        elif name == "noBreakHyphen":
            node.tag, node.text = f"{_W}t", "-"
        if node.tag == f"{_W}br":  # of pages and columns too
            node.attrib.clear()
    for block in root.iter(f"{_W}p"):
        _mark_heading(block, styles)
    before = ""
    for run in list(root.iter(f"{_W}r")):
        before = _rewrite_run(run, styles, before, left_out)
    return left_out


def _drop_deleted(root: etree._Element, left_out: Counter[str]) -> None:
    for mark in list(root.iter(f"{_W}del", f"{_W}moveFrom", f"{_W}cellDel")):
        above = mark.getparent()
        if _name(above) == "rPr":  # the end of a paragraph; mammoth joins it with the next one, wherever that is
            following = next((each.getnext() for each in mark.iterancestors(f"{_W}p")), None)
            if following is None or following.tag != f"{_W}p":
                above.remove(mark)
            continue
        gone = above.getparent() if _name(above) in ("trPr", "tcPr") else mark
        if root in gone.iterancestors():
            what = "moved text" if mark.tag == f"{_W}moveFrom" else "deletion"
            left_out[what] += bool("".join(gone.itertext()).strip())
            if gone.tag == f"{_W}tc":
                gone[:] = [above]
            else:
                gone.getparent().remove(gone)


def _mark_heading(block: etree._Element, styles: dict[str, Properties]) -> None:
    """Give headings and the title the style by which mammoth knows them; in tables they are text."""
    own = _own(block, "w:pPr/w:pStyle", "w:pPr/w:outlineLvl")
    style = styles.get(own.get("pStyle", ""), {"name": own.get("pStyle", "")})
    found = re.fullmatch(r"heading ?([1-9])", style.get("name", ""), re.IGNORECASE)
    level = own.get("outlineLvl") or style.get("outlineLvl") or (str(int(found[1]) - 1) if found else "9")
    title = style.get("name") == "Title"
    if title or level in "012345678":
        for old in block.findall(f"{_W}pPr/{_W}pStyle"):
            old.getparent().remove(old)
        if next(block.iterancestors(f"{_W}tbl"), None) is None:
            _set(block, "pPr", "pStyle", "Title" if title else f"Heading{min(int(level) + 1, 6)}")


def _set(node: etree._Element, group: str, name: str, value: str) -> None:
    if node.find(_W + group) is None:
        node.insert(0, etree.Element(_W + group))
    etree.SubElement(node.find(_W + group), _W + name).set(f"{_W}val", value)


def _rewrite_run(run: etree._Element, styles: dict[str, Properties], before: str, left_out: Counter[str]) -> str:
    """Drop a run that does not show, and return why; `before` is what was returned for the run before it."""
    block = next(run.iterancestors(f"{_W}p"), run)
    own = _own(run, "w:rPr/*")
    said = styles.get(_own(block, "w:pPr/w:pStyle").get("pStyle", ""), {}) | styles.get(own.get("rStyle", ""), {}) | own
    on = {name for name, value in said.items() if value not in _OFF}
    if unseen := "hidden text" if "vanish" in on else "struck-out text" if on & {"strike", "dstrike"} else "":
        left_out[unseen] += unseen != before and bool(re.search(r"\w", "".join(run.itertext())))
        run.getparent().remove(run)
        return unseen
    raised = said.get("vertAlign") or ("superscript" if said.get("position", "").isdecimal() else "")
    if raised and "vertAlign" not in own:
        _set(run, "rPr", "vertAlign", raised)
    font = said.get("rFonts", "")
    for text in run.iterfind(f"{_W}t"):
        codes = [ord(char) for char in text.text or ""]
        if (font, 65) in dingbats:
            codes = [code | 0xF000 if code < 0x80 else code for code in codes]
        if max(codes, default=0) >= 0xF000:
            text.text = "".join(_glyph(font, code, left_out) for code in codes)
    return ""


def _glyph(font: str, code: int, left_out: Counter[str]) -> str:
    """The character of a code from F000 to F0FF, where symbol fonts have their signs; others are what they are."""
    if not 0xF000 <= code < 0xF100:
        return chr(code)
    key = (font if (font, 65) in dingbats else "Symbol", code - 0xF000)
    left_out["symbol"] += key not in dingbats
    return _SIGNS.get(key) or (chr(dingbats[key]) if key in dingbats else "")


def _formula(node: etree._Element) -> str:
    """An equation in a line: "10^9", "(a+b)/c", "√(x)"."""
    said = node.text or "" if _name(node) == "t" else ""
    for child in node:
        name, text = _name(child), _formula(child)
        if name in ("num", "den", "sup") and not re.fullmatch(r"[−-]?[\w.]*", text):
            text = f"({text})"
        said += {"den": "/", "sup": "^" if text else "", "rad": "√"}.get(name, "") + text
    return f"({said})" if said and _name(node) in ("d", "rad") else said
