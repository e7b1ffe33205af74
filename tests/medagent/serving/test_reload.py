"""An agent exported anew takes over while the service runs, and vLLM servers elsewhere answer as the weights here."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.cli.commands.ask import ServeCommand
from medagent.cli.serve import app_of, engine_of
from medagent.models.base_models import STARTER, model_path
from tests.fake_vllm import FakeVllm
from tests.medagent.serving.support import served, soon


def test_a_new_export_takes_the_next_questions_and_a_damaged_one_does_not(
    tmp_path: Path, index_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "agent"
    shutil.copytree(model_path(STARTER), folder)
    row = json.loads((folder / "agent.json").read_text())
    (folder / "examples.jsonl").write_text('{"question": "What treats gout?"}\n')
    command = ServeCommand(agent=str(folder), index=str(index_folder), poll_interval_s=0.05)
    app = app_of(command, engine_of(command))

    def ask(client: httpx.Client) -> Any:
        found = client.post("/v1/answers", json={"question": "What is the first-line drug for gout?"})
        assert found.status_code == 200, found.text
        return found.json()["answer"]

    with served(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/v1/agent").json()["examples"] == [{"question": "What treats gout?", "options": []}]
        first, searched = ask(client), app.state.admission.agent.retriever
        assert first["stop_reason"] == "answered"
        before = weakref.ref(app.state.admission.agent.policy)
        row["limits"]["max_turn_tokens"] = 2
        (folder / "agent.json").write_text(json.dumps(row))
        soon(lambda: app.state.admission.replaced == 1, within_s=60)
        assert ask(client)["stop_reason"] == "max_turn_tokens"
        assert app.state.admission.agent.retriever is searched, "the index stays open"
        gc.collect()
        assert before() is None, "the former weights are gone"
        (tmp_path / "damaged").write_bytes(b"damaged")
        (tmp_path / "damaged").replace(folder / "model.safetensors")  # never in place: the weights in use are mapped
        soon(lambda: "cannot be opened" in caplog.text, within_s=60)
        caplog.clear()
        (folder / "agent.json").write_text("{damaged")
        soon(lambda: "cannot be opened" in caplog.text, within_s=60)
        assert ask(client)["stop_reason"] == "max_turn_tokens", "the former one goes on"


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
            assert failed.status_code == 503, "its server is named, and the address's path is not"
            assert fake.url.removeprefix("http://") in failed.text
            assert fake.url not in failed.text
            fake.failing = False
            assert answer(url).status_code == 200, "and the service goes on"
