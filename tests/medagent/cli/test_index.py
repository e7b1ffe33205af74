"""`medagent index ...` and `medagent search`, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.manifest import Manifest
from tests.retrieval.server import Serving
from tests.retrieval.support import MEDLINE, write_pdf


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "a.xml").write_text(MEDLINE)
    write_pdf(folder / "b.pdf", "Sepsis needs antibiotics within the hour.")
    (folder / "c.pdf").write_text("no PDF")
    return folder


def out_of(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(list(arguments)) == status
    found = capsys.readouterr()
    return found.err if status else found.out


def test_an_index_from_build_to_removal(corpus: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = str(tmp_path / "index")
    built = out_of(capsys, "index", "build", str(corpus), "--out", out, "--max_tokens", "64", "--overlap_tokens", "0")
    assert "3 passages, embedder hashed-ngrams:1024:3-5" in built
    assert "Documents: 3 added, 4 skipped." in built
    assert "skipped: c.pdf (is no readable PDF" in built
    assert "skipped: a.xml, pmid:104 (is a retracted publication)" in built
    kept = [json.loads(line) for line in (Path(out) / "changes.jsonl").read_text().splitlines()]
    assert [row["change"] for row in kept].count("skipped") == 4
    settings = Manifest.read(Path(out)).settings
    assert (settings.chunking.max_tokens, settings.analyser, settings.search.dense_weight) == (64, "medical", 0.25)

    hits = [
        json.loads(line)
        for line in out_of(capsys, "search", "digoxin", "--index", out, "--json", "--top_k", "2").splitlines()
    ]
    assert hits[0]["id"] == "pmid:102"
    assert hits[0]["year"] == 1998
    shown = out_of(capsys, "search", "gout pain", "--index", out, "--year_from", "2015")
    assert "Colchicine for acute gout." in shown
    assert "PubMed: J Gout, 2019" in shown
    assert "Nothing found." in out_of(capsys, "search", "gout", "--index", out, "--source", "[Nature*]")

    (corpus.parent / "more.csv").write_text("id,title,content\nN1,Fever,Paracetamol lowers fever.\n")
    assert "4 passages" in out_of(capsys, "index", "add", out, str(corpus.parent / "more.csv"))
    more = corpus.parent / "more.csv"
    more.write_text("id,title,content\nN2,Fever,Ibuprofen lowers fever.\n")
    would = out_of(capsys, "index", "sync", out, str(more), "--dry_run", "true")
    assert "would change: 1 added, 1 gone." in would
    assert "Documents: 1 added, 1 gone." in out_of(capsys, "index", "sync", out, str(more))
    assert "Removed 1 passages" in out_of(capsys, "index", "remove", out, "[pmid:101]")
    assert "1 may come back" in out_of(capsys, "index", "restore", out, "[pmid:101]")
    assert "nothing was removed" in out_of(capsys, "index", "restore", out, "[pmid:101]", status=1)
    assert "no passage or document 'pmid:101'" in out_of(capsys, "index", "remove", out, "[pmid:101]", status=1)
    stats = json.loads(out_of(capsys, "index", "stats", "--json", out))
    assert (stats["passages"], stats["removed"], stats["skipped"]) == (3, 2, 4)
    assert "sources: " in out_of(capsys, "index", "stats", out)
    assert "3 passages" in out_of(capsys, "index", "verify", out)
    assert "Rebuilt" in out_of(capsys, "index", "rebuild", out)
    (Path(out) / "bm25" / "rows.npy").write_bytes(b"broken")
    assert "BM25 files cannot be read" in out_of(capsys, "index", "verify", out, status=1)
    assert "Rebuilt" in out_of(capsys, "index", "rebuild", out)
    with (Path(out) / "embeddings.f32").open("r+b") as file:
        file.write(b"\0\0\0A")
    assert "not those it was built with" in out_of(capsys, "index", "rebuild", out, status=1)
    assert "differs from its source of truth" in out_of(capsys, "index", "verify", out, status=1)


def test_searching_a_served_index(corpus: Path, tmp_path: Path, capsys) -> None:
    out_of(capsys, "index", "build", str(corpus), "--out", str(tmp_path / "index"))
    served = Serving(tmp_path / "index")
    local = out_of(capsys, "search", "digoxin", "--index", str(tmp_path / "index"), "--json", "true")
    assert out_of(capsys, "search", "digoxin", "--index", served.url, "--json", "true") == local
    served.stop()


def test_wrong_requests_are_explained(corpus: Path, tmp_path: Path, capsys) -> None:
    absent, new = ("--out", str(tmp_path / "x")), ("--out", str(tmp_path / "y"))
    for arguments, told in (
        (("nowhere",), "corpus nowhere: not found"),
        ((str(corpus), "--embedder", "word2vec"), "embedder 'word2vec': unknown"),
        ((str(corpus), "--max_tokens", "10", "--overlap_tokens", "9"), "overlap of at most half"),
    ):
        assert told in out_of(capsys, "index", "build", *arguments, *absent, status=1)
        assert arguments[0] != "nowhere" or not (tmp_path / "x").exists()
    (corpus / "new.txt").write_text("More.")
    build = ("index", "build", str(corpus), *new)
    out_of(capsys, *build)
    (corpus / "newer.txt").write_text("Even more.")
    assert "pass --overwrite" in out_of(capsys, *build, status=1)
    assert "5 passages" in out_of(capsys, *build, "--overwrite")
    assert "no manifest.json" in out_of(capsys, "index", "stats", str(tmp_path), status=1)
