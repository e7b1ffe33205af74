"""The probe judges only what it can measure, checksums tell one weight from another, and merges count their loss."""

from __future__ import annotations

import math

import pytest
import torch

from medagent.engines.weight_sync_check import WeightSyncCheck, require_synced
from medagent.errors import ConfigError, PolicyError
from medagent.models import checksums
from medagent.models.checksums import checksum, combined
from medagent.models.plain_lora import MergeLoss, form_for


class Probe:
    """Log-probs of 256 tokens: the trainer's move, and the sampler's follow with a gap drawn anew each time."""

    def __init__(self, gap: float, seed: int = 0) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._gap = gap
        self.trainer = self._draw(1.0)
        self.sampler = self.trainer

    def _draw(self, scale: float) -> torch.Tensor:
        return scale * torch.randn(256, generator=self._random).double()

    def move(self, scale: float) -> None:
        self.trainer = self.trainer + self._draw(scale)

    def found(self) -> list[float]:
        return (self.sampler + self._draw(self._gap)).tolist()

    def arrive(self) -> None:
        self.sampler = self.trainer


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("move", [0.002, 0.02, 0.1, 0.5])
def test_weights_that_arrive_never_raise_an_alarm(move: float, seed: int) -> None:
    probe, check = Probe(gap=0.08, seed=seed), WeightSyncCheck("bfloat16")
    for _ in range(10):
        probe.arrive()
        check(probe.found(), probe.trainer, where="x")
        assert math.isnan(check.slope) or check.slope == pytest.approx(1.0, abs=0.15)
        probe.move(move)
    assert check.measurable == (move == 0.5), "10 moves of 0.1 are 0.3 in all, under 4 times the gap"


@pytest.mark.parametrize(("gap", "move"), [(0.0, 0.01), (0.01, 0.1), (0.05, 0.4)])
def test_a_sampler_that_stands_still_is_caught_at_the_next_sync(gap: float, move: float) -> None:
    probe, check = Probe(gap), WeightSyncCheck("bfloat16")
    for _ in range(3):
        probe.arrive()
        check(probe.found(), probe.trainer, where="x")
        probe.move(move)
    with pytest.raises(PolicyError, match="x: the weight sync failed.*followed -?[0-9]%"):
        check(probe.found(), probe.trainer, where="x")


def test_small_moves_that_never_arrive_add_up_until_they_can_be_measured() -> None:
    probe, check = Probe(gap=0.01), WeightSyncCheck("bfloat16")

    def go_on() -> None:
        for _ in range(60):
            check(probe.found(), probe.trainer, where="x")
            probe.move(0.02)

    with pytest.raises(PolicyError, match="weight sync failed"):
        go_on()


def test_another_model_is_refused_at_the_first_sync() -> None:
    old = torch.zeros(64).double()
    with pytest.raises(PolicyError, match="another model.*by 2 on average"):
        WeightSyncCheck("float32")((old + 2).tolist(), old, where="x")
    with pytest.raises(PolicyError, match="another model"):
        WeightSyncCheck("float32")([math.nan] * 64, old, where="x")
    WeightSyncCheck("bfloat16", four_bits=True)((old + 1).tolist(), old, where="x")
    with pytest.raises(PolicyError, match=r"1\.5 is arithmetic in bfloat16 against 4 bits"):
        WeightSyncCheck("bfloat16", four_bits=True)((old + 2).tolist(), old, where="x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8])
def test_a_checksum_is_that_of_the_parts_in_any_order_and_of_no_other_weight(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = (50 * torch.randn(30, 40)).to(dtype)
    assert checksum(weight) == checksum(weight.t()) == combined([checksum(weight[20:]), checksum(weight[:20])])
    other = weight.clone()
    other[3, 4] += 1
    assert checksum(other) != checksum(weight)


def test_a_change_of_one_bit_and_an_exchange_of_sums_show() -> None:
    one = torch.tensor([1.0, 2.0])
    assert checksum(torch.nextafter(one, torch.tensor(9.0))) != checksum(one)
    assert checksum(torch.tensor([1, 4], dtype=torch.int32)) != checksum(torch.tensor([2, 3], dtype=torch.int32))


def test_arrival_needs_every_weight_and_says_which_one_lacks() -> None:
    sent = {"a": (1, 1), "b": (2, 4)}
    require_synced(sent, {"a": (1, 1), "b": (2, 4), "c": (0, 0)}, where="x")
    for held in ({}, {"a": (1, 1)}, {"a": (1, 1), "b": (2, 5)}):
        with pytest.raises(PolicyError, match="x: the weight sync failed.*such as [ab]"):
            require_synced(sent, held, where="x")
    with pytest.raises(PolicyError, match="1 of 3 weights.*such as c"):
        require_synced(sent, sent, where="x", names={"a", "b", "c"})


def test_a_sampler_that_ignores_adapters_is_caught_at_the_first_sync_of_a_trained_policy() -> None:
    """As after a resumption: the gap of the base is noise, and that of the policy is not."""
    base, learnt = Probe(gap=0.02), Probe(gap=0.02, seed=1).trainer * 0.25
    for arrives in (True, False):
        check = WeightSyncCheck("bfloat16")
        check.compare_base(base.found(), base.trainer)
        assert not check.is_new
        found = (torch.tensor(base.found()).double() + arrives * learnt).tolist()
        if arrives:
            check(found, base.trainer + learnt, where="x")
            assert check.slope == pytest.approx(1.0, abs=0.1)
        else:
            with pytest.raises(PolicyError, match="weight sync failed"):
                check(found, base.trainer + learnt, where="x")


def test_only_a_whole_base_in_float32_takes_a_merge() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        for quantised in (False, True):
            merges = form_for(dtype, quantised=quantised) == "merged"
            assert merges == (dtype == "float32" and not quantised)


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
    assert not check.measurable


def test_the_gap_of_the_base_too_says_what_can_be_measured() -> None:
    """A resumed policy within it of the base, whose gap is drawn anew, has arrived for all that can be told."""
    before, now = torch.randn(2, 256, generator=torch.Generator().manual_seed(2)).double()
    reference, check = torch.zeros(256).double(), WeightSyncCheck("float32")
    check.compare_base((reference + 5e-3 * before).tolist(), reference)
    check((reference + 5e-3 * now).tolist(), reference + 5e-3 * before, where="x")
    assert not check.measurable


def test_the_slope_is_the_share_that_was_followed() -> None:
    move = torch.randn(256, generator=torch.Generator().manual_seed(1)).double()
    for share in (0.6, 1.0, 2.0):
        check = WeightSyncCheck("bfloat16")
        check(torch.zeros(256).tolist(), torch.zeros(256).double(), where="x")
        check((0.5 * share * move).tolist(), 0.5 * move, where="x")
        assert check.slope == pytest.approx(share)
