"""Real benchmark files, where they lie beside the repository (`../shared/data`); skipped elsewhere."""

from __future__ import annotations

import pytest

from medagent.agent import Agent
from medagent.evaluation.benchmarks import PubMedQABenchmark, pubmedqa_passages
from medagent.evaluation.metrics import summarize
from medagent.evaluation.run import run_benchmark
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.search import HybridRetriever
from medagent.types import Limits
from studies.starter_base.lessons import STARTER_PROTOCOL
from tests.support import SHARED_DATA

PUBMEDQA = SHARED_DATA / "pubmedqa" / "pqal_train500.json"
pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not PUBMEDQA.exists(), reason="the real PubMedQA file is not there"),
]


@pytest.fixture(scope="module")
def abstracts(tmp_path_factory: pytest.TempPathFactory) -> HybridRetriever:
    folder = tmp_path_factory.mktemp("pubmedqa")
    build_index(pubmedqa_passages(str(PUBMEDQA)), folder, HashedNgramEmbedder())
    return HybridRetriever(str(folder))


def test_questions_find_their_own_abstracts(abstracts: HybridRetriever) -> None:
    questions = PubMedQABenchmark(str(PUBMEDQA)).questions()
    assert len(questions) == 500
    results = abstracts.search([question.text for question in questions], top_k=5)
    found = [
        question.gold_passage_ids[0] in {hit.passage.id for hit in hits}
        for question, hits in zip(questions, results, strict=True)
    ]
    assert sum(found) / len(found) > 0.95


def test_no_long_answer_is_indexed(abstracts: HybridRetriever) -> None:
    import json

    rows = json.loads(PUBMEDQA.read_text())
    by_id = {passage.id: passage.indexed_text for passage in abstracts.passages}
    for pmid, row in rows.items():
        if row["LONG_ANSWER"] not in " ".join(row["CONTEXTS"]):
            assert row["LONG_ANSWER"] not in by_id[f"pubmed:{pmid}"]


def test_rollouts_read_real_abstracts(abstracts: HybridRetriever, starter) -> None:
    agent = Agent(HFPolicy(*starter), abstracts, STARTER_PROTOCOL, Limits(3, 96, 400, 1200), top_k=2)
    questions = PubMedQABenchmark(str(PUBMEDQA), stop=6).questions()
    rollouts = run_benchmark(agent, questions, force_search=True)
    assert any(rollout.hits for rollout in rollouts)
    for rollout in rollouts:
        for hit in rollout.hits:
            assert hit.passage.id.startswith("pubmed:")
    assert summarize(rollouts).overall.n == 6
