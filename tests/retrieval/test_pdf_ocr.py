"""PDFs whose pages are scans, with text recognition."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pypdfium2
import pytest
from pypdf import PdfReader, PdfWriter
from reportlab.pdfgen.canvas import Canvas

from medagent.retrieval.chunking import Document
from medagent.retrieval.corpora import as_corpus
from medagent.retrieval.errors import CorpusError
from medagent.retrieval.index import add_to_index, build_index, sync_index
from medagent.retrieval.maintenance import index_stats
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.readers import LeftOut, OpenFile, read_file
from medagent.retrieval.readers.tesseract import Tesseract
from medagent.retrieval.settings import IndexSettings
from tests.retrieval.support import SMALL
from tests.retrieval.test_pdf import Draw, lines, together, write

needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="needs Debian's tesseract-ocr")
WITH_OCR = IndexSettings(ocr="eng")
LEFT = ["The dose of demoxetine is raised", "after two weeks of treatment in", "those patients who bear it well."]
RIGHT = ["Never give more than 40 mg each", "day to a patient whose kidneys", "do not work as well as they did."]


def scanned(path: Path, *pages: Draw, dpi: int = 200) -> Path:
    """A file whose pages are pictures of these."""
    drawn = write(path.with_suffix(".drawn.pdf"), *pages)
    with closing(pypdfium2.PdfDocument(drawn)) as document:
        pictures = [document[at].render(scale=dpi / 72, grayscale=True).to_pil() for at in range(len(document))]
    drawn.unlink()
    return write(path, *(lambda canvas, each=each: canvas.drawInlineImage(each, 0, 0, 600, 800) for each in pictures))


def recognized(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]], int]:
    """The sections, what was left out, and how many pages were heard of."""
    heard: list[int] = []
    with closing(OpenFile(path, path.name, Tesseract("eng", lambda *said: heard.append(said[1])))) as file:
        found = list(read_file(file))
    sections = [(part.heading, part.text) for item in found if isinstance(item, Document) for part in item.sections]
    return sections, [(item.where, item.what) for item in found if isinstance(item, LeftOut)], max(heard, default=0)


@needs_tesseract
def test_scans_are_read_with_their_columns_and_tables(tmp_path: Path) -> None:
    columns = together(lines(LEFT, x=50, size=11, leading=14), lines(RIGHT, x=320, size=11, leading=14))
    rows = [["Drug", "Dose", "Level"], ["demoxetine", "5 mg", "12"], ["agent", "10 mg", "30"], ["other", "20 mg", "45"]]
    table = together(*(lines([row[at] for row in rows], x=50 + at * 150, size=12, leading=20) for at in range(3)))
    words = lines(["These are real words of the page and no picture of it,", "so that they are read as they are."])
    sections, _, pages = recognized(scanned_and_drawn(tmp_path, [columns, table], words))
    assert [text for _, text in sections] == [
        f"{' '.join(LEFT)}\n{' '.join(RIGHT)}",
        "Drug: demoxetine; Dose: 5 mg; Level: 12\nDrug: agent; Dose: 10 mg; Level: 30\n"
        "Drug: other; Dose: 20 mg; Level: 45",
        "These are real words of the page and no picture of it, so that they are read as they are.",
    ]
    assert pages == 2


def scanned_and_drawn(folder: Path, pictures: Sequence[Draw], words: Draw) -> Path:
    """Scanned pages, and a page with words after them."""
    writer = PdfWriter()
    for part in (scanned(folder / "scans.pdf", *pictures), write(folder / "words.pdf", words)):
        writer.append(PdfReader(part))
    writer.write(folder / "both.pdf")
    return folder / "both.pdf"


@needs_tesseract
def test_pages_of_low_confidence_and_pictures_without_text_are_named(tmp_path: Path) -> None:
    def blurred(canvas: Canvas) -> None:
        lines([*LEFT, *RIGHT], size=7, leading=9)(canvas)

    def disc(canvas: Canvas) -> None:
        canvas.circle(300, 400, 200, fill=1)

    _, left_out, pages = recognized(
        scanned(tmp_path / "a.pdf", blurred, disc, lines(LEFT, size=30, leading=40), dpi=45)
    )
    assert pages == 3
    assert ("a.pdf, page 2", "has no text") in left_out
    assert ("a.pdf, page 1", "has recognized text of low confidence") in left_out


@needs_tesseract
@pytest.mark.parametrize("dpi", [80, 100, 150, 300])
def test_a_dose_is_read_from_coarse_and_fine_scans_or_its_page_is_named(tmp_path: Path, dpi: int) -> None:
    ((_, text),), left_out, _ = recognized(scanned(tmp_path / "a.pdf", lines(["Give demoscan 5 mg"], size=12), dpi=dpi))
    assert text == "Give demoscan 5 mg" or left_out == [("a.pdf, page 1", "has recognized text of low confidence")]
    assert dpi < 150 or text == "Give demoscan 5 mg"


@needs_tesseract
def test_an_index_recognizes_what_is_added_later_too(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    scanned(corpus / "a.pdf", lines(LEFT, size=12, leading=16))
    assert build_index(corpus, tmp_path / "index", SMALL, settings=WITH_OCR).num_passages == 1
    assert Manifest.read(tmp_path / "index").settings.ocr == "eng"
    scanned(corpus / "b.pdf", lines(RIGHT, size=12, leading=16))
    heard: list[str] = []
    added = sync_index(tmp_path / "index", corpus, SMALL, progress=lambda stage, *_: heard.append(stage))
    assert added.num_passages == 2
    assert heard.count("text recognition") == 2, "before and after the page of b.pdf; a.pdf is not read again"
    assert not index_stats(tmp_path / "index").get("left_out")
    with pytest.raises(CorpusError, match=r"found xyz, wanted languages that Tesseract has, joined by \+: .*eng"):
        build_index(corpus, tmp_path / "other", SMALL, settings=replace(WITH_OCR, ocr="eng+xyz"))


def test_without_the_program_a_build_says_so_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "a.txt").write_text("Rest is first.")
    built = build_index(tmp_path / "a.txt", tmp_path / "index", SMALL, settings=WITH_OCR)
    assert built.num_passages == 1, "no PDF is among them"
    scan = write(tmp_path / "b.pdf", lambda canvas: canvas.rect(50, 50, 100, 100))
    with pytest.raises(CorpusError, match="apt-get install tesseract-ocr"):
        add_to_index(tmp_path / "index", scan, SMALL)
    with pytest.raises(CorpusError, match="apt-get install tesseract-ocr"):
        build_index(scan, tmp_path / "other", SMALL, settings=WITH_OCR)
    assert not (tmp_path / "other").exists()


def test_an_index_without_ocr_has_the_version_it_had(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Rest is first.")
    built = build_index(tmp_path / "a.txt", tmp_path / "index", SMALL)
    assert built.version != replace(built, settings=replace(built.settings, ocr="eng")).version
    assert as_corpus(tmp_path / "a.txt").parts[0].fingerprint.count(":") == 1
