"""Other engines under the service: vLLM servers elsewhere, by a stand-in that computes as vLLM does.

VLLM itself is in tests/vllm.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.cli.commands.ask import ServeCommand
from medagent.cli.serve import app_of, engine_of
from medagent.models.base_models import STARTER, model_path
from tests.fake_vllm import FakeVllm
from tests.medagent.serving.support import served

QUESTION = {"question": "What is the first-line drug for gout?", "options": ["colchicine", "insulin"]}


def answer(url: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/answers", json=QUESTION, timeout=60)


def test_servers_elsewhere_give_the_answers_of_the_weights_here(index_folder: Path) -> None:
    folder = model_path(STARTER)
    common: Any = {"agent": folder, "index": str(index_folder), "poll_interval_s": 0}
    inside = ServeCommand(**common)
    with served(app_of(inside, engine_of(inside))) as url:
        here = answer(url).json()
    with closing(FakeVllm("policy")) as fake:
        elsewhere = ServeCommand(engine="servers", servers=[f"{fake.url}/v1"], model="policy", **common)
        with served(app_of(elsewhere, engine_of(elsewhere))) as url:
            found = answer(url).json()
            assert found["turns"] == here["turns"]
            assert found["answer"]["text"] == here["answer"]["text"]
            assert found["answer"]["logprob"] == pytest.approx(here["answer"]["logprob"], abs=1e-4)
            fake.failing = True
            failed = answer(url)
            assert failed.status_code == 500
            assert fake.url not in failed.text
            fake.failing = False
            assert answer(url).status_code == 200, "and the service goes on"
