"""How the service is started: what is wrong is said before anything is loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from medagent.cli.commands.ask import ServeCommand
from medagent.cli.serve import app_of, engine_of, indexed
from medagent.errors import ConfigError, InputError
from medagent.retrieval.remote import open_index
from medagent.serving.background import trim_memory
from medagent.serving.middleware import digest, read_api_key_hashes
from medagent.serving.page import read_examples
from medagent.serving.settings import AdmissionLimits


def test_wrong_settings_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"others could reach the agent.*--auth.api_key_hashes"):
        ServeCommand(host="0.0.0.0")
    (tmp_path / "tokens").write_text(f"{digest('a')} ward 3\nplain\n")
    with pytest.raises(ConfigError, match="found 1 of 2 lines"):
        read_api_key_hashes(tmp_path / "tokens")
    with pytest.raises(ConfigError, match="max_running 0"):
        AdmissionLimits(max_running=0)
    (tmp_path / "examples").write_text('{"question": ""}')
    with pytest.raises(ConfigError, match=r"examples .*cannot be read"):
        read_examples(tmp_path / "examples")
    for given, wanted in (
        ({"engine": "servers"}, "0 servers"),
        ({"engine": "vllm", "servers": ["http://a/v1"]}, "1 servers"),
        ({"vllm": {"gpu_memory": 0.5}}, "Give --engine vllm"),
        ({"engine": "vllm", "vllm": {"gpus": 2}}, "gpu_memory"),
        ({"engine": "servers", "servers": ["http://a/v1"]}, "--model"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            engine_of(ServeCommand(**given))
    elsewhere = ServeCommand(agent="starter", index="none", engine="servers", servers=["http://a/v1"], model="m")
    with pytest.raises(InputError, match="exported agent"):
        app_of(elsewhere, engine_of(elsewhere))


def test_a_corpus_is_indexed_and_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "leaflets"
    folder.mkdir()
    (folder / "gout.md").write_text("# Gout\n\nThe first-line drug is allopurinol.\n")
    index = indexed("leaflets")
    assert [hit.passage.title for hit in open_index(str(index)).search(["gout"], top_k=5)[0]] == ["Gout"]
    (folder / "gout.md").write_text("# Gout\n\nIt is treated with febuxostat.\n")
    (folder / "scurvy.md").write_text("# Scurvy\n\nIt is treated with vitamin C.\n")
    assert indexed(str(folder)) == index
    found = open_index(str(index)).search(["febuxostat"], top_k=5)[0]
    assert "febuxostat" in found[0].passage.text
    assert not any("allopurinol" in hit.passage.text for hit in found)
    with pytest.raises(ConfigError, match="--index"):
        ServeCommand(corpus="leaflets", index="elsewhere")


def test_memory_is_trimmed_where_glibc_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    asyncio.run(asyncio.wait_for(trim_memory(0.0), 5))
    trimmed = []
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(malloc_trim=trimmed.append))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(trim_memory(0.01), 0.5))
    assert len(trimmed) > 1
