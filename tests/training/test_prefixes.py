"""A tree of prefixes gives the numbers of its rows read apart, and reads each token once."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from transformers import (
    BloomConfig,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
)
from transformers.models.auto import AutoModelForCausalLM

from medagent.errors import ConfigError
from medagent.training import prefixes
from medagent.training.adapters import SharedBase
from medagent.training.batching import pack_rows, split_by_distinct_tokens, split_update
from medagent.training.execution import Execution
from medagent.training.forward import check_packing
from medagent.training.lora import LoraSettings
from medagent.training.prefixes import PrefixTree, shared_with_earlier

VOCABULARY = 50
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED),
    "window": MistralConfig(**GROUPED, sliding_window=5),
    "gpt_neox": GPTNeoXConfig(**SMALL, intermediate_size=64),
    "opt": OPTConfig(**SMALL, ffn_dim=64, word_embed_proj_dim=32, dropout=0.0, pad_token_id=0),
}
PLAIN, SHARED = Execution(), Execution(shared_prefixes=True)


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return ids, torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in rows])


def random_rows(seed: int) -> list[list[int]]:
    """Rows that branch at random places of earlier ones; some repeat one whole, some end inside one."""
    draw = random.Random(seed)
    rows = [[draw.randrange(1, VOCABULARY) for _ in range(draw.randrange(4, 12))]]
    for _ in range(draw.randrange(3, 9)):
        kept = draw.choice(rows)[: draw.randrange(0, 12)]
        rows.append(kept + [draw.randrange(1, VOCABULARY) for _ in range(draw.randrange(0 if len(kept) > 1 else 2, 9))])
    return rows


def roles_of(config: PreTrainedConfig, execution: Execution) -> SharedBase:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    base.requires_grad_(False)
    roles = SharedBase(base, policy=LoraSettings(4, 8), critic=LoraSettings(4, 8), execution=execution)
    torch.manual_seed(1)
    for parameter in (*roles.policy_parameters(), *roles.critic_parameters()):
        torch.nn.init.normal_(parameter, std=0.1)
    return roles


def numbers(roles: SharedBase, rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Scores, values and gradients of a loss in which every token counts differently."""
    ids, attention = padded([*rows])
    ids, attention = (torch.nn.functional.pad(each, (0, 1)) for each in (ids, attention))
    marked = attention.clone()
    marked[:, 0] = False
    marked[torch.arange(len(rows)), attention.sum(1)] = True  # the first place after each row's end too
    scores = roles.policy_scores(ids, attention, marked & attention, temperature=0.7, entropy_gradient=True)
    values = roles.values(ids, attention, marked)
    weights = torch.linspace(-1, 1, ids.numel()).view_as(ids)
    (weights * (scores.logprobs_BT + 0.3 * scores.entropy_BT + values)).sum().backward()
    found = {name: parameter.grad for name, parameter in roles.named_parameters() if parameter.grad is not None}
    reference = roles.reference_logprobs(ids, attention, marked & attention, temperature=0.7)
    scored = {name: tensor.detach() for name, tensor in {**vars(scores), "values": values}.items()}
    return {**found, **scored, "reference": reference}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_gives_the_numbers_of_its_rows(family, seed) -> None:
    rows = random_rows(seed)
    check_packing(roles_of(FAMILIES[family], SHARED).base, SHARED)
    wanted, found = (numbers(roles_of(FAMILIES[family], each), rows) for each in (PLAIN, SHARED))
    assert wanted.keys() == found.keys()
    assert len(wanted) > 20
    for name, tensor in wanted.items():
        scale = max(1.0, float(tensor.abs().max()))
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5 * scale, msg=name)


def test_each_token_is_read_once_at_its_own_place() -> None:
    ids, attention = padded([[1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6, 7], [1, 2, 3, 4], [1, 2]])
    tree = PrefixTree.of(ids, attention)
    assert tree.tokens_N.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert tree.positions_N.tolist() == [0, 1, 2, 3, 2, 3, 4]
    assert tree.shared == (0, 2, 3, 4, 2)
    assert [tree.nodes_BT[row, :length].tolist() for row, length in enumerate(tree.lengths)] == [
        [0, 1, 2, 3],
        [0, 1, 4],
        [0, 1, 4, 5, 6],
        [0, 1, 2, 3],
        [0, 1],
    ]


def test_padding_that_looks_like_a_token_is_no_prefix() -> None:
    ids, attention = padded([[1, 2], [1, 2, 0, 0]])
    assert shared_with_earlier(ids, attention) == [(0, 0), (2, 0)]


def test_a_token_and_its_prediction_are_scored_once(monkeypatch) -> None:
    roles = roles_of(FAMILIES["llama"], SHARED)
    ids, attention = padded([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4]])
    marked = attention.clone()
    marked[:, :2] = False
    found = roles.hidden_states_at(ids, attention, marked)
    assert sorted(found.tokens_U.tolist()) == [3, 4, 5]
    assert found.each(found.tokens_U).tolist() == [3, 4, 3, 5, 3, 4]
    read = []
    monkeypatch.setattr(prefixes, "hidden_states", lambda model, **inputs: read.append(inputs) or torch.zeros(1, 3, 32))
    roles.hidden_states_at(ids, attention, marked)
    assert read[0]["input_ids"].tolist() == [[1, 2, 3]], "what predicts nothing marked is not read"


