"""A policy that starts as another agent's adapter: what it samples, what it is compared with, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import load_peft_weights
from torch import Tensor
from torch.utils.data import DataLoader

from medagent.agent_spec import AgentSpec, read_spec, write_spec
from medagent.errors import ConfigError
from medagent.models.causal_lm import load_causal_lm
from medagent.training.adapters import REFERENCE
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.sft.supervised import SupervisedModule
from tests.training.support import AGENT, OneBatch, make_module, perturb, quiet_trainer, small_experience

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[AgentModule, Path]:
    """A module whose policy has moved, and the folder of its adapter."""
    module, folder = make_module(), tmp_path_factory.mktemp("taught")
    perturb(module)
    module.shared_base.save_policy(folder)
    return module, folder


def started(folder: Path, **settings: object) -> AgentModule:
    torch.manual_seed(1)
    return AgentModule(
        policy_lora=LoraSettings(**LORA, start=str(folder)), **{"critic_lora": LoraSettings(**LORA), **settings}
    )


def scores(module: AgentModule, of: str) -> Tensor:
    batch = small_experience(module)
    inputs = batch.token_ids_BT, batch.attention_BT, batch.mask_BT
    with torch.no_grad():
        if of == "policy":
            return module.shared_base.policy_scores(*inputs, temperature=1.0).logprobs_BT
        return getattr(module.shared_base, f"{of}_logprobs")(*inputs, temperature=1.0)


def test_policy_and_reference_begin_as_the_adapter(taught) -> None:
    before, folder = taught
    module = started(folder)
    torch.testing.assert_close(scores(module, "policy"), scores(before, "policy"), rtol=0, atol=1e-6)
    torch.testing.assert_close(scores(module, "reference"), scores(before, "policy"), rtol=0, atol=1e-6)
    torch.testing.assert_close(scores(module, "base"), scores(before, "base"), rtol=0, atol=0)
    assert (scores(module, "base") - scores(module, "policy")).abs().max() > 1e-2


@pytest.mark.parametrize("execution", [Execution(), Execution(gradient_checkpointing=True)])
def test_the_reference_stays_where_it_was(taught, tmp_path, execution: Execution) -> None:
    _, folder = taught
    module = started(folder, execution=execution)
    fixed = scores(module, "reference")
    perturb(module)
    assert (scores(module, "policy") - fixed).abs().max() > 1e-2
    torch.testing.assert_close(scores(module, "reference"), fixed, rtol=0, atol=0)
    before = [p.detach().clone() for p in module.shared_base.policy_parameters()]
    quiet_trainer(tmp_path).fit(module, DataLoader(OneBatch([small_experience(module)]), batch_size=None))
    assert all(not torch.equal(p, q) for p, q in zip(module.shared_base.policy_parameters(), before, strict=True))
    torch.testing.assert_close(scores(module, "reference"), fixed, rtol=0, atol=0)
    frozen = [p for name, p in module.named_parameters() if f".{REFERENCE}." in name]
    assert frozen
    assert not any(p.requires_grad or p.grad is not None for p in frozen)


def test_the_sampler_holds_the_policy_alone(taught) -> None:
    _, folder = taught
    module = started(folder)
    perturb(module)
    twin = module.shared_base.sampling_twin()
    names = [name for name, _ in twin.named_parameters()]
    assert any(".policy." in name for name in names)
    assert not any(".reference." in name or ".critic." in name for name in names)
    assert any(".reference." in name for name, _ in module.named_parameters())
    batch = small_experience(module)
    with torch.no_grad():
        logprobs_BTV = twin(batch.token_ids_BT).logits.log_softmax(-1)
    sampled_BT = logprobs_BTV[:, :-1].gather(2, batch.token_ids_BT[:, 1:, None])[..., 0] * batch.mask_BT[:, 1:]
    torch.testing.assert_close(sampled_BT, scores(module, "policy")[:, 1:], rtol=0, atol=1e-4)


def test_a_checkpoint_holds_the_reference(taught, tmp_path) -> None:
    """An adapter that was changed or lost after the start changes nothing in a run that goes on."""
    _, folder = taught
    module = started(folder)
    fixed = scores(module, "reference")
    checkpoint: dict = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    assert any(f".{REFERENCE}." in name for name in checkpoint["state_dict"])
    other = make_module()
    perturb(other, scale=0.2)
    other.shared_base.save_policy(tmp_path)
    again = started(tmp_path)
    assert (scores(again, "reference") - fixed).abs().max() > 1e-2
    again.on_load_checkpoint(checkpoint)
    again.load_state_dict(checkpoint["state_dict"])
    torch.testing.assert_close(scores(again, "reference"), fixed, rtol=0, atol=0)


def test_what_it_exports_is_one_plain_adapter(taught, tmp_path) -> None:
    _, folder = taught
    module = started(folder)
    module.shared_base.save_policy(tmp_path)
    found, wanted = load_peft_weights(str(tmp_path)), load_peft_weights(str(folder))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_wrong_start_is_refused_before_the_base_is_loaded(taught, tmp_path) -> None:
    start = str(taught[1])
    for made, settings, told in (
        (AgentModule, {"critic_lora": LoraSettings(start=start)}, r"model\.critic_lora\.start: found .*, wanted none"),
        (AgentModule, {"policy_lora": LoraSettings(start=str(tmp_path))}, r"no adapter, wanted adapter_config\.json"),
        (AgentModule, {"policy_lora": LoraSettings(8, 8, start=start)}, "rank 4 and alpha 8, wanted .*, 8 and 8"),
        (
            SupervisedModule,
            {"policy_lora": LoraSettings(4, 16, start=start)},
            "rank 4 and alpha 8, wanted .*, 4 and 16",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            made("/no/such/base", **settings)


def test_an_adapter_with_missing_layers_is_refused(taught, tmp_path) -> None:
    _, folder = taught
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "adapter_config.json"
    settings = json.loads(path.read_text())
    settings["target_modules"] = [name for name in settings["target_modules"] if name != "q_proj"]
    path.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"has LoRA on \d+ of \d+ layers"):
        started(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model": "other/base"}, "was trained with model.base_model other/base, and this run has starter."),
        ({"quantise": "nf4"}, "was trained with model.execution.quantise nf4, and this run has none."),
    ],
)
def test_an_agent_of_another_base_is_refused(taught, tmp_path, change: dict[str, str], message: str) -> None:
    module, _ = taught

    spec = AgentSpec("starter", "float32", AGENT.protocol, AGENT.limits, 2, None)
    (tmp_path / "adapter").mkdir()
    module.shared_base.save_policy(tmp_path / "adapter")
    write_spec(tmp_path, replace(spec, **change))
    assert read_spec(tmp_path).limits == AGENT.limits
    with pytest.raises(ConfigError, match=re.escape(message)):
        started(tmp_path)
    write_spec(tmp_path, spec)
    assert started(tmp_path).shared_base.has_own_reference


@pytest.mark.parametrize("settings", [{"init_lora_weights": "pissa"}, {"bias": "lora_only"}])
def test_an_adapter_that_would_change_the_base_is_refused(tmp_path, settings: dict[str, str]) -> None:
    """An export holds matrices alone: what lies in the base of the run would be lost."""
    base, _ = load_causal_lm("starter")
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **settings)
    get_peft_model(base, lora).save_pretrained(str(tmp_path))
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"found {name} '{value}'"):
        started(tmp_path)


def test_an_adapter_with_a_rank_of_its_own_on_a_layer_is_refused(tmp_path) -> None:
    base = load_causal_lm("starter", dtype="float32")[0]
    config = LoraSettings(**LORA).config(base)
    config.rank_pattern = {"q_proj": 2}
    get_peft_model(base, config).save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match=r"has rank 2 and scaling 4 on .*q_proj, wanted 4 and 2"):
        started(tmp_path)
