"""How a vLLM server is started, and what its workers hold. No vLLM: the process and its API are stand-ins."""

from __future__ import annotations

import importlib.util
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from medagent.errors import ConfigError
from medagent.policies.vllm.server import MODEL, VllmServer, VllmSettings


class Process:
    """A process that runs until it is closed."""

    lines: ClassVar[list[list[str]]] = []

    def __init__(self, line: list[str], **settings: Any) -> None:
        self.lines.append(line)
        self.stdin = io.BytesIO()

    def wait(self, timeout: float = 0.0) -> int:
        return 0


class Api:
    """Gives prepared answers."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.answers = answers

    def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"results": self.answers[body["method"]]}


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("json" if name == "vllm" else name))
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(VllmServer, "_signal", lambda self, number: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def options(tmp_path: Path, *, settings: VllmSettings = VllmSettings(), **rest: Any) -> dict[str, str]:
    """The options of the command line, flags with an empty value."""
    made = {"dtype": "bfloat16", "max_model_len": 513, **rest}
    VllmServer("base", **made, settings=settings, log=tmp_path / "log").close()
    found: dict[str, str] = {}
    for part in Process.lines[-1][3:]:
        if part.startswith("--"):
            found[last := part.removeprefix("--")] = ""
        else:
            found[last] = part
    return found


def test_the_model_is_served_as_training_needs_it(no_vllm, tmp_path: Path) -> None:
    found = options(tmp_path, lora_rank=5, sleeps=True, settings=VllmSettings(max_sequences=7, tensor_parallel=2))
    wanted = {
        "model": "base",
        "served-model-name": MODEL,
        "dtype": "bfloat16",
        "max-model-len": "513",
        "max-num-seqs": "7",
        "tensor-parallel-size": "2",
        "logprobs-mode": "processed_logprobs",  # of the tempered scores, which the update computes too
        "generation-config": "vllm",  # the model's own truncation and penalties stay out
        "max-lora-rank": "8",
        "max-loras": "1",
        "enable-lora": "",
        "enable-sleep-mode": "",
        "enable-prefix-caching": "",
    }
    assert {name: found.get(name) for name in wanted} == wanted


def test_what_is_not_asked_for_is_off(no_vllm, tmp_path: Path) -> None:
    found = options(tmp_path)
    assert not {"enable-lora", "max-lora-rank", "enable-sleep-mode"} & set(found)
    own = options(tmp_path, settings=VllmSettings(options={"max-num-seqs": "3"}))
    assert own["max-num-seqs"] == "3", "the user's own options win"


def test_an_adapter_too_wide_is_refused(no_vllm, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Lower model.policy_lora.rank"):
        options(tmp_path, lora_rank=1024)


@pytest.fixture
def server(no_vllm, tmp_path: Path) -> Iterator[VllmServer]:
    made = VllmServer("base", dtype="float32", max_model_len=64, log=tmp_path / "log")
    yield made
    made.close()


@pytest.mark.parametrize("other", [0, 1])
def test_only_what_all_workers_hold_alike_counts(server: VllmServer, other: int) -> None:
    workers = [{"1": {"a": (1, 2), "b": (3, 4)}}, {"1": {"a": (1, 2), "b": (3, 5)}}]
    server.api = Api({"held_adapters": [workers[other], workers[1 - other]]})
    assert server.held_adapter() == {"a": (1, 2)}
    server.api = Api({"held_adapters": [workers[0], {"1": {"a": (1, 2)}}]})
    assert server.held_adapter() == {"a": (1, 2)}


def test_of_a_workers_adapters_the_newest_counts(server: VllmServer) -> None:
    old, new = {"a": (1, 1)}, {"a": (2, 2)}
    server.api = Api({"held_adapters": [{"9": old, "10": new}, {"10": new, "9": old}]})
    assert server.held_adapter() == {"a": (2, 2)}
    server.api = Api({"held_adapters": [{"9": old}, {}]})
    assert server.held_adapter() == {}
