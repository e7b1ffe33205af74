"""Schemathesis asks what /openapi.json allows, and what it does not.

Every answer is a described one, and none a failure of ours.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode, checks
from starlette.testclient import TestClient

from medagent.agent import Agent
from medagent.evidence.kinds import EvidenceKind
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.bibliography import PASSAGE_KINDS, Bibliography
from medagent.retrieval.passages import Passage
from medagent.serving.app import make_app
from medagent.serving.schemas import SHAPES
from medagent.types import StopReason
from tests.medagent.serving.support import Corpus, says

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
OPERATIONS = 10
ASKED = {"model": "medagent", "input": "gout?"}


@pytest.fixture(scope="module")
def operations(tokenizer: Any) -> list[Any]:
    app = make_app(Agent(ScriptedPolicy(tokenizer, says), Corpus()), hosts=("*",))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return [found.ok() for found in schema.get_all_operations()]


def test_the_schema_has_every_kind_of_verdict_stop_and_passage() -> None:
    passage, answer = SHAPES["passage"]["properties"], SHAPES["answer"]["properties"]
    assert answer["verdict"]["properties"]["kind"]["enum"] == [each.value for each in EvidenceKind]
    assert set(answer["stop_reason"]["enum"]) == {each.value for each in StopReason} - {"error"}
    assert passage["kind"]["enum"] == list(PASSAGE_KINDS)
    assert passage.keys() == {each.name for kind in (Passage, Bibliography) for each in fields(kind)} - {"about"}


@pytest.mark.long
@pytest.mark.parametrize("number", range(OPERATIONS))
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_fits_the_openapi_schema(operations: list[Any], number: int, mode: GenerationMode) -> None:
    assert len(operations) == OPERATIONS
    asked, found = 0, set()
    path, positive = operations[number].path, mode is GenerationMode.POSITIVE

    @hypothesis.given(case=operations[number].as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.filter_too_much],  # of texts that are no part of a path
    )
    def ask(case: Any) -> None:
        nonlocal asked
        asked += 1
        if asked % 2:  # or else nearly all ask for what is not there
            if path == "/v1/chat/completions" and positive:
                case.body |= {"model": "medagent", "stream": False}
                case.body["messages"] = [*case.body["messages"], {"role": "user", "content": "gout?"}]
            if path == "/v1/responses" and positive:
                case.body |= {**ASKED, "previous_response_id": None, "stream": False}
            if path == "/v1/models/{model}":
                case.path_parameters = {"model": "medagent"}
            if path == "/v1/responses/{id}":
                case.path_parameters = {
                    "id": TestClient(operations[number].app).post("/v1/responses", json=ASKED).json()["id"]
                }
        found.add(case.call_and_validate(checks=CHECKS).status_code)

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE
        assert operations[number].method == "get", "without parameters nothing can be wrong"
        return
    assert asked
    assert mode is GenerationMode.NEGATIVE or 200 in found
