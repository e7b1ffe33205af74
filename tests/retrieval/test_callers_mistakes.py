"""What callers get wrong is said: misspelt fields, empty queries. And ids may look like paths."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.readers import Skipped
from medagent.retrieval.search import HybridRetriever

IDS = ["/guidelines/sepsis.md", "C:/docs/gout.pdf", "a%20b", "guidelines/flu.md", "pmid:1#2", "../up", "ä ö?&=#"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    passages = [Passage.make("", f"Passage {n} on fictospirin.", f"S{n % 2}", id=id_) for n, id_ in enumerate(IDS)]
    build_index(passages, folder, HashedNgramEmbedder(64))
    return folder


def test_mcp_reads_every_uri_that_search_gives_and_refuses_unknown_arguments(folder: Path) -> None:
    pytest.importorskip("mcp")
    from mcp import Client

    from medagent.retrieval.mcp_server import make_server

    async def talk() -> None:
        async with Client(make_server(HybridRetriever(str(folder)))) as client:
            found = await client.call_tool("search", {"query": "fictospirin", "top_k": 20})
            rows = found.structured_content["passages"]
            assert {row["id"] for row in rows} == set(IDS)
            for row in rows:
                read = await client.read_resource(row["uri"])
                assert json.loads(read.contents[0].text)["id"] == row["id"]
            for arguments in ({"query": "fictospirin", "source": ["S1"]}, {"query": " "}):
                assert (await client.call_tool("search", arguments)).is_error
            (tool,) = (await client.list_tools()).tools
            assert tool.input_schema["additionalProperties"] is False

    asyncio.run(talk())


def test_the_command_line_takes_one_source_and_refuses_an_empty_query(folder: Path, capsys) -> None:
    assert main(["search", "fictospirin", "--index", str(folder), "--source", "S1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["source"] for row in rows} == {"S1"}
    assert main(["search", " ", "--index", str(folder)]) == 1
    assert "query is empty" in capsys.readouterr().err


def test_what_a_folder_hides_is_counted(tmp_path: Path) -> None:
    corpus, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    corpus.mkdir()
    elsewhere.mkdir()
    (corpus / "a.jsonl").write_text('{"text": "a"}\n')
    (corpus / "zero.jsonl").write_text("")
    (corpus / "b.png").write_bytes(b"")
    (elsewhere / "b.jsonl").write_text('{"text": "b"}\n')
    (corpus / "linked").symlink_to(elsewhere)
    (corpus / "file.jsonl").symlink_to(elsewhere / "b.jsonl")
    (corpus / "broken.jsonl").symlink_to(tmp_path / "nowhere")
    (corpus / "locked").mkdir(mode=0)
    read = {part.name: [item for item, _ in part.read()] for part in file_corpus(corpus).parts}
    reasons = {name: found[0].reason for name, found in read.items() if isinstance(found[0], Skipped)}
    assert len(read["a.jsonl"]) == len(read["file.jsonl"]) == 1
    wanted = {"zero.jsonl": "is empty", "b.png": "kind", "linked": "link to a folder", "broken.jsonl": "leads nowhere"}
    if os.geteuid():  # root enters every folder
        wanted["locked"] = "cannot be entered"
    assert set(reasons) == set(wanted)
    assert all(part in reasons[name] for name, part in wanted.items())
    (corpus / "locked").chmod(0o700)
