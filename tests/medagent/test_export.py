"""An export is the trained policy: merged where rounding leaves it whole, otherwise in float32 or as the adapter."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from medagent import export as exporting
from medagent.agent_folder import save_agent
from medagent.agent_spec import read_spec, write_spec
from medagent.cli.commands.train import export
from medagent.engines.vllm import VllmEngine
from medagent.errors import ConfigError, InputError
from medagent.models.agent_weights import load_weights
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import load_causal_lm
from medagent.models.plain_lora import MergeLoss, form_for
from medagent.training.engines import ModuleWeights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule

PROBE = tuple(range(20, 80))


def trained(folder: Path, dtype: str) -> AgentModule:
    """An agent's folder after a few small steps, and its module."""
    torch.manual_seed(0)
    module = AgentModule(dtype=dtype, policy_lora=LoraSettings(32, 64), critic_lora=None)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.shared_base.policy_parameters():
            parameter += 2e-5 * torch.randn(parameter.shape, generator=generator).sign()
    spec = replace(read_spec(Path(model_path(STARTER))), base_model=STARTER, dtype=dtype)
    save_agent(folder, spec, module.tokenizer)
    module.shared_base.save_policy(folder / "adapter")
    return module


@torch.no_grad()
def logprobs(model) -> Tensor:
    scores = model(input_ids=torch.tensor([PROBE])).logits[0, :-1].float().log_softmax(-1)
    return scores.gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0].double()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_agent_is_loaded_as_it_was_trained(dtype: str, tmp_path: Path) -> None:
    module = trained(tmp_path / "agent", dtype)
    model, _ = load_weights(tmp_path / "agent", read_spec(tmp_path / "agent"))
    assert float((logprobs(model) - ModuleWeights(module).logprobs(PROBE)).abs().max()) < 1e-4
    beside = any(".lora_A." in name for name, _ in model.named_parameters())
    assert beside == (form_for(dtype) == "adapter")


