"""The benchmark of page texts: its labels, how it scores, and that our reader keeps to what it reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page_text import read
from benchmarks.pages.extractors import our_reader
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
