"""A base model must be a whole model, whose scores are the projection of its hidden states."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from medagent.agent_folder import load_agent, open_agent
from medagent.agent_spec import read_spec, write_spec
from medagent.errors import ConfigError, PolicyError
from medagent.export import export_merged
from medagent.models.base_models import STARTER, model_path
from medagent.models.causal_lm import check_projection, load_causal_lm
from medagent.training.module import AgentModule
from tests.medagent.policies.support import SMALL, tiny_model

PROBE = torch.tensor([list(range(20, 60))])


@pytest.fixture
def taught(tmp_path: Path) -> PeftModel:
    """The starter with a random adapter, saved with its tokenizer as most adapters on hubs are."""
    base, tokenizer = load_causal_lm(STARTER)
    torch.manual_seed(0)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(base, lora).eval()
    model.peft_config["default"].base_model_name_or_path = model_path(STARTER)
    model.save_pretrained(tmp_path / "lora")
    tokenizer.save_pretrained(tmp_path / "lora")
    return model


@pytest.fixture
def agent(taught: PeftModel, tmp_path: Path) -> Path:
    """An agent's folder as training exports it: agent.json, a tokenizer, adapter/."""
    folder = tmp_path / "run" / "agent"
    shutil.copytree(tmp_path / "lora", folder / "adapter" / "policy")
    load_causal_lm(STARTER)[1].save_pretrained(folder)
    spec = read_spec(Path(model_path(STARTER)))
    write_spec(folder, spec.from_json({**spec.to_json(), "base_model": STARTER}))
    return folder


def opened(name: str, index: Path) -> object:
    return open_agent(f"hf:{name}", index=str(index))


def trained(name: str, index: Path) -> object:
    return AgentModule(base_model=name)


def loaded(name: str, index: Path) -> object:
    return load_causal_lm(name)


@pytest.mark.parametrize("way", [opened, trained, loaded])
def test_an_adapter_is_no_base_model(way, taught, tmp_path: Path, index_folder: Path) -> None:
    with pytest.raises(ConfigError, match="found a LoRA adapter.*medagent export"):
        way(str(tmp_path / "lora"), index_folder)


@pytest.mark.parametrize("way", [opened, trained, loaded])
def test_an_agent_with_an_adapter_is_no_base_model_until_it_is_exported(
    way, agent: Path, tmp_path: Path, index_folder: Path
) -> None:
    with pytest.raises(ConfigError, match="found an agent .*medagent export"):
        way(str(agent), index_folder)
    with pytest.raises(ConfigError, match="found a LoRA adapter"):
        way(str(agent / "adapter" / "policy"), index_folder)
    export_merged(agent, tmp_path / "merged")
    assert way(str(tmp_path / "merged"), index_folder)


def test_a_whole_model_with_an_adapter_beside_it(
    taught, agent: Path, retriever, index_folder: Path, tmp_path: Path
) -> None:
    """Its folder is an agent that runs with the adapter. As a base it would lose the adapter."""
    shutil.copytree(model_path(STARTER), tmp_path / "both")
    shutil.copytree(agent / "adapter", tmp_path / "both" / "adapter")
    model = load_agent(tmp_path / "both", retriever=retriever).policy.model
    with torch.no_grad():
        assert torch.allclose(model(PROBE).logits, taught(PROBE).logits, atol=1e-4)
    for way in (opened, trained):
        with pytest.raises(ConfigError, match="an agent whose adapter is beside its weights"):
            way(str(tmp_path / "both"), index_folder)
    (tmp_path / "both" / "agent.json").unlink()
    assert trained(str(tmp_path / "both"), index_folder), "a folder of that name alone says nothing"


def test_an_adapter_inside_a_whole_models_folder_is_refused(taught, tmp_path: Path) -> None:
    """transformers would load its layers into the model."""
    shutil.copytree(model_path(STARTER), tmp_path / "whole")
    shutil.copytree(tmp_path / "lora", tmp_path / "whole", dirs_exist_ok=True)
    with pytest.raises(ConfigError, match="a LoRA adapter"):
        load_causal_lm(str(tmp_path / "whole"))


def test_an_adapter_that_shows_only_when_it_is_loaded_is_refused(taught, tmp_path: Path, monkeypatch) -> None:
    """So it is with a hub name: no folder to look into."""
    monkeypatch.setattr("medagent.models.causal_lm._refuse_adapter", lambda name, folder: None)
    with pytest.raises(ConfigError, match="a LoRA adapter"):
        load_causal_lm(str(tmp_path / "lora"))


@pytest.mark.parametrize("scale", [0.5, 0.99, 16.0])
@pytest.mark.parametrize("spread", [0.2, 0.002])
def test_scaled_scores_are_refused_however_small_they_are(scale: float, spread: float, tokenizer) -> None:
    settings = {**SMALL, "initializer_range": spread}
    check_projection(tiny_model("granite", len(tokenizer), **settings, logits_scaling=1.0))
    with pytest.raises(PolicyError, match="caps or scales"):
        check_projection(tiny_model("granite", len(tokenizer), **settings, logits_scaling=scale))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (
            {"pad_token": None, "eos_token": None},
            "a tokenizer with neither pad_token nor eos_token.*Set tokenizer",
        ),
        ({"pad_token": "[PAD]"}, r"found pad_token \[PAD\] with id (\d+), and an embedding of \1 rows.*resize"),
        ({"bos_token": "[BOS]"}, r"found bos_token \[BOS\] with id (\d+), and an embedding of \1 rows.*resize"),
    ],
)
def test_marks_of_a_tokenizer_that_the_model_cannot_read_are_refused(missing, words, tmp_path: Path) -> None:
    model, tokenizer = load_causal_lm(STARTER)
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.add_special_tokens({name: token for name, token in missing.items() if token})
    for name in (name for name, token in missing.items() if token is None):
        setattr(tokenizer, name, None)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for way in (load_causal_lm, AgentModule):
        with pytest.raises(ConfigError, match=words):
            way(str(tmp_path))


def test_capped_scores_are_refused_where_the_cap_does_not_show_yet(tokenizer) -> None:
    settings = {**SMALL, "initializer_range": 0.002, "sliding_window": 8}
    with pytest.raises(PolicyError, match=r"caps its scores at 30.0"):
        check_projection(tiny_model("gemma2", len(tokenizer), **settings))
    with pytest.raises(PolicyError, match=r"caps its scores at 50.0 \(attn_logit_softcapping\)"):
        check_projection(tiny_model("gemma2", len(tokenizer), **settings, final_logit_softcapping=None))
    plain = {"final_logit_softcapping": None, "attn_logit_softcapping": None}
    check_projection(tiny_model("gemma2", len(tokenizer), **settings, **plain))
