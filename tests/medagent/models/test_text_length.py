"""Texts longer than a model reads are refused: by their limits before anything runs, and at sampling."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning import Trainer
from transformers import Gemma3TextConfig

from medagent.agent_folder import load_agent, open_agent
from medagent.agent_spec import read_spec
from medagent.errors import ConfigError, PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.models.base_models import STARTER, model_path
from medagent.models.text_length import check_text_length, check_trained_text, longest_text, room_on_server
from medagent.policies.huggingface import HFPolicy
from medagent.training.advantages import GAE
from medagent.training.agent_data import AgentSettings
from medagent.training.data import RolloutData
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.prepare import prepare
from medagent.training.sft.dialogues import GivenDialogues
from medagent.training.sft.supervised import SupervisedData, SupervisedModule
from medagent.types import Limits, Question, Rollout, StopReason, Turn
from tests.medagent.policies.support import SMALL, furthest_from_plain, one_turn, tiny_model, two_dialogues

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 64,
}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
OPT = {
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 64,
}
LIMITED = {
    "dynamic": ("llama", {**SMALL, "max_position_embeddings": 64, "rope_parameters": DYNAMIC}, "rope type dynamic"),
    "longrope": (
        "phi3",
        {
            **SMALL,
            "max_position_embeddings": 256,
            "original_max_position_embeddings": 64,
            "rope_parameters": LONG,
            "sliding_window": None,
        },
        "rope type longrope",
    ),
    "a table": ("gpt2", GPT, "its table of positions"),
    "a table of another name": ("opt", OPT, "its table of positions"),
    "one type of layer": (
        "gemma3_text",
        {
            **SMALL,
            "num_hidden_layers": 6,
            "max_position_embeddings": 64,
            "rope_parameters": {
                "full_attention": DYNAMIC,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        "rope type dynamic",
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_beyond_the_texts_that_a_model_reads_are_refused(name: str, tokenizer) -> None:
    family, settings, reason = LIMITED[name]
    config = tiny_model(family, len(tokenizer), **settings).config
    check_text_length(config, 64, "the base")
    with pytest.raises(ConfigError, match=f"found 65, wanted at most 64 for the base .{reason}.*Lower limits"):
        check_text_length(config, 65, "the base")
    assert [room_on_server(config, tokens, "the base") for tokens in (63, 64)] == [64, 64], "a server has no more"


def test_a_server_has_room_for_one_token_more_where_positions_go_on(tokenizer) -> None:
    config = tiny_model("llama", len(tokenizer), **SMALL).config
    last = SMALL["max_position_embeddings"]
    assert [room_on_server(config, tokens, "the base") for tokens in (last - 1, last, last + 1)] == [
        last,
        last,
        last + 2,
    ]


@pytest.mark.parametrize(
    "rope",
    [None, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "llama3", "factor": 8.0}, {"rope_type": "yarn"}],
)
def test_fixed_frequencies_set_no_limit(rope, tokenizer) -> None:
    more = {"original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 4.0}
    known = {"linear": {"factor"}, "llama3": set(more), "yarn": {"original_max_position_embeddings", "factor"}}
    wanted = {} if rope is None else {name: more[name] for name in known[rope["rope_type"]]}
    settings = {"rope_parameters": {"rope_theta": 1e4, **wanted, **rope}} if rope else {}
    assert longest_text(tiny_model("llama", len(tokenizer), **SMALL, **settings).config) is None


@pytest.mark.parametrize(("dynamic", "long"), [(64, 32), (64, 128)])
def test_of_several_types_of_layer_the_tightest_limit_counts(dynamic: int, long: int) -> None:
    ropes = {"full_attention": DYNAMIC, "sliding_attention": {**LONG, "original_max_position_embeddings": long}}
    config = Gemma3TextConfig(max_position_embeddings=dynamic, head_dim=8)
    config.rope_parameters = ropes
    found = longest_text(config)
    assert found is not None
    assert found.tokens == min(dynamic, long)
    assert f"rope type {'longrope' if long < dynamic else 'dynamic'}" in found.reason


@pytest.mark.parametrize("name", LIMITED)
def test_texts_within_the_limit_are_sampled_right_and_longer_ones_not_at_all(name: str, tokenizer) -> None:
    family, settings, _ = LIMITED[name]
    model = tiny_model(family, len(tokenizer), **settings)
    policy = HFPolicy(model, tokenizer)
    assert furthest_from_plain(model, two_dialogues(policy)) < 1e-4
    with pytest.raises(PolicyError, match="a text of 65 tokens: the model reads at most 64"):
        one_turn(policy, list(range(20, 85)), blocks=())
    with pytest.raises(PolicyError, match="a text of 65 tokens: the model reads at most 64"):
        one_turn(policy, list(range(20, 80)), max_tokens=12, blocks=())
    assert len(one_turn(policy, list(range(20, 82)), max_tokens=2, blocks=()).token_ids) <= 2


def test_a_short_row_in_a_wide_batch_keeps_its_positions(tokenizer) -> None:
    """Padding repeats a row's last position: beyond it a table would end, or frequencies change."""
    model = tiny_model("gpt2", len(tokenizer), **GPT)
    policy = HFPolicy(model, tokenizer)

    async def run():
        first, second = (policy.open(seed=seed, temperature=1.0, blocks=()) for seed in range(2))
        first.append(list(range(20, 70)))
        second.append([20])
        await asyncio.gather(first.sample(max_tokens=2), second.sample(max_tokens=1))
        first.append([5])
        second.append(list(range(30, 80)))  # pads the first row to beyond 64
        turns = await asyncio.gather(first.sample(max_tokens=2), second.sample(max_tokens=2))
        first.close()
        second.close()
        return turns

    assert all(turn.token_ids for turn in asyncio.run(run()))


