"""`read` shows a passage's neighbours and its document, as far as the corpus, a filter and a job let it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from medagent.agent import Agent, GivenSearch, Job
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.controls import UnreliableRetriever
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.filters import Filter
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.remote import RemoteRetriever
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.tool_calls import ToolCall, ToolResult
from medagent.tools.base import CallContext, run_calls
from medagent.tools.corpus import READ
from medagent.types import Question
from tests.recording import Finds
from tests.retrieval.server import Serving

PASSAGES = [
    Passage.make("Gout", f"Sentence {n}.", id=f"g{n}", document="gout", section="Care" if n == 2 else "", year=2000 + n)
    for n in range(1, 9)
] + [Passage.make("Lone", "A passage of its own.", id="lone")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read") / "index"
    build_index(PASSAGES, folder, HashedNgramEmbedder(64))
    return folder


def read(
    retriever: Retriever, *, where: str = "", seen: tuple[str, ...] = (), withheld: str = "", **asked: Any
) -> ToolResult:
    batcher = SearchBatcher(retriever, top_k=3).within(Filter.parse(where) if where else Filter())
    shown = [passage for id_ in seen for passage in PASSAGES if passage.id == id_]
    context = CallContext(batcher.search, batcher, shown, frozenset({withheld} - {""}))
    return asyncio.run(run_calls([ToolCall("read", asked)], [READ], context))[0]


def ids(result: ToolResult) -> list[str]:
    return [hit.passage.id for hit in result.hits]


def test_neighbours_and_pages_of_a_document(index: Path) -> None:
    local = HybridRetriever(str(index))
    served = Serving(index)
    for corpus in (local, UnreliableRetriever(local), RemoteRetriever(served.url)):
        assert ids(read(corpus, passage="2", seen=("lone", "g4"))) == ["g3", "g4", "g5"]
        assert ids(read(corpus, passage="[1]", seen=("g1",))) == ["g1", "g2", "g3"]
        assert ids(read(corpus, passage=1, seen=("g4",), part=5)) == ["g5", "g6", "g7", "g8"]
        assert ids(read(corpus, passage="gout", part=1)) == ["g1", "g2", "g3", "g4", "g5"]
        assert ids(read(corpus, passage="lone")) == ["lone"]
        assert "the document has 8 parts, found part 9" in read(corpus, passage="g1", part=9).error
        assert "no passage '7' in the corpus; 1 are numbered" in read(corpus, passage="7", seen=("g1",)).error
    served.stop()
    assert [hit.passage.section for hit in read(local, passage="g2").hits] == [
        "part 1 of 8",
        "Care, part 2 of 8",
        "part 3 of 8",
    ]


def test_a_filter_and_what_is_withheld_stay_hidden(index: Path) -> None:
    local = HybridRetriever(str(index))
    assert ids(read(local, passage="g4", where="year>=2004")) == ["g4", "g5", "g6"]
    assert ids(read(HybridRetriever(str(index), where="year<=2004"), passage="g4")) == ["g3", "g4"]
    assert "no passage 'g1'" in read(local, passage="g1", where="year>=2004").error
    assert "no passage 'g1'" in read(local, passage="g1", withheld="gout").error


def test_where_passages_are_given_no_other_is_read(index: Path, tokenizer: Any) -> None:
    said = ["<search>read: g5</search>", "<answer>none</answer>"]
    policy = ScriptedPolicy(tokenizer, lambda read, turn: said[turn])
    agent = Agent(policy, HybridRetriever(str(index)), tools=(READ,))
    job = Job(Question("q", "Gout?", answer="x"), given=GivenSearch("gout", (Hit(PASSAGES[0], 0.0),)))
    (rollout,) = agent.run_all([job])
    assert [hit.passage.id for hit in rollout.hits] == ["g1"]
    assert "only the passages that were shown" in tokenizer.decode(rollout.turns[1].observation_ids)


def test_a_corpus_that_cannot_be_read_says_so() -> None:
    assert read(Finds(), passage="1").error.endswith("the documents of this corpus cannot be read, only searched")
