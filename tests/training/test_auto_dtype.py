"""What a run settles by itself is kept: a resumed run, the agent and its server take the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from medagent.agent_folder import load_agent
from medagent.errors import ConfigError
from medagent.models import precision
from medagent.models.base_models import STARTER, model_path
from medagent.training.command import train_command
from medagent.training.module import AgentModule
from medagent.training.run import newest_checkpoint
from medagent.training.sft.supervised import SupervisedModule
from tests.training.support import arguments, numbers

SMALL_RUN = {"data.num_questions": 4, "data.num_minibatches": 1}


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch):
    """Says whether this processor has bfloat16, and that the starter's size is worth it."""
    monkeypatch.setattr(precision, "SMALLEST", 1000)

    def has(able: bool) -> None:
        monkeypatch.setattr(precision, "hardware", lambda device: f"this {device} has bfloat16" if able else "")

    return has


@pytest.mark.long
def test_a_run_keeps_the_dtype_that_it_began_in(
    hardware, tmp_path: Path, train_index: Path, retriever, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"model.base_model": model_path(STARTER)}
    for name, able in (("one", (True, True)), ("other", (True, False))):
        run = tmp_path / name
        for epochs, has in enumerate(able, start=1):
            hardware(has)
            train_command(arguments(run, train_index, epochs=epochs, **SMALL_RUN, **base))
        said = capsys.readouterr().out
        assert said.count("model.dtype:") == 2
        assert "in bfloat16, as this cpu has bfloat16, and the base has 1 M parameters" in said
        assert "in bfloat16, as the run began in it" in said
        assert yaml.safe_load((run / "config.yaml").read_text())["model"]["dtype"] == "auto"
        assert json.loads((run / "agent" / "agent.json").read_text())["dtype"] == "bfloat16"
        assert torch.load(newest_checkpoint(run), weights_only=True)["dtype"] == "bfloat16"
    assert numbers(tmp_path / "one") == numbers(tmp_path / "other")
    assert load_agent(run / "agent", retriever=retriever).policy.model.dtype is torch.bfloat16
    hardware(False)
    train_command([*arguments(run, train_index, epochs=1, **SMALL_RUN, **base), "--overwrite=true"])
    assert "in float32, as this processor has no bfloat16" in capsys.readouterr().out
    assert json.loads((run / "agent" / "agent.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("module", [AgentModule, SupervisedModule])
def test_a_module_settles_by_itself(hardware, module, capsys: pytest.CaptureFixture[str]) -> None:
    hardware(True)
    made = module(model_path(STARTER))
    assert (made.dtype_name, made.shared_base.base.dtype) == ("bfloat16", torch.bfloat16)
    assert capsys.readouterr().out.count("in bfloat16, as") == 1
    assert module(model_path(STARTER), dtype="float32").dtype_name == "float32"
    assert module(STARTER).dtype_name == "float32"
    assert not capsys.readouterr().out, "what is set, and the starter, need no words"


def test_a_checkpoint_of_another_dtype_is_refused() -> None:
    module, checkpoint = AgentModule(STARTER), {"state_dict": {}}
    module.on_save_checkpoint(checkpoint)
    module.on_load_checkpoint(dict(checkpoint))
    with pytest.raises(ConfigError, match="found float32, and the checkpoint was trained in bfloat16. Set model.dtype"):
        module.on_load_checkpoint({**checkpoint, "dtype": "bfloat16"})
