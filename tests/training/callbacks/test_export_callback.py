"""The agent that a run exports: rules, base and precision are those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from medagent.agent_spec import read_spec
from medagent.protocol import TagProtocol
from medagent.training.agent_data import AgentSettings
from medagent.training.callbacks import AgentExport
from medagent.types import Limits
from tests.training.support import make_data, make_module

RULES = AgentSettings(TagProtocol(instructions="Be brief.", date="2024-05-02"), Limits(3, 41, 130, 470), top_k=3)


@pytest.mark.parametrize(("dtype", "quantise"), [("float32", "none"), ("bfloat16", "nf4")])
def test_an_exported_agent_is_the_one_that_was_trained(
    dtype: str, quantise: str, retriever, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, data = make_module(dtype=dtype), make_data(retriever)
    data.agent_settings = RULES
    monkeypatch.setattr(module, "execution", replace(module.execution, quantise=quantise))
    trainer = SimpleNamespace(
        datamodule=data, is_global_zero=True, callback_metrics={}, default_root_dir=tmp_path, current_epoch=4
    )
    AgentExport.export(trainer, module)
    spec = read_spec(tmp_path / "agent")
    assert (spec.dtype, spec.quantise) == (dtype, quantise)
    assert (spec.protocol, spec.limits, spec.top_k) == (RULES.protocol, RULES.limits, RULES.top_k)
    assert spec.training["iterations"] == "5"


@pytest.mark.parametrize(("every", "exported"), [(None, [9]), (4, [3, 7, 9])])
def test_an_agent_is_exported_when_it_is_due(every, exported, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(AgentExport, "export", staticmethod(lambda trainer, module: done.append(trainer.current_epoch)))
    for epoch in range(10):
        AgentExport(every).on_train_epoch_end(SimpleNamespace(current_epoch=epoch, max_epochs=10), None)
    assert done == exported
