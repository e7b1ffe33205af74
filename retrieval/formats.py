"""The formats of files that an index is built from: one list for readers, help, documentation and errors."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileFormat:
    """Files of these suffixes: their reader, "module.function" below `medagent.retrieval.readers`.

    `names` are the formats in words, and `how` says how they are read. `reading` grows when files are read otherwise
    than before, so that `sync` and `add` read files again that did not change themselves.
    """

    suffixes: tuple[str, ...]
    reader: str
    names: tuple[str, ...]
    how: str
    reading: int = 0

    @property
    def holds(self) -> str:
        """What a file holds: rows, articles, or one document."""
        module = self.reader.partition(".")[0]
        return {"rows": "rows", "tables": "rows", "xml": "articles", "references": "articles"}.get(module, "documents")


FORMATS = (
    FileFormat(
        (".jsonl", ".ndjson"),
        "rows.read_json_lines",
        ("JSON lines",),
        "a row is a document: `text`, `content` or `abstract`, optionally `id`, `title`, `section`, `source`, `year`, "
        "`licence`, `document`, and `url`, `doi`, `pmid`, `authors`, `journal`, `date`, `types`, `keywords`, "
        "`language`",
        2,
    ),
    FileFormat(
        (".json",),
        "rows.read_json_array",
        ("JSON arrays", "Europe PMC", "ClinicalTrials.gov", "openFDA", "medRxiv"),
        "the same, row by row; records of these sources, and of BioC, as they are",
        2,
    ),
    FileFormat(
        (".csv", ".tsv"),
        "tables.read_table",
        ("CSV", "TSV", "Retraction Watch"),
        "the same, by the column names of PubMed, Scopus and Web of Science; Retraction Watch's list keeps "
        "retracted documents out",
        2,
    ),
    FileFormat(
        (".xml", ".nxml"),
        "xml.read_xml",
        ("PubMed XML", "JATS", "BITS", "OAI-PMH", "DailyMed SPL", "GROBID TEI", "BioC"),
        "an article is a document, `pmid:...`: abstracts, translations, sections, notes, tables row by row; DailyMed's "
        "labels (SPL) are `setid:...`, their boxed warning first",
        2,
    ),
    FileFormat((".nbib",), "references.read_medline_text", ("NBIB",), "a record is a document, `pmid:...`"),
    FileFormat((".ris",), "references.read_ris", ("RIS",), "a record with an abstract is a document"),
    FileFormat((".bib",), "references.read_bibtex", ("BibTeX",), "the same"),
    FileFormat(
        (".html", ".htm", ".xhtml"),
        "pages.read_html",
        ("HTML",),
        "the main text, by headings, tables row by row, without menus, banners, hidden and struck-out text",
        3,
    ),
    FileFormat(
        (".docx", ".docm"),
        "word.read_word",
        ("Word",),
        "as with all changes accepted: by headings, tables row by row; no hidden or struck-out text, no pictures",
        3,
    ),
    FileFormat(
        (".xlsx", ".xlsm"),
        "office.read_xlsx",
        ("Excel",),
        "a sheet is a section, tables row by row, numbers as shown; with a column `text` or `abstract` as CSV",
    ),
    FileFormat((".pptx",), "office.read_pptx", ("PowerPoint",), "a slide is a section: shapes in order, tables, notes"),
    FileFormat((".epub",), "pages.read_epub", ("EPUB",), "a book is a document, by the headings of its chapters"),
    FileFormat(
        (".md", ".markdown"), "pages.read_markdown", ("Markdown",), "by headings, tables row by row, HTML in it too", 2
    ),
    FileFormat(
        (".pdf",),
        "pdf.read_pdf",
        ("PDF",),
        "by pages and headings: columns in order, tables row by row, no running headers, no struck-out text; scans "
        "need text recognition (`--ocr`)",
        3,
    ),
    FileFormat((".txt",), "text.read_text", ("text",), "a file is a document; PubMed's export has one per record"),
)
READERS = {suffix: each for each in FORMATS for suffix in each.suffixes}
WANTED = f"wanted {', '.join(READERS)} (or these with .gz)"
NAMES = [name for each in FORMATS for name in each.names]


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read: "a.xml.gz" is ".xml"."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