@pytest.fixture
def long_base(tmp_path: Path, tokenizer) -> Path:
    """A base that reads 64 tokens."""
    tiny_model("opt", len(tokenizer), **OPT).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_training_is_refused_before_it_starts(long_base: Path, retriever, tmp_path: Path) -> None:
    module = AgentModule(base_model=str(long_base))
    settings = AgentSettings(limits=Limits(max_total_tokens=65))
    data = RolloutData(StarterBenchmark("train"), retriever, settings, num_questions=8)
    data.trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_checkpointing=False)
    data.trainer.strategy.connect(module)
    data.trainer.strategy._lightning_module = module
    with pytest.raises(ConfigError, match=r"max_total_tokens: found 65, wanted at most 64"):
        data.setup("fit")


@pytest.mark.parametrize("name", LIMITED)
def test_a_trainer_reads_the_passages_after_which_a_dialogue_ends(name: str, tokenizer) -> None:
    family, settings, reason = LIMITED[name]
    config = tiny_model(family, len(tokenizer), **settings).config
    check_trained_text(config, Limits(max_observation_tokens=20, max_total_tokens=43), "the base")
    with pytest.raises(ConfigError, match=f"43 and max_observation_tokens 21, wanted together at most 63 .*{reason}"):
        check_trained_text(config, Limits(max_observation_tokens=21, max_total_tokens=43), "the base")
    with pytest.raises(ConfigError, match="max_total_tokens: found 65, wanted at most 64"):
        check_trained_text(config, Limits(max_total_tokens=65), "the base")


def test_the_longest_rollouts_can_be_prepared(tokenizer, tmp_path: Path) -> None:
    """The value after the last token of the longest rollout is read at the model's last position."""
    limits = Limits(max_turns=3, max_turn_tokens=20, max_observation_tokens=23, max_total_tokens=40)
    torch.manual_seed(0)
    base = tiny_model("opt", len(tokenizer), **OPT)
    check_trained_text(base.config, limits, "the base")
    base.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    module = AgentModule(base_model=str(tmp_path), policy_lora=LoraSettings(2, 4), critic_lora=LoraSettings(2, 4))
    turn = Turn((5,) * 20, (-1.0,) * 20, "x", "x", None, observation_ids=(6,) * limits.max_observation_tokens)
    long = Rollout(Question("q", "q"), (4,) * 20, (turn,), StopReason.MAX_TOTAL_TOKENS)
    short = Rollout(Question("q", "q"), (4,) * 9, (replace(turn, observation_ids=()),), StopReason.MALFORMED)
    assert len(long.token_ids) == limits.max_total_tokens + limits.max_observation_tokens
    together = prepare(module, [long, short], estimator=GAE(), reduce=lambda tensor: tensor)
    alone = prepare(module, [short], estimator=GAE(), reduce=lambda tensor: tensor)
    row = together.reference_logprobs_BT[1][together.mask_BT[1]]
    torch.testing.assert_close(row, alone.reference_logprobs_BT[0][alone.mask_BT[0]], rtol=0, atol=1e-5)


def test_fine_tuning_is_refused_before_anything_is_sampled(long_base: Path, retriever, tmp_path: Path) -> None:
    lines = tmp_path / "own.jsonl"
    lines.write_text('{"question": "x", "turns": [{"text": "<answer>y</answer>"}]}\n')
    module = SupervisedModule(base_model=str(long_base))
    data = SupervisedData(GivenDialogues(str(lines)), retriever, AgentSettings(limits=Limits(max_total_tokens=65)))
    data.trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_checkpointing=False)
    data.trainer.strategy.connect(module)
    data.trainer.strategy._lightning_module = module
    with pytest.raises(ConfigError, match=r"max_total_tokens: found 65, wanted at most 64"):
        data.setup("fit")
    assert not (tmp_path / "demonstrations.made").exists()


def test_an_agent_is_refused_when_it_is_loaded(long_base: Path, retriever, tmp_path: Path) -> None:
    shutil.copy(Path(model_path(STARTER)) / "agent.json", long_base)
    spec = read_spec(long_base)
    assert spec.limits.max_total_tokens > 64
    with pytest.raises(ConfigError, match=f"wanted at most 64 for agent {long_base}"):
        load_agent(long_base, retriever=retriever)
    row = json.loads((long_base / "agent.json").read_text())
    row["limits"]["max_total_tokens"] = 64
    (long_base / "agent.json").write_text(json.dumps(row))
    assert load_agent(long_base, retriever=retriever).limits == replace(spec.limits, max_total_tokens=64)


def test_an_untrained_model_gets_limits_that_it_can_read(long_base: Path, index_folder: Path) -> None:
    assert open_agent(f"hf:{long_base}", index=str(index_folder)).limits.max_total_tokens == 64
