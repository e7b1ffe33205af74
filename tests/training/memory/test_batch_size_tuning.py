"""A limit of tokens that nobody set follows from the free memory, is printed, and is kept by the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import FalconConfig, GPT2Config, LlamaConfig, OPTConfig, PretrainedConfig

from medagent.cli.main import main
from medagent.errors import ConfigError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.policies.vllm.server import VllmSettings
from medagent.training import agent_data, default_callbacks
from medagent.training.agent_data import rows_of_micro_batch
from medagent.training.command import train_command
from medagent.training.engines import InProcessEngine, VllmEngine
from medagent.training.execution import Execution, TokenLimit
from medagent.training.lora import LoraSettings
from medagent.training.memory import estimate, plan
from medagent.training.memory.estimate import Load, ModelShape, free_memory
from medagent.training.module import AgentModule
from medagent.training.run import newest_checkpoint
from medagent.types import Limits
from tests.support import CONFIGS
from tests.training.support import arguments, make_data, numbers, quiet_trainer

SHAPE = ModelShape(64, 128, 2, 64, 1000, 100_000, ((64, 64),))
LIMITS = Limits(max_turns=2, max_turn_tokens=50, max_observation_tokens=100, max_total_tokens=200)
SMALL_RUN = {"data.num_questions": 4, "data.num_minibatches": 1}
MOST = 672  # tokens of a rollout of SMALL_RUN, passages after the last turn included


def load(**settings) -> Load:
    common = {"rollouts": 24, "micro_batch_rows": 12, "in_process": False}
    lora = LoraSettings(1, 1)
    return Load(SHAPE, "float32", lora, None, Execution(logits_rows=1), LIMITS, **{**common, **settings})


def with_limit(given: Load, tokens: int) -> float:
    return replace(given, execution=replace(given.execution, max_tokens=tokens)).passing()


def test_the_limit_is_the_largest_number_of_rollouts_in_half_of_the_free_memory() -> None:
    one = load()
    for rows in (1, 5, 11):
        for more in (0.0, 0.9 * (with_limit(one, (rows + 1) * 200) - with_limit(one, rows * 200))):
            found = estimate.fit_token_limit(one, 2 * (with_limit(one, rows * 200) + more))
            assert found.max_tokens == rows * 200
            assert found.reason.startswith(f"{rows} rollouts of 200 tokens need ")
    assert "half of the free memory is" in found.reason
    found = estimate.fit_token_limit(one, 1000)
    assert found.max_tokens == 200
    assert found.reason.startswith("one rollout of 200 tokens needs 0.6 GiB, more than half of the free memory")


def test_there_is_no_limit_where_all_fits() -> None:
    one = load()
    found = estimate.fit_token_limit(one, 2 * one.passing())
    assert found.max_tokens == 0
    assert found.reason.startswith("an update needs 0.6 GiB at once, and half of the free memory is 0.6 GiB")
    assert estimate.fit_token_limit(one, 2 * one.passing() - 2).max_tokens > 0


def test_passes_before_the_update_are_bounded_as_well() -> None:
    """Twelve rows of an update fit beside gradients of a layer; thirty-two rows read at once may not."""
    checkpointed = Execution(gradient_checkpointing=True, logits_rows=1)
    wide = load(micro_batch_rows=1, rollouts=64, device="gpu")
    wide = replace(wide, execution=checkpointed, shape=replace(SHAPE, layers=1, intermediate=100_000))
    assert wide.preparing() > wide.activations()
    room = with_limit(wide, 200) + 1
    assert estimate.fit_token_limit(wide, 2 * room).max_tokens == 400, (
        "two rollouts are read at once, one is propagated back"
    )
    assert with_limit(wide, 400) < room < with_limit(wide, 600)


@pytest.mark.parametrize("set_", [None, 0, 7])
def test_only_a_limit_that_is_not_set_is_settled(
    set_: int | None, retriever, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_data, "free_memory", lambda device, sharing: 0.0)
    module = AgentModule(execution=Execution(max_tokens=set_))
    trainer = quiet_trainer(tmp_path)
    assert module.execution.token_limit == (set_ or 0)
    trainer.fit(module, datamodule=make_data(retriever, num_questions=4))
    assert module.execution.max_tokens == (MOST if set_ is None else set_)
    said = capsys.readouterr().out
    assert ("model.execution.max_tokens: 672, as one rollout of 672 tokens needs" in said) == (set_ is None)


@pytest.mark.long
def test_a_run_learns_the_same_and_keeps_its_number(
    tmp_path: Path, train_index: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plenty, little = 1e15, 0.0
    ends = {}
    for name, memories in (("whole", (plenty, plenty)), ("split", (little, plenty)), ("other", (plenty, little))):
        for epochs, free in enumerate(memories, start=1):
            monkeypatch.setattr(agent_data, "free_memory", lambda device, sharing, free=free: free)
            train_command(arguments(tmp_path / name, train_index, epochs=epochs, **SMALL_RUN))
        said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("model.execution.max_tokens")]
        number = "672" if name == "split" else "any number"
        assert said[0].startswith(f"model.execution.max_tokens: {number}, as ")
        assert said[1:] == [f"model.execution.max_tokens: {number}, as the run began with it."]
        checkpoint = torch.load(newest_checkpoint(tmp_path / name), weights_only=True)
        (kept,) = [state for state in checkpoint["callbacks"].values() if "max_tokens" in state]
        assert kept == {"max_tokens": MOST if name == "split" else 0}
        logged = [row.get("update/max_tokens") for row in read_metrics(tmp_path / name)]
        assert logged == ([MOST, MOST] if name == "split" else [None, None])
        ends[name] = checkpoint["state_dict"]
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "other"), "to the last bit"
    assert ends["whole"].keys() == ends["split"].keys()
    for key, wanted in ends["whole"].items():
        assert torch.allclose(ends["split"][key], wanted, atol=1e-4), key


def test_the_rank_with_the_least_memory_counts(monkeypatch) -> None:
    least = {}
    monkeypatch.setattr(
        default_callbacks, "over_ranks", lambda trainer, tensor, op: torch.maximum(tensor, least["other"])
    )

    def among(own: int, other: float) -> TokenLimit:
        least["other"] = torch.tensor(-other, dtype=torch.float64)
        return default_callbacks.AutoMaxTokens._over_ranks(None, TokenLimit(own, "mine"))

    assert among(600, 400) == TokenLimit(400, "another rank has less memory")
    assert among(0, 400) == TokenLimit(400, "another rank has less memory")
    assert among(400, 600) == TokenLimit(400, "mine")
    assert among(0, float("inf")) == TokenLimit(0, "mine")


def test_work_follows_from_the_data(retriever) -> None:
    data = make_data(retriever, num_questions=24, num_samples=2)
    assert data.work(2) == (24, data.num_minibatches * data.num_micro_batches, MOST, 1)
    assert rows_of_micro_batch(24, parts=4, together=1) == 6


def test_an_engine_leaves_the_trainer_a_share_of_the_gpu() -> None:
    assert VllmEngine().trainer_share == pytest.approx(1 - VllmSettings().gpu_memory)
    assert VllmEngine(colocated=True).trainer_share == InProcessEngine().trainer_share == 1.0


def test_plan_and_run_reckon_with_the_same_load(tmp_path: Path, train_index: Path, monkeypatch) -> None:
    seen: dict[str, Load] = {}

    def watch(name: str):
        def watched(load: Load, free: float) -> TokenLimit:
            seen[name] = load
            return TokenLimit(0, "watched")

        return watched

    monkeypatch.setattr(agent_data, "fit_token_limit", watch("run"))
    monkeypatch.setattr(plan, "fit_token_limit", watch("plan"))
    own = {"model.policy_lora.rank": 2, "model.execution.logits_rows": 64, "data.engine": "InProcessEngine"}
    given = arguments(tmp_path / "run", train_index, epochs=1, **SMALL_RUN, **own)
    train_command(given)
    assert main(["plan", *given]) == 0
    assert seen["run"] == seen["plan"]
    assert (seen["run"].rollouts, seen["run"].micro_batch_rows) == (4, 1)


def test_what_a_process_keeps_of_an_update_counts() -> None:
    assert load(device="cpu").activations() == 1.6 * load(device="gpu").activations()
    assert load(device="cpu").preparing() == load(device="gpu").preparing()


def test_a_base_of_unknown_sizes_is_trained_without_a_limit(monkeypatch, retriever, tmp_path: Path, capsys) -> None:
    def fails(base_model: str) -> ModelShape:
        raise ConfigError("sizes unknown")

    monkeypatch.setattr(agent_data.ModelShape, "of", fails)
    module = AgentModule()
    quiet_trainer(tmp_path).fit(module, datamodule=make_data(retriever, num_questions=4))
    assert module.execution.max_tokens == 0
    assert "any number, as nothing is known of what it needs (sizes unknown)" in capsys.readouterr().out


def groups(tmp_path: Path, monkeypatch, own: str, files: dict[str, str]) -> float:
    tmp_path.mkdir()
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(estimate, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(estimate, "GROUPS", tmp_path / "groups")
    return estimate._room_in_group()


STAT = "anon 5\ninactive_file 30\ntotal_inactive_file 40\n"


def test_a_control_group_limits_the_memory(tmp_path: Path, monkeypatch) -> None:
    inner = {"a/b/memory.max": "max\n", "a/b/memory.current": "7", "a/b/memory.stat": STAT}
    outer = {"a/memory.max": "1000\n", "a/memory.current": "500", "a/memory.stat": STAT}
    assert groups(tmp_path / "2", monkeypatch, "0::/a/b\n", {**inner, **outer}) == 1000 - 500 + 30
    first = {"limit_in_bytes": "900", "usage_in_bytes": "500"}
    first = {f"memory/x/memory.{name}": value for name, value in {**first, "stat": STAT}.items()}
    assert groups(tmp_path / "1", monkeypatch, "5:cpu:/y\n4:memory,hugetlb:/x\n", first) == 900 - 500 + 40
    over = {"memory.max": "100", "memory.current": "500", "memory.stat": STAT}
    assert groups(tmp_path / "over", monkeypatch, "0::/\n", over) == 0
    assert groups(tmp_path / "none", monkeypatch, "0::/\n", {}) == float("inf")
    monkeypatch.setattr(estimate, "OWN_GROUPS", tmp_path / "absent")
    assert estimate._room_in_group() == float("inf")


def test_free_memory_counts_what_this_process_holds(monkeypatch) -> None:
    held = float(estimate.psutil.Process().memory_info().rss)
    monkeypatch.setattr(estimate, "_room_in_group", lambda: 6e9)
    monkeypatch.setattr(estimate.psutil, "virtual_memory", lambda: SimpleNamespace(available=8e9))
    assert free_memory(torch.device("cpu")) == pytest.approx(6e9 + held, rel=0.05)
    assert free_memory(torch.device("cpu"), sharing=2) == pytest.approx(3e9 + held, rel=0.05)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2)
    assert free_memory(torch.device("cuda")) == 7.0


# Hidden, feed-forward, layers, heads: 48, 192, 2, 4.
FAMILIES = {
    "gpt2": GPT2Config(vocab_size=96, n_embd=48, n_layer=2, n_head=4, n_positions=64),
    "opt": OPTConfig(
        vocab_size=96, hidden_size=48, ffn_dim=192, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=48
    ),
    "falcon": FalconConfig(
        vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, multi_query=False
    ),
    "llama": LlamaConfig(
        vocab_size=96, hidden_size=48, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sizes_of_every_family_are_found(family: str, tmp_path: Path) -> None:
    FAMILIES[family].save_pretrained(tmp_path)
    found = ModelShape.of(str(tmp_path))
    assert (found.hidden, found.intermediate, found.layers, found.kv_size, found.vocabulary) == (48, 192, 2, 48, 96)
    three = 3 if family == "llama" else 2
    fused = [(48, 144)] if family in ("gpt2", "falcon") else [(48, 48)] * 3
    feeds = [(48, 192)] * (three - 1) + [(192, 48)]
    assert sorted(found.linear_sizes) == sorted(2 * [*fused, (48, 48), *feeds])


def test_a_config_without_sizes_says_so() -> None:
    with pytest.raises(ConfigError, match="PreTrainedConfig does not tell its sizes .*wanted hidden_size"):
        ModelShape._from_config(PretrainedConfig(), 1, ())


def test_plan_prints_what_the_run_would_settle(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--config", str(CONFIGS / "experiments" / "starter.yaml")]
    assert main([*given, "--memory_gib", "64"]) == 0
    said = capsys.readouterr().out
    assert "model.dtype: float32, as the starter was made in it" in said
    assert "model.execution.max_tokens: any number, as an update needs" in said
    assert main([*given, "--memory_gib", "2.0"]) == 0
    said = capsys.readouterr().out
    assert "model.execution.max_tokens: " in said
    assert "rollouts of 672 tokens need" in said
    assert "half of the free memory is 1.0 GiB" in said
    assert main([*given, "--memory_gib", "64", "--model.execution.max_tokens=4096"]) == 0
    assert "max_tokens" not in capsys.readouterr().out
    assert main([*given, "--trainer.accelerator=gpu"]) == 0
    assert "model.execution.max_tokens: chosen on the GPU; give its free memory" in capsys.readouterr().out
