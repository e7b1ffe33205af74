"""Memory for time: every way to compute a pass gives the numbers of the plain one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from medagent.errors import ConfigError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.training.advantages import GAE
from medagent.training.batching import split_by_tokens
from medagent.training.command import train_command
from medagent.training.execution import Execution
from medagent.training.experience import tensorize
from medagent.training.module import AgentModule
from medagent.training.prepare import _passes, prepare
from medagent.types import Question, Rollout, StopReason
from tests.training.support import arguments, make_module, perturb

WAYS = {
    "packed": Execution(packed=True),
    "rows": Execution(logits_rows=7),
    "checkpointed": Execution(gradient_checkpointing=True),
    "all": Execution(packed=True, logits_rows=7, gradient_checkpointing=True),
    "eager": Execution(attention="eager", packed=True),
    "shared": Execution(shared_prefixes=True),
    "shared, all": Execution(shared_prefixes=True, logits_rows=7, gradient_checkpointing=True),
}


def gradients(module: AgentModule, batch) -> dict[str, torch.Tensor]:
    """Of policy and critic by one backward pass over both, as a training step makes it."""
    inputs = (batch.token_ids_BT, batch.attention_BT, batch.mask_BT)
    values = module.shared_base.values(*inputs)
    scores = module.shared_base.policy_scores(*inputs, temperature=0.8, entropy_gradient=True)
    weights = torch.linspace(-1, 1, batch.mask_BT.numel()).view_as(batch.mask_BT)
    (weights * (scores.logprobs_BT + 0.1 * scores.entropy_BT + values.square())).sum().backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    found["logprobs"], found["values"] = scores.logprobs_BT.detach(), values.detach()
    return {**found, "collision": scores.collision_BT, "entropy": scores.entropy_BT.detach()}


@pytest.fixture(scope="module")
def plain(rollouts):
    made = make_module()
    perturb(made)
    batch = prepare(made, rollouts, estimator=GAE(), reduce=lambda tensor: tensor, truncated="bootstrap")
    return batch, gradients(made, batch)


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_compute_changes_no_number(way, plain, rollouts) -> None:
    batch, wanted = plain
    made = make_module(execution=WAYS[way])
    perturb(made)
    found = gradients(made, batch)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-5 * max(1.0, scale), msg=name)
    again = prepare(made, rollouts, estimator=GAE(), reduce=lambda tensor: tensor, truncated="bootstrap")
    for name in ("reference_logprobs_BT", "values_BT", "advantages_BT"):
        torch.testing.assert_close(getattr(again, name), getattr(batch, name), rtol=1e-3, atol=1e-4, msg=name)


def test_a_graph_of_checkpointed_layers_can_be_passed_back_more_than_once(experience) -> None:
    found = []
    for checkpointing in (False, True):  # what the correction in parameter space does
        made = make_module(execution=Execution(gradient_checkpointing=checkpointing))
        perturb(made)
        inputs = (experience.token_ids_BT, experience.attention_BT, experience.mask_BT)
        logprobs = made.shared_base.policy_scores(*inputs, temperature=1.0).logprobs_BT
        first = torch.autograd.grad(logprobs[0].sum(), made.shared_base.policy_parameters(), retain_graph=True)
        logprobs.sum().backward()
        found.append([*first, *(parameter.grad for parameter in made.shared_base.policy_parameters())])
    for plain_gradient, gradient in zip(*found, strict=True):
        torch.testing.assert_close(gradient, plain_gradient, rtol=1e-3, atol=1e-4)


def test_rows_are_grouped_by_tokens() -> None:
    lengths = [10, 3, 7, 3, 9]
    for packed, limit in ((False, 14), (True, 14), (False, 10)):
        groups = split_by_tokens(lengths, max_tokens=limit, packed=packed)
        assert sorted(row for group in groups for row in group) == list(range(5))
        for group in groups:
            inside = [lengths[row] for row in group]
            assert (sum(inside) if packed else len(inside) * max(inside)) <= limit
    assert split_by_tokens(lengths, max_tokens=0, packed=False) == [[0, 1, 2, 3, 4]]
    assert split_by_tokens([10, 3, 7, 3, 9], max_tokens=14, packed=False) == [[1, 3], [2], [4], [0]]


@pytest.mark.long
def test_split_micro_batches_train_to_the_same_numbers(train_index: Path, tmp_path: Path) -> None:
    def trained(limit: int) -> list[dict[str, float]]:
        # With seed 0 a token is sampled so near to a border that rounding decides it, and the dialogues part.
        more = {"model.execution.max_tokens": limit, "seed_everything": 1}
        return read_metrics(train_command(arguments(tmp_path / str(limit), train_index, epochs=2, **more)))

    names = ("policy/loss", "critic/loss", "policy/grad_norm", "critic/grad_norm", "policy/entropy", "kl/reference")
    for whole, split in zip(trained(0), trained(520), strict=True):
        for name in names:
            assert split[name] == pytest.approx(whole[name], rel=2e-3, abs=1e-5), name
        assert split["reward/mean"] == whole["reward/mean"]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="logits_rows: found 0, wanted 1 or more"):
        Execution(logits_rows=0)
    assert replace(Execution(), max_tokens=8).max_tokens == 8


FAULTS = """
import resource, sys
import torch
from medagent.training.execution import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
def use():
    held = [torch.ones(1 << 20) for _ in range(40)]  # 160 MB in blocks of 4
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.long
def test_freed_memory_is_kept_for_the_next_pass_unless_the_environment_is_set() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}

    def page_faults(how: str, **environment: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    kept, handed_back = page_faults("keep"), page_faults("leave")
    assert 2 * kept < handed_back  # a page has 4 KiB: all of it again would be 200,000
    assert 2 * page_faults("keep", MALLOC_TRIM_THRESHOLD_="0") > handed_back


@pytest.mark.parametrize(("packed", "passes"), [(False, [[1, 3], [2], [4], [0]]), (True, [[1, 3, 2], [4], [0]])])
def test_passes_before_the_update_keep_to_the_limit_too(module, packed: bool, passes: list[list[int]]) -> None:
    rows = [Rollout(Question("q", "q"), (5,) * length, (), StopReason.MALFORMED) for length in (10, 3, 7, 3, 9)]
    tensors = tensorize(rows, pad_id=module.pad_id)
    limited = SimpleNamespace(execution=Execution(max_tokens=14, packed=packed))
    assert _passes(limited, tensors) == passes  # type: ignore[arg-type]
