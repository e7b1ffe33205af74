"""A year of PubMed's updates, in any order and again, ends in the state that PubMed is in; killed on the way too."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from medagent.retrieval import ingest
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.index import add_to_index, build_index
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.store import PassageStore
from tests.retrieval.libraries import held, notice, pubmed, record
from tests.retrieval.support import SMALL, problems

RECORDS, FILES, CALLS = 5_000, 50, 10
WORDS = "gout urate colchicine kidney joint pain dose trial women men placebo attack crystals daily weeks".split()
pytestmark = pytest.mark.long  # fifty files, eleven times


class Year:
    """Records and files of a made-up year, and the state that they lead to."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw, self.folder = random.Random(seed), folder
        folder.mkdir()
        self.final: dict[int, str] = {}
        retracted: set[int] = set()
        self.baseline = self.write(1, {pmid: self.text(pmid, 1) for pmid in range(1, RECORDS + 1)}, [], [])
        self.final = {pmid: self.text(pmid, 1) for pmid in range(1, RECORDS + 1)}
        self.updates, next_pmid = [], RECORDS + 1
        for number in range(2, FILES + 2):
            revised = {pmid: self.text(pmid, number) for pmid in self.draw.sample(sorted(self.final), 40)}
            new = {pmid: self.text(pmid, number) for pmid in range(next_pmid, next_pmid + 20)}
            next_pmid += 20
            deleted = self.draw.sample(sorted(set(self.final) - set(revised)), 5)
            noticed = self.draw.sample(sorted(set(self.final) - set(revised) - set(deleted)), 3)
            again = {pmid: self.text(pmid, number) for pmid in self.draw.sample(range(1, RECORDS), 3)}
            given = {**again, **revised, **new}
            self.updates.append(self.write(number, given, [pmid for pmid in deleted if pmid not in given], noticed))
            retracted |= set(noticed)
            self.final |= given
            for pmid in (*(pmid for pmid in deleted if pmid not in given), *retracted):
                self.final.pop(pmid, None)

    def text(self, pmid: int, number: int) -> str:
        """What a record says in a file."""
        said = random.Random(pmid * 1000 + number)
        return f"Record {pmid} of file {number}: " + " ".join(said.choices(WORDS, k=12)) + "."

    def write(self, number: int, records: dict[int, str], deleted: list[int], noticed: list[int]) -> Path:
        """A file: records, then notices of retraction, then deletions."""
        written = [record(pmid, text) for pmid, text in records.items()]
        written += [notice(pmid, by=10**6 + pmid) for pmid in noticed]
        return pubmed(self.folder, number, *written, deleted=tuple(deleted), year=26)

    def calls(self) -> list[list[Path]]:
        """The files of each call: shuffled, and every fifth a second time."""
        files = [*self.updates, *self.updates[::5]]
        self.draw.shuffle(files)
        return [files[at::CALLS] for at in range(CALLS)]


def state(index: Path) -> dict[int, str]:
    return {int(id_.removeprefix("pmid:")): text for id_, text in held(index).items()}


def apply(index: Path, files: list[Path], folder: Path) -> None:
    """Add files by a folder of their own, as a mirror of PubMed would hand them over."""
    folder.mkdir(exist_ok=True)
    for number, path in enumerate(files):
        place = folder / f"{number}"
        place.mkdir(exist_ok=True)
        if not (place / path.name).exists():
            (place / path.name).hardlink_to(path)
    add_to_index(index, file_corpus(folder), SMALL)


def test_updates_in_any_order_end_in_pubmeds_state(tmp_path: Path) -> None:
    year, index = Year(tmp_path / "pubmed", seed=0), tmp_path / "index"
    build_index(file_corpus(year.baseline), index, SMALL)
    for number, files in enumerate(year.calls()):
        apply(index, files, tmp_path / f"call{number}")
    assert state(index) == year.final
    assert not problems(index)
    (tmp_path / "fresh").mkdir()
    year.folder = tmp_path / "fresh"
    fresh = tmp_path / "fresh-index"
    build_index(file_corpus(year.write(99, year.final, [], [])), fresh, SMALL)
    queries = [text for _, text in sorted(year.final.items())[::100]]
    found = [HybridRetriever(str(each)).search(queries, top_k=1) for each in (index, fresh)]
    assert [hits[0].passage.id for hits in found[0]] == [hits[0].passage.id for hits in found[1]]


class Killed(BaseException):
    """What a kill looks like to the code that it ends."""


def test_killed_at_ten_moments_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    year, index = Year(tmp_path / "pubmed", seed=1), tmp_path / "index"
    build_index(file_corpus(year.baseline), index, SMALL)
    monkeypatch.setattr(ingest, "BATCH", 64)
    append, moments = PassageStore.append, random.Random(2)
    kills, left = 0, moments.randint(0, 6)

    def dying(self: PassageStore, *arguments: object, **more: object) -> None:
        nonlocal kills, left
        if left == 0 and kills < 10:
            kills += 1
            left = moments.randint(0, 9)
            if kills % 2:
                append(self, *arguments, **more)  # type: ignore[arg-type]
            raise Killed
        left -= 1
        append(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(PassageStore, "append", dying)
    for number, files in enumerate(year.calls()):
        while True:
            try:
                apply(index, files, tmp_path / f"call{number}")
            except Killed:
                continue
            break
    assert kills == 10
    assert state(index) == year.final
    assert not problems(index)
