"""Spans of a dialogue in OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from medagent import tracing
from medagent.agent import Agent, Job
from medagent.policies.scripted import ScriptedPolicy
from medagent.types import Question
from tests.medagent.serving.support import Corpus


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("medagent"))
    yield kept
    provider.shutdown()


def test_a_dialogue_is_a_span_with_its_calls_and_searches_inside(tokenizer: Any, spans: InMemorySpanExporter) -> None:
    said = ["<search>gout drug</search>", "<answer>colchicine [1]</answer>"]
    policy = ScriptedPolicy(tokenizer, lambda read, turn: said[turn])
    (rollout,) = Agent(policy, Corpus()).run_all([Job(Question("q1", "What treats gout?"))])
    found = {each.name: each for each in spans.get_finished_spans()}
    assert set(found) == {"invoke_agent medagent", "execute_tool search", "retrieval"}
    whole, call, search = (found[name] for name in ("invoke_agent medagent", "execute_tool search", "retrieval"))
    assert call.parent.span_id == whole.context.span_id
    assert search.parent.span_id == call.context.span_id
    assert whole.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert whole.attributes["gen_ai.conversation.id"] == "q1/0"
    assert whole.attributes["gen_ai.usage.output_tokens"] == rollout.num_action_tokens
    assert whole.attributes["medagent.stop_reason"] == "answered"
    assert call.attributes["gen_ai.tool.name"] == "search"
    assert search.attributes["medagent.passages"] == len(rollout.hits)
    assert "gout" not in str([each.attributes for each in found.values()]), "texts stay out"


def test_without_a_tracer_nothing_is_recorded(tokenizer: Any) -> None:
    with tracing.span("retrieval") as made:
        assert not made.is_recording()
