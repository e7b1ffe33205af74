"""An adapter made elsewhere is loaded and exported as the model that it is, or refused by what it holds more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from medagent.agent_folder import save_agent
from medagent.agent_spec import read_spec
from medagent.engines.vllm import VllmEngine
from medagent.errors import ConfigError
from medagent.export import export_adapter, export_merged
from medagent.models.agent_weights import load_weights
from medagent.models.base_models import STARTER, model_path
from medagent.models.plain_lora import check_adapter
from tests.medagent.policies.support import SMALL, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore::UserWarning:transformers")
PROBE = torch.tensor([list(range(20, 44))])
LINEAR = {"target_modules": "all-linear"}
PLAIN = {
    "some layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1, 3]},
    "ranks of their own": {
        **LINEAR,
        "use_rslora": True,
        "r": 5,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"q_proj": 16},
    },
    "all biases": {**LINEAR, "bias": "all"},
    "biases of its layers": {"target_modules": ["q_proj"], "bias": "lora_only"},
    "pissa": {**LINEAR, "init_lora_weights": "pissa"},
    "head of its own": {"target_modules": ["q_proj", "lm_head"]},
}
OTHERS = {
    "dora": ({**LINEAR, "use_dora": True}, "use_dora True"),
    "bias of B": ({**LINEAR, "lora_bias": True}, "lora_bias True"),
    "saved head": ({**LINEAR, "modules_to_save": ["lm_head"]}, r"modules_to_save \['lm_head'\]"),
    "saved norms": ({**LINEAR, "modules_to_save": ["norm"]}, r"modules_to_save \['norm'\]"),
    "embeddings": ({"target_modules": ["q_proj", "embed_tokens"]}, "the tensors .*lora_embedding_A"),
    "trained tokens": ({**LINEAR, "trainable_token_indices": [1, 2]}, r"trainable_token_indices \[1, 2\]"),
    "parameters": ({"target_modules": [], "target_parameters": ["q_proj.weight"]}, "target_parameters"),
    "repeated layers": ({**LINEAR, "layer_replication": [[0, 4], [2, 4]]}, "layer_replication"),
    "random start": ({**LINEAR, "init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4'"),
}


def bases(folder: Path, tokenizer) -> Path:
    """Two bases, one with its head tied to the embeddings."""
    for name, tied in (("apart", False), ("tied", True)):
        settings = {**SMALL, "attention_bias": True, "tie_word_embeddings": tied}
        tiny_model("llama", len(tokenizer), **settings).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer) -> Path:
    return bases(tmp_path_factory.mktemp("bases"), tokenizer)


def adapted(base: Path, folder: Path, tokenizer, config: PeftConfig, dtype: str = "float32") -> torch.Tensor:
    """An agent of `base` in `folder` with a random adapter; returns the scores that the adapter's maker had."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    torch.manual_seed(0)
    model = get_peft_model(model, config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    spec = replace(read_spec(Path(model_path(STARTER))), base_model=str(base), dtype=dtype)
    save_agent(folder, spec, tokenizer)
    model.save_pretrained(folder / "adapter")
    return scores(model)


@torch.no_grad()
def scores(model) -> torch.Tensor:
    return model(input_ids=PROBE).logits.float()


def lora(**settings) -> LoraConfig:
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", **settings})


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_adapter_is_loaded_and_exported_as_it_was_made(kind, base, tokenizer, tmp_path: Path) -> None:
    wanted = adapted(base / "apart", tmp_path / "agent", tokenizer, lora(**PLAIN[kind]))
    loaded, _ = load_weights(tmp_path / "agent", read_spec(tmp_path / "agent"))
    torch.testing.assert_close(scores(loaded), wanted, atol=1e-4, rtol=0)
    export_merged(tmp_path / "agent", tmp_path / "out")
    torch.testing.assert_close(
        scores(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), wanted, atol=1e-4, rtol=0
    )


def refused(agent: Path, out: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=f"adapter .*found {words}.*wanted .*[mM]erge"):
        load_weights(agent, read_spec(agent))
    with pytest.raises(ConfigError, match=f"adapter .*found {words}.*wanted .*[mM]erge"):
        export_merged(agent, out)
    assert not list(out.parent.glob("out*"))


@pytest.mark.parametrize("kind", OTHERS)
def test_an_adapter_that_holds_more_is_refused_by_name(kind, base, tokenizer, tmp_path: Path, monkeypatch) -> None:
    settings, words = OTHERS[kind]
    adapted(base / "tied", tmp_path / "agent", tokenizer, lora(**settings))
    where = "medagent.models.agent_weights.load_causal_lm"
    monkeypatch.setattr(where, lambda *_, **__: pytest.fail("loads the base first"))
    refused(tmp_path / "agent", tmp_path / "out", words)
    with pytest.raises(ConfigError, match=words):
        export_adapter(tmp_path / "agent", tmp_path / "out")
    with pytest.raises(ConfigError, match=words):
        VllmEngine().open(tmp_path / "agent", read_spec(tmp_path / "agent"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tied_head_is_refused(dtype, base, tokenizer, tmp_path: Path) -> None:
    """A merge into the head would change the embeddings too."""
    config = lora(target_modules=["q_proj", "lm_head"])
    adapted(base / "tied", tmp_path / "agent", tokenizer, config, dtype)
    refused(tmp_path / "agent", tmp_path / "out", "LoRA on .*lm_head, whose weight is tied")


def test_other_kinds_and_other_bases_are_refused(base, tokenizer, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    ia3 = IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    adapted(base / "apart", tmp_path / "ia3", tokenizer, ia3)
    refused(tmp_path / "ia3", tmp_path / "out", "peft_type 'IA3'")
    adapted(base / "apart", agent, tokenizer, lora(target_modules=["q_proj"]))
    stored = agent / "adapter" / "adapter_model.safetensors"
    matrices = load_file(stored)
    save_file({name.replace("layers.0", "blocks.0"): value for name, value in matrices.items()}, stored)
    with pytest.raises(ConfigError, match=r"not those of LlamaForCausalLM's layers \(astray: .*layers\.0"):
        load_weights(agent, read_spec(agent))
    save_file({**matrices, "base_model.model.model.norm.weight": torch.ones(32)}, stored)
    refused(agent, tmp_path / "out", r"the tensors base_model\.model\.model\.norm\.weight")
    save_file({name: torch.ones(3, 3) for name in matrices}, stored)
    with pytest.raises(ConfigError, match="cannot be put on LlamaForCausalLM .*Give the base"):
        load_weights(agent, read_spec(agent))
    (agent / "adapter" / "adapter_config.json").write_text("[]")
    with pytest.raises(ConfigError, match="cannot be read .*Export or copy it again"):
        load_weights(agent, read_spec(agent))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bias": "all"}, "bias 'all'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        ({"a_later_way": 2}, "a_later_way 2"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS'"),
    ],
)
def test_a_server_gets_what_it_adds_to_its_own_base(settings, words, base, tokenizer, tmp_path: Path) -> None:
    adapted(base / "apart", tmp_path, tokenizer, lora(target_modules=["q_proj"]))
    stored = tmp_path / "adapter" / "adapter_config.json"
    check_adapter(tmp_path / "adapter", beside=True)
    stored.write_text(json.dumps({**json.loads(stored.read_text()), **settings}))
    with pytest.raises(ConfigError, match=f"found {words} in adapter_config.json.*A server adds nothing else"):
        check_adapter(tmp_path / "adapter", beside=True)