def test_a_bfloat16_merge_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    trained(tmp_path / "agent", "bfloat16")
    with pytest.raises(ConfigError, match=r"merging loses 9\d% .*--dtype float32.*--form adapter"):
        export(str(tmp_path / "agent"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    export(str(tmp_path / "agent"), str(tmp_path / "out"), max_merge_lost=1.0)
    assert read_spec(tmp_path / "out").dtype == "bfloat16"
    assert "rounding took 9" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_a_float32_export_holds_the_whole_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = trained(tmp_path / "agent", "bfloat16")
    export(str(tmp_path / "agent"), str(tmp_path / "out"), dtype="float32")
    assert "0.0" in capsys.readouterr().out.split("MB, ")[1]
    assert read_spec(tmp_path / "out").dtype == "float32"
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert plain.dtype == torch.float32
    by_name = dict(plain.named_parameters())
    merges = MergeLoss()
    for name, weight in module.shared_base.merged_policy(merges):
        exact = by_name[name]
        assert torch.equal(exact.to(torch.bfloat16), weight), "the same sum, rounded later"
    assert merges.share > 0.5
    model, _ = load_weights(tmp_path / "out", read_spec(tmp_path / "out"))
    assert float((logprobs(model) - logprobs(plain)).abs().max()) < 1e-5


def test_an_exported_adapter_is_an_agent_of_its_own(tmp_path: Path) -> None:
    module = trained(tmp_path / "agent", "bfloat16")
    export(str(tmp_path / "agent"), str(tmp_path / "out"), form="adapter")
    model, _ = load_weights(tmp_path / "out", read_spec(tmp_path / "out"))
    assert float((logprobs(model) - ModuleWeights(module).logprobs(PROBE)).abs().max()) < 1e-4
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists()
    assert "LoRA alone" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_a_merged_export_of_an_agent_on_4_bits_is_a_plain_model(tmp_path: Path, monkeypatch) -> None:
    """Without bitsandbytes: the base that is loaded for it stands for one in 4 bits, which `dequantize` makes plain."""
    trained(tmp_path / "agent", "float32")
    spec = replace(read_spec(tmp_path / "agent"), quantise="nf4")
    plain, tokenizer = load_causal_lm(STARTER)
    save_agent(tmp_path / "agent", spec, tokenizer)
    monkeypatch.setattr(exporting, "load_base", lambda *_: (SimpleNamespace(dequantize=lambda: plain), tokenizer))
    export(str(tmp_path / "agent"), str(tmp_path / "out"))
    found = read_spec(tmp_path / "out")
    assert (found.quantise, found.base_model, found.dtype) == ("none", ".", "float32")
    model, _ = load_weights(tmp_path / "out", found)
    assert float((logprobs(model) - logprobs(plain)).abs().max()) < 1e-5, "what was merged is what is loaded"


def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    trained(tmp_path / "agent", "float32")
    with pytest.raises(InputError, match="--dtype float32: an adapter is written as it is"):
        export(str(tmp_path / "agent"), str(tmp_path / "out"), form="adapter", dtype="float32")
    for dtype in ("int8", "nonsense", "no_grad"):
        with pytest.raises(ConfigError, match=f"dtype '{dtype}': not a torch type of floats"):
            export(str(tmp_path / "agent"), str(tmp_path / "out"), dtype=dtype)
    export(str(tmp_path / "agent"), str(tmp_path / "merged"))
    with pytest.raises(ConfigError, match="found no adapter"):
        export(str(tmp_path / "merged"), str(tmp_path / "out"), form="adapter")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, "temperature 0.9, top_p 0.6"),
        ({"num_beams": 1, "early_stopping": True}, "early_stopping True"),
        ({"pad_token_id": -1, "eos_token_id": [3, 5]}, "pad_token_id -1"),
        ({"temperature": 0.9, "top_p": 0.6, "do_sample": True}, None),
    ],
)
def test_settings_of_generation_that_cannot_be_written_are_left_out(settings, left_out, tmp_path: Path, capsys) -> None:
    shutil.copytree(model_path(STARTER), tmp_path / "base")
    stored = tmp_path / "base" / "generation_config.json"
    plain = json.loads(stored.read_text()) if stored.exists() else {}
    stored.write_text(json.dumps({**plain, **settings}))
    export(str(tmp_path / "base"), str(tmp_path / "out"))
    written, said = json.loads((tmp_path / "out" / "generation_config.json").read_text()), capsys.readouterr().out
    assert {name: written.get(name) for name in settings} == {
        name: None if left_out and name in left_out else value for name, value in settings.items()
    }
    assert ("generation_config" in said) == bool(left_out)
    assert (left_out or "") in said
    assert read_spec(tmp_path / "out").base_model == "."


def test_vllm_does_not_serve_an_agent_of_four_bits_as_another_model(tmp_path: Path) -> None:
    trained(tmp_path / "agent", "bfloat16")
    spec = replace(read_spec(tmp_path / "agent"), quantise="nf4")
    write_spec(tmp_path / "agent", spec)
    assert read_spec(tmp_path / "agent").quantise == "nf4"
    with pytest.raises(ConfigError, match="trained on a base in 4 bits .*medagent export"):
        VllmEngine().open(tmp_path / "agent", spec)


@pytest.mark.quantised
def test_four_bits_are_loaded_and_exported_as_they_were_trained(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra qlora")
    from medagent.training.execution import Execution

    torch.manual_seed(0)
    module = AgentModule(policy_lora=LoraSettings(4, 8), critic_lora=None, execution=Execution(quantise="nf4"))
    with torch.no_grad():
        for parameter in module.shared_base.policy_parameters():
            parameter += 0.02 * torch.randn(parameter.shape)
    spec = replace(read_spec(Path(model_path(STARTER))), base_model=STARTER, quantise="nf4")
    save_agent(tmp_path / "agent", spec, module.tokenizer)
    module.shared_base.save_policy(tmp_path / "agent" / "adapter")
    wanted = ModuleWeights(module).logprobs(PROBE)
    loaded, _ = load_weights(tmp_path / "agent", spec)
    assert float((logprobs(loaded) - wanted).abs().max()) < 1e-3
    export(str(tmp_path / "agent"), str(tmp_path / "out"))
    exported, _ = load_weights(tmp_path / "out", read_spec(tmp_path / "out"))
    assert float((logprobs(exported) - wanted).abs().max()) < 1e-2
    plain, _ = load_weights(tmp_path / "agent", replace(spec, quantise="none"))
    assert float((logprobs(plain) - wanted).abs().mean()) > 0.05, "the base in full is another model"
