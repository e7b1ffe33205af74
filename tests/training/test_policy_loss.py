"""A policy loss is a class that the YAML names: the shipped one, and one of the user's own."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import torch

from medagent.errors import ConfigError
from medagent.training.callbacks.export import how_made, read_metrics
from medagent.training.command import AgentCLI
from medagent.training.experience import Experience
from medagent.training.module import AgentModule
from medagent.training.objectives import ClippedSurrogate
from tests.training.golden.make import HERE, GoldenData

OWN = Path(__file__).parent / "plain_reinforce.yaml"


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.fixture
def batch() -> Experience:
    """One rollout: a prompt token, actions in two turns with an observation between them, padding."""
    mask = torch.tensor([[False, True, True, False, True, False]])
    turns = torch.tensor([[-1, 0, 0, -1, 1, -1]])
    zeros = torch.zeros(1, 6, dtype=torch.float64)
    old = row(0, -1.0, -2.0, 0, -0.5, 0)
    nothing = ("reference_logprobs", "values", "rewards", "returns", "value_weights")
    return Experience(
        token_ids_BT=torch.arange(6)[None],
        attention_BT=torch.tensor([[True] * 5 + [False]]),
        mask_BT=mask,
        turn_ids_BT=turns,
        ratio_segments_BT=turns,
        groups_B=torch.zeros(1, dtype=torch.long),
        evidence_BKF=torch.zeros(1, 3, 0),
        rollout_logprobs_BT=old,
        old_logprobs_BT=old,
        truncation_BT=mask.double(),
        advantages_BT=row(0, 1.0, -0.5, 0, 3.0, 0),
        loss_weights_BT=row(0, 0.25, 0.25, 0, 0.5, 0),
        metrics={"reward/mean": 1.0},
        **{f"{name}_BT": zeros for name in nothing},
    )


def own_run(base: Path, folder: Path, *more: str) -> AgentCLI:
    """The golden task for one iteration with the user's loss, ready to fit."""
    settings = {"model.base_model": base, "trainer.default_root_dir": folder, "trainer.max_epochs": 1}
    return AgentCLI(
        AgentModule,
        GoldenData,
        run=False,
        args=[
            *("--config", str(HERE / "task.yaml")),
            *("--config", str(OWN)),
            *(f"--{name}={value}" for name, value in settings.items()),
            *more,
        ],
        save_config_callback=None,
        seed_everything_default=0,
        auto_configure_optimizers=False,
    )


def test_the_shipped_loss_reads_the_batch(batch) -> None:
    """Turn weights: turn 0 has ratio exp(0.2), above 1.1 at A > 0; turn 1 has exp(-0.1) at A > 0."""
    logprobs = row(0, -0.9, -1.7, 0, -0.6, 0).requires_grad_()
    loss = ClippedSurrogate(clip_low=0.1, clip_high=0.15)
    result = loss(logprobs, replace(batch, truncation_BT=2.0 * batch.truncation_BT))
    first, second = torch.tensor([0.2, -0.1], dtype=torch.float64).exp().tolist()
    terms = [0.25 * 1.15 * 1.0, 0.25 * first * -0.5, 0.5 * second * 3.0]
    assert result.objective.item() == pytest.approx(2 * sum(terms))
    assert result.outside_BT[0].tolist() == [False, True, False, False, False, False]
    assert result.clipped is not None
    assert result.clipped.item() == pytest.approx(2 * 0.25 * first)
    assert result.ratios_BT[batch.mask_BT].tolist() == pytest.approx([first, first, second])
    assert result.metrics["ratio_outside"].item() == 2
    bounded = ClippedSurrogate(dual_clip=1.25)(row(0, 0.0, 0.0, 0, -0.5, 0), batch)
    assert bounded.outside_BT[0].tolist() == [False, True, True, False, False, False]


def test_a_loss_of_one_s_own_trains_by_its_yaml(tiny_base: Path, tmp_path: Path) -> None:
    run = own_run(tiny_base, tmp_path / "run")
    before = [parameter.detach().clone() for parameter in run.model.shared_base.policy_parameters()]
    run.trainer.fit(run.model, datamodule=run.datamodule)
    (metrics,) = read_metrics(tmp_path / "run")
    assert metrics["policy/clip_fraction"] == 0
    assert metrics["policy/ratio_max"] == 1
    assert 0 < metrics["policy/negative"] < 1
    assert metrics["policy/grad_norm"] > 0
    assert "policy/ratio_outside" not in metrics
    after = run.model.shared_base.policy_parameters()
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_correction_of_what_is_not_clipped_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    correction = '--trainer.callbacks+={"class_path": "medagent.training.callbacks.ClippingBiasCorrection"}'
    run = own_run(tiny_base, tmp_path / "run", correction)
    with pytest.raises(ConfigError, match=r"found model\.policy_loss PlainReinforce, which clips nothing"):
        run.trainer.fit(run.model, datamodule=run.datamodule)
    own = "--model.policy_loss=tests.training.user_classes.SaysClipsAndDoesNot"
    run = own_run(tiny_base, tmp_path / "other", own, correction)
    with pytest.raises(ConfigError, match="whose `clips` is true and whose result has no `clipped`"):
        run.trainer.fit(run.model, datamodule=run.datamodule)


def test_a_model_card_names_the_loss(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "trainer: {callbacks: []}\ndata: {}\nmodel: {policy_loss: {class_path: a.b.Mine, init_args: {clip_low: 0.3}}}\n"
    )

    class Done:
        default_root_dir, current_epoch = str(tmp_path), 2

    assert how_made(Done())["policy_loss"] == "Mine(clip_low=0.3)"  # type: ignore[arg-type]


def test_experience_takes_new_segments_and_nothing_else(batch) -> None:
    batch.ratio_segments_BT = torch.where(batch.mask_BT, 0, -1)
    assert batch.ratio_segments_BT.max() == 0
    for name in {each.name for each in fields(batch)} - {"ratio_segments_BT"}:
        with pytest.raises(FrozenInstanceError, match=f"Experience.{name}: found an assignment"):
            setattr(batch, name, None)
    moved = batch.to("cpu")
    assert torch.equal(moved.ratio_segments_BT, batch.ratio_segments_BT)
    assert moved.metrics == {"reward/mean": 1.0}
    assert batch.rows([0]).mask_BT.shape == (1, 5), "padding is cut away"
