"""The service with vLLM under it: the same answers as in process, and a new export's weights after a reload."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.agent_folder import save_agent
from medagent.agent_spec import read_spec
from medagent.cli.commands.ask import ServeCommand
from medagent.cli.serve import app_of
from medagent.engines.in_process import InProcessEngine
from medagent.engines.vllm import VllmEngine
from medagent.models.base_models import STARTER, model_path
from tests.medagent.serving.support import served, soon
from tests.training.support import make_module, perturb

pytestmark = pytest.mark.vllm

QUESTIONS = ["What is the first-line drug for gout?", "How is celiac disease confirmed?", "What causes cholera?"]


def answers(app: Any) -> list[Any]:
    with served(app) as url, httpx.Client(timeout=120) as client:
        return [answer(client, url, question) for question in QUESTIONS]


def answer(client: httpx.Client, url: str, question: str) -> Any:
    found = client.post(f"{url}/v1/answers", json={"question": question})
    assert found.status_code == 200, found.text
    return found.json()


def test_vllm_serves_what_the_process_serves_and_a_new_export_arrives(tmp_path: Path, index_folder: Path) -> None:
    module, folder = make_module(), tmp_path / "agent"
    spec = replace(read_spec(Path(model_path(STARTER))), base_model=STARTER)
    perturb(module)
    save_agent(folder, spec, module.tokenizer)
    module.shared_base.save_policy(folder / "adapter")
    still = ServeCommand(agent=str(folder), index=str(index_folder), poll_interval_s=0)
    here = answers(app_of(still, InProcessEngine()))
    with closing(VllmEngine()) as engine:
        app = app_of(replace(still, poll_interval_s=0.2), engine)
        with served(app) as url, httpx.Client(timeout=120) as client:
            for wanted, question in zip(here, QUESTIONS, strict=True):
                found = answer(client, url, question)
                assert [turn["query"] for turn in found["turns"]] == [turn["query"] for turn in wanted["turns"]]
                assert found["answer"]["text"] == wanted["answer"]["text"]
                assert found["answer"]["logprob"] == pytest.approx(wanted["answer"]["logprob"], abs=1e-3)
            perturb(module)
            module.shared_base.save_policy(folder / "adapter")
            soon(lambda: app.state.admission.replaced == 1, within_s=60)
            after = answer(client, url, QUESTIONS[0])
    again = answers(app_of(still, InProcessEngine()))[0]
    assert after["answer"]["text"] == again["answer"]["text"]
    assert after["answer"]["logprob"] == pytest.approx(again["answer"]["logprob"], abs=1e-3)
    assert again["answer"]["logprob"] != pytest.approx(here[0]["answer"]["logprob"], abs=1e-3)
