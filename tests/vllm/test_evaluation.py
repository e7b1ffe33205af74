"""A model behind vLLM's OpenAI server is measured as it is in this process.

Marked `vllm`: needs vLLM and a server's start.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.evaluation.support import asked_plainly

pytestmark = pytest.mark.vllm


@pytest.fixture
def address(tiny_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`vllm serve`, as a user starts it."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # `vllm serve` asks for a package of that name, and the CPU build has another.
    line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", tiny_base]
    line += ["--served-model-name", "tiny"]
    line += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    with (tmp_path / "vllm.log").open("wb") as log:
        server = subprocess.Popen([*line, "--max-model-len", "2048"], stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 300
        while True:
            assert server.poll() is None, (tmp_path / "vllm.log").read_text()[-4000:]
            assert time.monotonic() < deadline, (tmp_path / "vllm.log").read_text()[-4000:]
            try:
                httpx.get(f"http://127.0.0.1:{port}/health").raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.5)
                continue
            break
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def test_a_model_behind_vllm_replies_as_in_process(tiny_base: str, address: str, tmp_path: Path) -> None:
    ours = asked_plainly(["--agent", f"hf:{tiny_base}"], tmp_path)
    theirs = asked_plainly(["--agent", address, "--model", "tiny"], tmp_path)
    assert len(ours) == 6
    assert all(ours.values())
    assert theirs == ours
