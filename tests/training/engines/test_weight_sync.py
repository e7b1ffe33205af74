"""How weights leave the trainer, and what is kept of earlier syncs."""

from __future__ import annotations

import math
from pathlib import Path

import httpx
import pytest
import torch

from medagent.engines.weight_sync_check import WeightSyncCheck
from medagent.errors import ConfigError, PolicyError
from medagent.models import checksums
from medagent.models.checksums import checksum
from medagent.models.merging import MergeLoss, form_for
from medagent.policies.vllm.api import VllmApi
from medagent.training.engines import ModuleWeights, ServersEngine
from tests.fake_vllm import FakeVllm
from tests.training.support import make_module, setup_of


@pytest.mark.parametrize(
    ("dtype", "quantised", "form"),
    [
        ("float32", False, "merged"),
        ("float32", True, "adapter"),
        ("bfloat16", False, "adapter"),
        ("bfloat16", True, "adapter"),
        ("float16", False, "adapter"),
    ],
)
def test_only_a_whole_base_in_float32_takes_a_merge(dtype: str, quantised: bool, form: str) -> None:
    assert form_for(dtype, quantised=quantised) == form


def test_a_merge_loses_the_share_of_all_layers_together() -> None:
    loss = MergeLoss()
    loss.merge(torch.ones(4, dtype=torch.bfloat16), torch.full((4,), 1e-3))  # below half a step: all of it is lost
    assert loss.share == pytest.approx(1.0)
    merged = loss.merge(torch.ones(4, dtype=torch.bfloat16), torch.full((4,), 0.25))  # a whole number of steps
    assert merged.tolist() == [1.25] * 4
    assert loss.share == pytest.approx(1e-3 / (1e-6 + 0.25**2) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e6])
def test_a_merge_that_is_not_finite_is_refused(dtype: torch.dtype, value: float) -> None:
    loss = MergeLoss()
    loss.merge(torch.ones(3, dtype=dtype), torch.tensor([0.25, value, 0.25]))
    if math.isfinite(value) and dtype is torch.float32:
        loss.require(0.05, where="x", remedy="y")
        return
    with pytest.raises(ConfigError, match="x: found merged weights that are not finite"):
        loss.require(1e9, where="x", remedy="y")


@pytest.mark.parametrize("place", [0, 6, 7, 13, 19])
def test_a_checksum_counts_every_chunk(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(20, generator=torch.Generator().manual_seed(0))
    wanted = checksum(weight)
    monkeypatch.setattr(checksums, "CHUNK", 7)
    assert checksum(weight) == wanted
    weight[place] += 1
    assert checksum(weight) != wanted


def test_the_largest_gap_so_far_says_what_can_be_measured() -> None:
    """A gap that was large once may be so again, so a move within it tells nothing."""
    noise = torch.randn(256, generator=torch.Generator().manual_seed(0)).double()
    trainer, check = torch.zeros(256).double(), WeightSyncCheck("float32")
    check((trainer + 5e-3 * noise).tolist(), trainer, where="x")
    largest = check.redrawn
    check((trainer + 5e-3 * noise).tolist(), trainer, where="x")
    assert check.redrawn == largest > 5e-3
    check((trainer + 5e-3 * noise).tolist(), trainer + largest * noise.sign(), where="x")
    assert check.verdict == "not measurable"


def test_the_gap_of_the_base_too_says_what_can_be_measured() -> None:
    """A resumed policy within it of the base, whose gap is drawn anew, has arrived for all that can be told."""
    before, now = torch.randn(2, 256, generator=torch.Generator().manual_seed(2)).double()
    reference, check = torch.zeros(256).double(), WeightSyncCheck("float32")
    check.compare_base((reference + 5e-3 * before).tolist(), reference)
    check((reference + 5e-3 * now).tolist(), reference + 5e-3 * before, where="x")
    assert check.verdict == "not measurable"


def test_the_slope_is_the_share_that_was_followed() -> None:
    move = torch.randn(256, generator=torch.Generator().manual_seed(1)).double()
    for share in (0.6, 1.0, 2.0):
        check = WeightSyncCheck("bfloat16")
        check(torch.zeros(256).tolist(), torch.zeros(256).double(), where="x")
        check((0.5 * share * move).tolist(), 0.5 * move, where="x")
        assert check.slope == pytest.approx(share)


def test_servers_must_list_the_adapter_as_read_from_its_folder(tmp_path: Path, monkeypatch) -> None:
    server, module = FakeVllm(), make_module()
    try:
        engine = ServersEngine([server.url], "base", str(tmp_path), retries=1, backoff_s=0.01)
        engine.start(ModuleWeights(module), setup_of(module, tmp_path))
        roots = VllmApi.roots
        monkeypatch.setattr(VllmApi, "roots", lambda api: dict.fromkeys(roots(api), "/of/another/run"))
        with pytest.raises(PolicyError, match=r"Found policy-.* served from /of/another/run, wanted"):
            engine.sync_weights(ModuleWeights(module), version=0)
        monkeypatch.setattr(VllmApi, "roots", lambda api: {"base": ""})
        with pytest.raises(PolicyError, match="served from nowhere"):
            engine.sync_weights(ModuleWeights(module), version=0)
        monkeypatch.setattr(VllmApi, "roots", lambda api: {n: str(tmp_path / n) for n in roots(api)})
        assert engine.sync_weights(ModuleWeights(module), version=0).model in httpx.get(f"{server.url}/v1/models").text
    finally:
        server.close()


def test_of_several_servers_the_one_that_agrees_least_is_logged(tmp_path: Path, monkeypatch) -> None:
    servers, module = [FakeVllm(), FakeVllm(), FakeVllm()], make_module()
    try:
        engine = ServersEngine([server.url for server in servers], "base", str(tmp_path), retries=1, backoff_s=0.01)
        engine.start(ModuleWeights(module), setup_of(module, tmp_path))
        heard, off = VllmApi.logprobs, iter([1e-3, 4e-3, 2e-3])

        def shifted(api: VllmApi, token_ids: list[int], *, model: str) -> list[float]:
            apart = 0.0 if model == "base" else next(off)
            return [value + apart for value in heard(api, token_ids, model=model)]

        monkeypatch.setattr(VllmApi, "logprobs", shifted)
        engine.sync_weights(ModuleWeights(module), version=0)
        assert engine.metrics()["sampler/probe_gap"] == pytest.approx(4e-3, rel=0.05)
    finally:
        for server in servers:
            server.close()
