"""Documents of ten formats are indexed as a careful reader sees them; `right.jsonl` was written by hand.

`python -m tests.retrieval.test_documents FOLDER` prints what each document of a folder lacks, and the sums.
"""

import json
import re
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from medagent.retrieval import build_index
from medagent.retrieval.errors import CorpusError
from medagent.retrieval.settings import Chunking, IndexSettings
from medagent.retrieval.store import PassageStore
from tests.retrieval.support import SMALL

FOLDERS = [Path(__file__).parent / "documents" / name for name in ("open", "held_out")]
UNSPLIT = IndexSettings(Chunking(max_tokens=0, overlap_tokens=0))
SIGNS = {ord(sign): f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {ord("μ"): "µ", ord("\u2011"): "-"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "right.jsonl").read_text("utf-8").splitlines()]


def fold(text: str) -> str:
    return " ".join(text.translate(SIGNS).split())


def stands(fact: Any, texts: list[str]) -> bool:
    """Whether a sentence stands in a text, or all cells of a row in one line of a text."""
    if isinstance(fact, str):
        return any(fold(fact) in fold(text) for text in texts)
    cells = [re.compile(rf"(?<!\w){re.escape(fold(cell))}(?!\w)") for cell in fact["row"]]
    return any(all(cell.search(fold(line)) for cell in cells) for text in texts for line in text.splitlines())


def faults(folder: Path, right: dict[str, Any], out: Path) -> dict[str, list[Any]]:
    """What an index of the document lacks, what it holds against `never`, and what it says wrongly of the document."""
    passages, left_out, refused = [], [], []
    try:
        build_index(folder / right["file"], out, SMALL, settings=UNSPLIT)
        with closing(PassageStore(out, SMALL.dimension)) as store:
            passages, left_out = [passage for _, passage in store.stream()], store.skipped(table="left_out")
    except CorpusError as error:
        refused = [str(error)]
    texts = ["\n".join((passage.title, passage.section, passage.text)) for passage in passages]
    about = {
        "title": {passage.title.rstrip(".") for passage in passages},
        "year": {passage.year for passage in passages},
    }
    found = {
        "refused": refused,
        "doses lost": [fact for fact in right["doses"] if not stands(fact, texts)],
        "sentences lost": [fact for fact in right["sentences"] if not stands(fact, texts)],
        "forbidden": [text for text in right["never"] if stands(text, texts)],
        "not reported": ["what was left out"] if right["left_out"] and not left_out else [],
        **{name: [about[name]] for name in about if name in right and about[name] != set(right[name])},
    }
    return {kind: items for kind, items in found.items() if items}


@pytest.mark.parametrize(
    ("folder", "right"),
    [pytest.param(folder, row, id=row["file"]) for folder in FOLDERS for row in rows_of(folder)],
)
def test_a_document_says_what_its_reader_sees(folder: Path, right: dict[str, Any], tmp_path: Path) -> None:
    assert faults(folder, right, tmp_path) == {}


if __name__ == "__main__":
    sums = Counter[str]()
    for row in rows_of(folder := Path(sys.argv[1])):
        with TemporaryDirectory() as out:
            found = faults(folder, row, Path(out))
        sums.update({kind: len(items) for kind, items in found.items()} | {"sentences": len(row["sentences"])})
        print(row["file"], *(f"\n    {kind}: {items}" for kind, items in found.items()))
    print(f"{1 - sums['sentences lost'] / sums['sentences']:.1%} of sentences whole", dict(sums))
