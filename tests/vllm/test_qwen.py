"""Real vLLM and real weights: Qwen2.5-Coder-0.5B-Instruct, with a LoRA, gives the dialogues of the in-process sampler.

MEDAGENT_QWEN_GGUF names its GGUF file. In float32, as rounding to bfloat16 decides near ties.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Agent, Job
from medagent.engines.base import EngineSetup
from medagent.engines.vllm import VllmEngine
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.vllm.server import VllmSettings
from medagent.protocol import TagProtocol
from medagent.training.engines import InProcessEngine, ModuleWeights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.types import Limits
from tests.training.support import perturb

WEIGHTS = os.environ.get("MEDAGENT_QWEN_GGUF", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not WEIGHTS, reason="MEDAGENT_QWEN_GGUF names no Qwen2.5-Coder-0.5B-Instruct"),
]
PROTOCOL = TagProtocol(chat=True, instructions="Search first: <search>words</search>. Then: <answer>text [1]</answer>")
LIMITS = Limits(max_turns=2, max_turn_tokens=24, max_observation_tokens=100, max_total_tokens=384)
QUESTIONS = [replace(question, options=()) for question in StarterBenchmark("train", limit_per_kind=4).questions()]


def test_greedy_dialogues_are_those_of_the_process(retriever, tmp_path: Path) -> None:
    module = AgentModule(WEIGHTS, dtype="float32", policy_lora=LoraSettings(rank=8, alpha=16), critic_lora=None)
    assert sum(parameter.numel() for parameter in module.shared_base.base.parameters()) < 510_000_000, "tied"
    perturb(module, scale=0.01)
    weights = ModuleWeights(module)
    probe = tuple(PROTOCOL.encode_prompt(module.tokenizer, QUESTIONS[0]))
    jobs = [Job(question, seed=i, temperature=0.0, force_search=i % 2 == 0) for i, question in enumerate(QUESTIONS)]
    with closing(VllmEngine(settings=VllmSettings(enforce_eager=True))) as engine:
        engine.start(weights, EngineSetup(tmp_path, LIMITS.max_total_tokens, probe))
        theirs, ours = (
            Agent(each.sync_weights(weights, version=1), retriever, PROTOCOL, LIMITS, 2).run_all(jobs)
            for each in (engine, InProcessEngine())
        )
        gap = engine.metrics()["sampler/probe_gap"]
    assert len(ours) == 8
    assert [rollout.token_ids for rollout in theirs] == [rollout.token_ids for rollout in ours]
    assert [rollout.stop_reason for rollout in theirs] == [rollout.stop_reason for rollout in ours]
    assert any(rollout.num_searches for rollout in ours)
    assert gap < 1e-3
