"""`import medagent` is cheap, and gives an agent that answers in a line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import medagent
from medagent.api import LoadedAgent
from medagent.errors import ConfigError, InputError, PolicyError
from medagent.evidence.check import EvidenceCheck
from medagent.policies.scripted import ScriptedPolicy
from tests.medagent.serving.support import GOUT, Corpus, says
from tests.support import ROOT

QUESTION = "What is the first-line drug for gout?"


@pytest.fixture
def agent(policy: ScriptedPolicy) -> Iterator[LoadedAgent]:
    with LoadedAgent(medagent.Agent(policy, Corpus()), EvidenceCheck()) as agent:
        yield agent


@pytest.fixture
def policy(tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(tokenizer, says)


def test_the_import_is_cheap_and_loads_no_torch() -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import medagent; seconds = time.perf_counter() - began;"
        "print(seconds); heavy = 'torch transformers lightning chromadb medagent.retrieval'.split();"
        "assert not set(heavy) & set(sys.modules)"
    )
    tries = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert [run.stderr for run in tries] == [""] * 3
    assert min(float(run.stdout) for run in tries) < 0.1


def test_each_public_name_can_be_imported() -> None:
    assert {name: vars(medagent).get(name) or getattr(medagent, name) for name in medagent.__all__}
    assert set(medagent.__all__) <= set(dir(medagent))
    assert medagent.training is sys.modules["medagent.training"]
    assert callable(medagent.retrieval.build_index)  # mypy sees it
    with pytest.raises(AttributeError, match="load_agents"):
        _ = medagent.load_agents  # type: ignore[attr-defined]


def test_an_answer_has_its_verdict_citations_and_searches(agent: LoadedAgent) -> None:
    answer = agent.answer(QUESTION)
    assert (answer.text, answer.verdict.kind, answer.supported) == ("colchicine [1]", "stated", True)
    (cited,) = answer.citations
    assert (cited.id, cited.title, cited.text) == ("p1", "gout", GOUT.text)
    assert cited.quote == "The first-line drug is colchicine."
    assert [(search.query, search.passages) for search in answer.searches] == [("gout drug", (GOUT,))]
    choice = agent.answer(medagent.Question("q", QUESTION, ("colchicine", "aspirin")))
    assert choice == agent.answer(QUESTION, options=["colchicine", "aspirin"])
    assert choice == agent.answer(QUESTION, options={"A": "colchicine", "B": "aspirin"})


def test_it_answers_below_a_running_event_loop_and_in_several_threads(agent: LoadedAgent) -> None:
    async def notebook() -> str:
        return agent.answer(QUESTION).text

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: agent.answer(QUESTION).text, range(8)))
    assert {*texts, asyncio.run(notebook())} == {"colchicine [1]"}


def test_wrong_use_is_an_error_that_names_the_remedy(policy: ScriptedPolicy) -> None:
    agent = LoadedAgent(medagent.Agent(policy, Corpus()), EvidenceCheck())
    with pytest.raises(InputError, match="the question is empty"):
        agent.answer(" \u200b")
    with pytest.raises(InputError, match="wanted a list of texts"):
        agent.answer(QUESTION, options="colchicine")
    with pytest.raises(InputError, match="found the letters A, C"):
        agent.answer(QUESTION, options={"A": "colchicine", "C": "aspirin"})
    with pytest.raises(InputError, match="retriever="):
        medagent.load_agent("starter", index=Corpus())
    with pytest.raises(InputError, match="at most 10"):
        agent.answer(QUESTION, options=["x"] * 11)
    agent.close()
    agent.close()
    with pytest.raises(InputError, match="load_agent"):
        agent.answer(QUESTION)
    with pytest.raises(medagent.MedagentError, match="medagent index build"):
        medagent.load_agent("starter")


def test_an_error_of_the_model_reaches_the_caller(tokenizer: Any) -> None:
    def fails(read: str, turn: int) -> str:
        raise PolicyError("no memory")

    failing = LoadedAgent(medagent.Agent(ScriptedPolicy(tokenizer, fails), Corpus()), EvidenceCheck())
    with failing as agent, pytest.raises(PolicyError, match="no memory"):
        agent.answer(QUESTION)


def test_a_bare_hub_name_is_a_model_where_no_folder_has_it(
    tmp_path: Path, index_folder: Path, starter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else it waits for the network
    loaded: list[str] = []

    def on_the_hub(name: str, **_: Any) -> Any:
        loaded.append(name)
        if name == "org/typo":
            raise ConfigError(f"base model {name!r}: cannot be loaded.")
        return starter

    monkeypatch.setattr("medagent.agent_folder.load_causal_lm", on_the_hub)
    medagent.load_agent("org/name", index=index_folder).close()
    with pytest.raises(ConfigError, match=r"agent org/typo: there is no such folder.*hub.*'org/typo'"):
        medagent.load_agent("org/typo", index=index_folder)
    with pytest.raises(InputError, match=r"agent org/typo: there is no such folder.*hub.*--index"):
        medagent.load_agent("org/typo")
    assert loaded == ["org/name", "org/typo"]
    (tmp_path / "org" / "name").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"agent org/name: no agent\.json"):
        medagent.load_agent("org/name", index=index_folder)


def test_a_folder_of_a_checkout_is_not_imported_by_its_own_name() -> None:
    for name in ("training.module", "retrieval.search", "evaluation.run"):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"wanted medagent.{name.partition('.')[0]}." in done.stderr
