"""An agent that was moved together with its index finds it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from medagent.agent_folder import load_agent, retriever_spec
from medagent.agent_spec import AgentSpec, RetrieverSpec, write_spec
from medagent.engines.base import Engine
from medagent.errors import ConfigError
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import SearchSettings
from medagent.types import Limits


def scripted(tokenizer) -> Engine:
    return SimpleNamespace(open=lambda *_, **__: ScriptedPolicy(tokenizer, lambda read, turn: ""))  # type: ignore


def opened(folder: Path, tokenizer) -> Path:
    """The folder of the index that the agent searches."""
    agent = load_agent(folder, engine=scripted(tokenizer))
    assert agent.retriever.search(["trachoma"], top_k=1)[0]  # type: ignore[union-attr]
    return Path(agent.retriever.folder)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("agent", "index"), [("agent", "index"), ("runs/one/agent", "indexes/mine"), ("agent", "agent/index")]
)
def test_moved_together(tokenizer, index_folder: Path, tmp_path: Path, capsys, agent: str, index: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(index_folder, old / index)
    (old / agent).mkdir(parents=True, exist_ok=True)
    searched = RetrieverSpec(str(old / index), "hashed-ngrams:1024:3-5", SearchSettings())
    write_spec(old / agent, AgentSpec("starter", "float32", TagProtocol(), Limits(), 2, searched))
    assert opened(old / agent, tokenizer) == old / index
    assert not capsys.readouterr().err
    old.rename(new)
    assert opened(new / agent, tokenizer) == new / index
    assert f"{new / index} is taken" in capsys.readouterr().err
    shutil.rmtree(new / index)
    with pytest.raises(ConfigError, match="Give its folder with --index"):
        load_agent(new / agent)


def test_a_filter_belongs_to_the_agent(tokenizer, index_folder: Path, tmp_path: Path) -> None:
    retriever = HybridRetriever(str(index_folder), where="title=trachoma")
    searched = retriever_spec(retriever)
    write_spec(tmp_path, AgentSpec("starter", "float32", TagProtocol(), Limits(), 2, searched))
    agent = load_agent(tmp_path, engine=scripted(tokenizer))
    found = agent.retriever.search(["gout drug"], top_k=5)[0]
    assert {hit.passage.title.lower() for hit in found} == {"trachoma"}
