"""Two processes make the step that one would have made: gradients, clipping bias and weights."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from medagent.training.batching import split_by_length
from medagent.training.experience import loss_weights
from medagent.training.forward import NUM_EVIDENCE_FEATURES
from tests.support import ROOT


def step(folder: Path, batch, *, ranks: int, parts: int, space: str, max_tokens: int) -> dict[str, torch.Tensor]:
    """What a step on `parts` micro-batches over `ranks` processes gives."""
    weights = loss_weights(batch.mask_BT, reduction="rollout-mean", num_tokens=0, num_rollouts=16, factor=float(ranks))
    # Turns' ratios on both sides of the range, whatever the packaged base is like.
    shift_BT = torch.where(batch.turn_ids_BT % 2 == 0, -0.4, 0.4) * batch.mask_BT
    old_BT = batch.old_logprobs_BT + shift_BT
    batch = replace(batch, loss_weights_BT=weights, value_weights_BT=weights, old_logprobs_BT=old_BT)
    lengths = batch.attention_BT.sum(dim=1).tolist()
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch)}
    stored = {
        "batch": {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)},
        "parts": split_by_length(range(16), lengths, parts=parts),
    }
    source, target = folder / "in.pt", folder / f"{ranks}-{parts}-{space}.pt"
    torch.save(stored, source)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m"]
    worker = ["tests.training.ddp_worker", str(source), str(target), space, str(max_tokens)]
    done = subprocess.run([*line, *worker], cwd=ROOT, capture_output=True, text=True, timeout=320, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(target, weights_only=True)


@pytest.fixture(scope="module")
def ones() -> dict[str, dict[str, torch.Tensor]]:
    """What one process makes of the experience, by the space of the norms: made once, compared with several."""
    return {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("space", "max_tokens"),
    [
        ("parameters", 0),
        ("logits", 300),  # each part is split again
        ("rollouts", 300),
        ("evidence", 300),
        ("parameters", 300),  # and the ranks split theirs into different numbers
    ],
)
def test_two_processes_equal_one(experience, tmp_path, ones, space, max_tokens) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (*experience.evidence_BKF.shape[:2], NUM_EVIDENCE_FEATURES["evidence"])
    experience = replace(experience, evidence_BKF=torch.rand(shape, generator=generator))
    if space not in ones:
        ones[space] = step(tmp_path, experience, ranks=1, parts=1, space=space, max_tokens=0)
    one = ones[space]
    two = step(tmp_path, experience, ranks=2, parts=4, space=space, max_tokens=max_tokens)
    assert float(one["norms"][1]) > 0, "something must be clipped"
    torch.testing.assert_close(two["norms"], one["norms"], rtol=1e-4, atol=0)
    torch.testing.assert_close(two["rate"], one["rate"], rtol=1e-4, atol=0)
    assert two["metrics"].keys() == one["metrics"].keys() > {"policy/loss", "critic/loss", "policy/ratio_max"}
    for name, value in one["metrics"].items():
        torch.testing.assert_close(two["metrics"][name], value, rtol=1e-3, atol=1e-5, msg=f"{name} of all ranks")
    for role in ("policy", "critic"):
        rms = float(one[role].square().mean().sqrt())  # gradients of nothing but rounding are small against the others
        torch.testing.assert_close(two[role], one[role], rtol=1e-3, atol=1e-3 * rms)
        assert float((two[role] - one[role]).norm()) < 1e-4 * float(one[role].norm())
    for name, weight in one["after"].items():
        # AdamW's first step is the rate times the gradient's sign, so a gradient of nothing but rounding may go
        # either way.
        apart = (two["after"][name] - weight).abs()
        assert float(apart.max()) <= 2.1 * 3e-3, name
        assert float((apart > 1e-5).float().mean()) < 0.01, name
    assert float(((two["merged"] - one["merged"]).abs() > 1e-4).float().mean()) < 0.01
    for found in (one, two):
        first, second = found["policy_steps"]
        assert torch.equal(first, second), "a step of the critic alone leaves the policy where it is"