@pytest.mark.parametrize("seed", range(5))
def test_groups_keep_the_order_and_the_limit(seed) -> None:
    ids, attention = padded(random_rows(seed))
    for limit in (1, 8, 20, 60, 0):
        groups = split_by_distinct_tokens(ids, attention, max_tokens=limit)
        assert [row for group in groups for row in group] == list(range(len(ids)))
        for group in groups:
            tree = PrefixTree.of(ids[group], attention[group])
            assert not limit or len(group) == 1 or len(tree.tokens_N) <= limit
    assert len(groups) == 1, "no limit"
    assert pack_rows(Execution(shared_prefixes=True, max_tokens=20), ids, attention) == split_by_distinct_tokens(
        ids, attention, max_tokens=20
    )


def test_what_rows_share_makes_room_for_more_of_them() -> None:
    row = list(range(1, 33))
    ids, attention = padded([row] * 8)
    assert [len(group) for group in split_by_distinct_tokens(ids, attention, max_tokens=48)] == [5, 3], "32 + 4 x 4"


def test_the_samples_of_a_question_stay_together() -> None:
    groups, lengths = [row // 4 for row in range(48)], [10 + row % 7 for row in range(48)]
    settings = {"num_minibatches": 2, "num_micro_batches": 3}
    dealt = split_update(lengths, groups=groups, seed=1, **settings)
    assert [len(parts) for parts in dealt] == [3, 3]
    assert sorted(row for parts in dealt for part in parts for row in part) == list(range(48))
    for part in (part for parts in dealt for part in parts):
        found = [groups[row] for row in part]
        assert all(found.count(group) == 4 for group in set(found)), "no group is divided"
    assert dealt != split_update(lengths, groups=groups, seed=2, **settings)


@pytest.mark.parametrize("settings", [{"packed": True}, {"attention": "eager"}, {"attention": "flash_attention_2"}])
def test_what_does_not_go_together_is_refused(settings) -> None:
    with pytest.raises(ConfigError, match=r"shared_prefixes: found it with packed .* wanted packed false and sdpa"):
        Execution(shared_prefixes=True, **settings)


def test_an_attention_other_than_sdpa_is_refused() -> None:
    capped = Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=2.0)
    capped._attn_implementation = "eager"
    for config in (BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4), capped):
        with pytest.raises(ConfigError, match=r"execution.shared_prefixes: .* attends with eager, wanted .*sdpa"):
            roles_of(config, SHARED)


def test_a_window_that_only_the_mask_knows_is_refused() -> None:
    """Qwen2-MoE's layers do not tell their attention of it."""
    config = Qwen2MoeConfig(
        **GROUPED,
        use_sliding_window=True,
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention"],
        num_experts=4,
        mlp_only_layers=[0, 1],
    )
    with pytest.raises(ConfigError, match=r"Qwen2Moe.* has layers with the windows \[12, None\].* \[None, None\]"):
        check_packing(roles_of(config, SHARED).base, SHARED)


def test_layers_have_one_mask_in_common() -> None:
    roles, kept = roles_of(FAMILIES["llama"], SHARED), set()
    ids, attention = padded([list(range(1, 30)), [*range(1, 20), *range(30, 49)]])
    tree = PrefixTree.of(ids, attention)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 4 and tensor.shape[:2] == (1, 1) and tensor.shape[-1] == tree.lengths[1]:
            kept.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        tree.states(roles.base)
    assert len(kept) == 1


def test_a_family_that_keeps_the_tree_from_its_attention_is_refused(monkeypatch) -> None:
    roles = roles_of(FAMILIES["llama"], SHARED)
    states = PrefixTree.states

    def forgetful(tree: PrefixTree, model) -> torch.Tensor:
        plain = model.get_decoder()
        return plain(input_ids=tree.tokens_N[None], position_ids=tree.positions_N[None]).last_hidden_state[0]

    monkeypatch.setattr(PrefixTree, "states", forgetful)
    with pytest.raises(ConfigError, match="shared_prefixes: Llama"):
        check_packing(roles.base, SHARED)
    monkeypatch.setattr(PrefixTree, "states", states)
    check_packing(roles.base, SHARED)


def test_the_sampler_beside_a_tree_reads_as_before() -> None:
    roles = roles_of(FAMILIES["llama"], SHARED)
    ids, _ = padded([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        twin = roles.sampling_twin()(input_ids=ids).logits
        wanted = roles_of(FAMILIES["llama"], PLAIN).sampling_twin()(input_ids=ids).logits
    torch.testing.assert_close(twin, wanted, rtol=1e-5, atol=1e-5)
