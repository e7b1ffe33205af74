"""A run on a base from a GGUF file: what it stores names the base so that it is found, and another base is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from peft import PeftModel
from transformers import AutoModelForCausalLM

from medagent.agent import Job
from medagent.agent_folder import load_agent, open_agent
from medagent.agent_spec import AgentSpec, read_spec, write_spec
from medagent.errors import ConfigError
from medagent.evaluation.fingerprints import agent_fingerprint
from medagent.export import export_adapter, export_merged
from medagent.models.base_models import PACKAGED, SMOLLM2, base_sha256, model_path
from medagent.training.command import train_command
from medagent.training.engines import EngineSetup, ModuleWeights, ServersEngine, VllmEngine
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import ModelShape
from medagent.training.module import AgentModule
from medagent.types import Question
from tests.medagent.models.gguf_files import write_gguf
from tests.training.support import AGENT, arguments

F16 = GGMLQuantizationType.F16
SMALL_RUN = {
    "data.num_questions": 4,
    "data.num_minibatches": 1,
    "data.agent.limits.max_total_tokens": 1500,
    "trainer.callbacks": "[{class_path: medagent.training.callbacks.AgentExport}]",
}
PROBE = torch.arange(3, 40)[None]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny GGUF, which is also what `smollm2` names."""
    monkeypatch.setenv("MEDAGENT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "site" / PACKAGED[SMOLLM2].package
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder.parent)
    file = folder / PACKAGED[SMOLLM2].file
    write_gguf(file, F16)
    monkeypatch.setitem(PACKAGED, SMOLLM2, replace(PACKAGED[SMOLLM2], sha256=base_sha256(str(file))))
    return file


def trained(run: Path, index: Path, base_model: str, *, epochs: int = 1) -> Path:
    return train_command(arguments(run, index, epochs=epochs, **SMALL_RUN, **{"model.base_model": base_model}))


