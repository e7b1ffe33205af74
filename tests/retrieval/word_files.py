"""Word files made of their XML."""

from __future__ import annotations

import zipfile
from pathlib import Path

SPACES = " ".join(
    f'xmlns:{prefix}="http://schemas.openxmlformats.org/{name}"'
    for prefix, name in (
        ("w", "wordprocessingml/2006/main"),
        ("m", "officeDocument/2006/math"),
        ("mc", "markup-compatibility/2006"),
        ("wp", "drawingml/2006/wordprocessingDrawing"),
        ("r", "officeDocument/2006/relationships"),
        ("a", "drawingml/2006/main"),
    )
) + (
    ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
    ' xmlns:v="urn:schemas-microsoft-com:vml" xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml"'
    ' xmlns:o="urn:schemas-microsoft-com:office:office"'
)
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def block(*runs: str, properties: str = "") -> str:
    """A paragraph; what is no element is a run of that text."""
    return f"<w:p><w:pPr>{properties}</w:pPr>{''.join(each if each[:1] == '<' else run(each) for each in runs)}</w:p>"


def table(*rows: list[str]) -> str:
    """A table; cells that are no elements are blocks of that text."""
    cells = [[each if each[:1] == "<" else block(each) for each in row] for row in rows]
    made = "".join(f"<w:tr>{''.join(f'<w:tc>{cell}</w:tc>' for cell in row)}</w:tr>" for row in cells)
    return f"<w:tbl>{made}</w:tbl>"


def write_word(path: Path, *blocks: str, styles: str = "", title: str = "", **notes: str) -> Path:
    """A file with these blocks; `notes` are the XML of footnotes and endnotes by the part's name."""
    bodies = {"document": f"<w:body>{''.join(blocks)}</w:body>", "styles": styles, **notes}
    core = (
        f'<c:coreProperties xmlns:c="{_PACKAGE}/metadata/core-properties" xmlns:d="http://purl.org/dc/elements/1.1/" '
    )
    core += f'xmlns:t="http://purl.org/dc/terms/"><d:title>{title}</d:title><t:created>2013-12-23T23:15:00Z</t:created>'
    links = f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" Type="{_TYPE}/officeDocument" '
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("_rels/.rels", f'{links}Target="word/document.xml"/></Relationships>')
        file.writestr("docProps/core.xml", f"{core}</c:coreProperties>")
        for name, inside in bodies.items():
            file.writestr(f"word/{name}.xml", f"<w:{name} {SPACES}>{inside}</w:{name}>")
    return path
