"""The benchmark of page texts: its labels, how it scores, and that our reader keeps to what it reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page_text import read
from benchmarks.pages.extractors import our_reader, pypdf_plain
from benchmarks.pages.labels import LabelledPage, judge, labelled_documents

PAGE = LabelledPage(
    text=("Rest helps.", "Drink enough.", "Come back."),
    anywhere=("A note.",),
    unwanted=("Page 3", "Menu"),
    words=("fluid",),
    headings=("Care",),
    rows=(("Drug", "1 mg"), ("Other", "2")),
)


def test_a_page_is_judged_by_its_labels() -> None:
    text = "Menu\nCare\nDrink\nenough. Rest helps. A note.\nDrug: x; Dose: 1 mg\nOther: 12\nflu\u00adid"
    found = judge(PAGE, text)
    assert found.sentences == (3, 4)
    assert found.order == (0, 2), "the first two are the wrong way round, and the third is not there"
    assert found.unwanted == (1, 2)
    assert found.words == (2, 2)
    assert found.rows == (1, 2), "12 is not 2"


def test_there_are_thirty_pages() -> None:
    documents = [*labelled_documents("pdf"), *labelled_documents("html")]
    assert sum(len(document.pages) for document in documents) == 30
    assert len({document.name for document in documents}) == len(documents)
    assert labelled_documents("pdf")[0].content == labelled_documents("pdf")[0].content


@pytest.mark.parametrize("format_", ["pdf", "html"])
def test_our_reader_keeps_to_all_labels(format_: str, tmp_path: Path) -> None:
    kinds = read(labelled_documents(format_), our_reader, tmp_path)
    wrong = {
        (kind, name): counts
        for kind, row in kinds.items()
        for name, counts in row.items()
        if counts[0] != (0 if name == "unwanted" else counts[1])
    }
    assert not wrong


def test_a_library_alone_does_not(tmp_path: Path) -> None:
    counts = read(labelled_documents("pdf"), pypdf_plain, tmp_path)["all"]
    assert counts["sentences"][0] < 0.9 * counts["sentences"][1]
    assert counts["titles"][0] < counts["titles"][1] / 2