def test_an_agent_on_smollm2_names_it_and_exports_as_a_plain_folder_or_an_adapter(
    base: Path, tmp_path: Path, train_index: Path, retriever, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path / "run", train_index, SMOLLM2)
    spec = read_spec(run / "agent")
    assert (spec.base_model, spec.base_sha256) == (SMOLLM2, base_sha256(SMOLLM2))
    adapter = json.loads((run / "agent" / "adapter" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == model_path(SMOLLM2), "peft reads a folder"
    base.rename(base.with_name("away.gguf"))
    with pytest.raises(ConfigError, match="make smollm2"):
        load_agent(run / "agent", retriever=retriever)
    base.with_name("away.gguf").rename(base)
    found = load_agent(run / "agent", retriever=retriever)
    assert found.run_all([Job(Question("q", "Gout?"), seed=0)])[0].turns

    export_merged(run / "agent", tmp_path / "merged")
    merged = read_spec(tmp_path / "merged")
    assert (merged.base_model, merged.base_sha256) == (".", "")
    whole = load_agent(tmp_path / "merged", retriever=retriever)
    assert torch.allclose(whole.policy.model(PROBE).logits, found.policy.model(PROBE).logits, atol=1e-5)

    capsys.readouterr()
    export_adapter(run / "agent", tmp_path / "alone")
    assert f"vllm serve {model_path(SMOLLM2)} --enable-lora" in capsys.readouterr().out
    assert 'base_model: "HuggingFaceTB/SmolLM2-135M-Instruct"' in (tmp_path / "alone" / "README.md").read_text()
    assert read_spec(tmp_path / "alone").base_sha256 == base_sha256(SMOLLM2)


def test_other_weights_in_the_file_are_refused_by_agent_and_run(
    base: Path, tmp_path: Path, train_index: Path, retriever
) -> None:
    file = tmp_path / "mine.gguf"
    write_gguf(file, F16, shift=0.5)
    run = trained(tmp_path / "run", train_index, str(file))
    spec = read_spec(run / "agent")
    assert (spec.base_model, spec.base_sha256) == (str(file), base_sha256(str(file)))
    load_agent(run / "agent", retriever=retriever)
    write_gguf(file, F16, shift=0.25)
    for use in (
        lambda: load_agent(run / "agent", retriever=retriever),
        lambda: export_merged(run / "agent", tmp_path / "merged"),
        lambda: ServersEngine(["http://127.0.0.1:9"], "m").open(run / "agent", spec),
    ):
        with pytest.raises(ConfigError, match="agent .*: was trained on a base with the SHA-256"):
            use()
    with pytest.raises(ConfigError, match="the run's checkpoint: was trained on a base"):
        trained(run, train_index, str(file), epochs=2)


def test_a_run_names_the_base_that_it_loaded(base: Path, tmp_path: Path) -> None:
    """Not the file that lies there when a checkpoint is written."""
    file = tmp_path / "mine.gguf"
    write_gguf(file, F16, shift=0.5)
    module, loaded = AgentModule(str(file)), base_sha256(str(file))
    write_gguf(file, F16, shift=0.25)
    assert base_sha256(str(file)) != loaded
    checkpoint: dict = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    assert checkpoint["base_sha256"] == loaded


def test_an_adapter_of_other_weights_in_the_file_is_no_start(base: Path, tmp_path: Path) -> None:
    file, agent = tmp_path / "mine.gguf", tmp_path / "agent"
    write_gguf(file, F16, shift=0.5)
    lora = LoraSettings(rank=4, alpha=8)
    AgentModule(str(file), policy_lora=lora).shared_base.save_policy(agent / "adapter")
    spec = AgentSpec(str(file), "float32", AGENT.protocol, AGENT.limits, 2, None, base_sha256=base_sha256(str(file)))
    write_spec(agent, spec)
    start = replace(lora, start=str(agent))
    assert AgentModule(str(file), policy_lora=start).shared_base.has_own_reference
    write_gguf(file, F16, shift=0.25)
    with pytest.raises(ConfigError, match=r"policy_lora\.start .*: was trained on a base with the SHA-256"):
        AgentModule(str(file), policy_lora=start)


def test_an_agent_called_as_a_base_is_known_by_its_files(base: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / SMOLLM2).mkdir()
    (tmp_path / SMOLLM2 / "agent.json").write_text("{}")
    before = agent_fingerprint(SMOLLM2)
    assert before != agent_fingerprint(f"hf:{SMOLLM2}")
    (tmp_path / SMOLLM2 / "agent.json").write_text("[]")
    assert agent_fingerprint(SMOLLM2) != before


def test_every_door_takes_the_name(base: Path, index_folder: Path, tmp_path: Path, monkeypatch) -> None:
    assert open_agent(f"hf:{SMOLLM2}", index=str(index_folder)).policy.model.config.vocab_size == 320
    assert open_agent(f"hf:{base}", index=str(index_folder)).policy.model.config.vocab_size == 320
    assert agent_fingerprint(f"hf:{SMOLLM2}") == agent_fingerprint(f"hf:{base}") == base_sha256(SMOLLM2)
    assert ModelShape.of(SMOLLM2).vocabulary == 320

    started = []

    class Server:
        def __init__(self, model: str, **settings: object) -> None:
            started.append(model)

        def close(self) -> None:
            pass

    monkeypatch.setattr("medagent.engines.vllm.VllmServer", Server)
    engine = VllmEngine()
    engine.start(ModuleWeights(AgentModule(SMOLLM2)), EngineSetup(tmp_path, 512, (3, 4)))
    assert started == [model_path(SMOLLM2)]


@pytest.mark.long
@pytest.mark.skipif(find_spec(PACKAGED[SMOLLM2].package) is None, reason="needs SmolLM2: make smollm2")
def test_smollm2_itself_trains_for_two_iterations(tmp_path: Path, train_index: Path, retriever) -> None:
    run = trained(tmp_path / "run", train_index, SMOLLM2, epochs=2)
    spec = read_spec(run / "agent")
    assert (spec.base_model, spec.base_sha256) == (SMOLLM2, PACKAGED[SMOLLM2].sha256)
    plain = AutoModelForCausalLM.from_pretrained(model_path(SMOLLM2), dtype=getattr(torch, spec.dtype))
    adapted = PeftModel.from_pretrained(plain, run / "agent" / "adapter").eval()
    ours = load_agent(run / "agent", retriever=retriever).policy.model
    with torch.no_grad():
        wanted, found = adapted(PROBE).logits.float(), ours(PROBE).logits.float()
    assert torch.equal(wanted.argmax(-1), found.argmax(-1))
