"""The collapse monitor: what it calls collapse, and that going back restores weights and optimizer exactly."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import yaml
from lightning import Callback, LightningModule, Trainer

from medagent.agent_folder import load_agent
from medagent.errors import ConfigError
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.training.callbacks import collapse_monitor
from medagent.training.callbacks.collapse_monitor import HELD_OUT, CollapseDetector, CollapseMonitor, Thresholds
from medagent.training.command import train_command
from medagent.training.experience import Experience
from medagent.training.module import AgentModule
from medagent.training.run import newest_checkpoint
from tests.training.support import ALGORITHMS, arguments, make_module, row


def alarms(rows: list[dict[str, float]], thresholds: Thresholds = Thresholds()) -> list[int]:
    detector = CollapseDetector(thresholds)
    return [number for number, each in enumerate(rows, start=1) if detector.observe(each).alarm]


RISE = [row(success) for success in (0.3, 0.4, 0.5, 0.6, 0.7)]


def held_out(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [row(success, validation_accuracy=accuracy) for success, accuracy in pairs]


ILL: dict[str, Any] = {"policy_clip_fraction": 0.4, "policy_entropy": 0.65}
BURST = {"policy_grad_norm": 500.0, "kl_reference": 30.0}
FALLS = held_out((0.3, 0.6), (0.4, 0.8), (0.5, 0.8), (0.5, 0.7), (0.5, 0.4), (0.5, 0.7), (0.5, 0.6))
# Three quarters of 0.8 is 0.6000000000000001 to a computer; a third off 0.9 is 0.6000000000000001 too.
TO_THE_BOUND = held_out((0.5, 0.8), (0.5, 0.8), (0.5, 0.6), (0.5, 0.6))
ALARMS: dict[str, tuple[list[dict[str, float]], list[int]]] = {
    "noise and a mild decline": ([*RISE, row(0.66), row(0.6), row(0.55)], []),
    # The best is 0.65 (mean of two); 0.3 and 0.4 average 0.35 < 0.433; 0.7 and 0.3 average 0.5.
    "a fall below two thirds of the best": ([*RISE, row(0.3), row(0.4)], [7]),
    "a run that never learnt": ([row(success) for success in (0.3, 0.36, 0.2, 0.18, 0.17)], []),
    "two warnings": ([*RISE, row(0.7, **ILL)], []),
    "three warnings before success falls": ([*RISE, row(0.7, **ILL, rollout_searches=0.5)], [6]),
    "KL and gradient norm are one cause": (
        [*RISE, row(0.7, **BURST), row(0.7, **BURST, policy_entropy=0.65)],
        [],
    ),
    "a burst with two other warnings": ([*RISE, row(0.7, **BURST), row(0.7, **BURST, **ILL)], [7]),
    # 0.7 and 0.4 average 0.55 < 0.75 x 0.8; then 0.55, 0.65.
    "a lasting fall of held-out accuracy": (FALLS, [5, 6]),
    "two in a row must have been measured": ([*FALLS[:4], row(0.5), *FALLS[4:5]], []),
    "a fall to the bound itself": (TO_THE_BOUND, []),
    "a fall below it": ([*TO_THE_BOUND, row(0.5, validation_accuracy=0.595)], [5]),
    "a fall of success to the bound itself": ([row(success) for success in (0.3, 0.9, 0.9, 0.6, 0.6)], []),
}


def test_an_alarm_is_raised_in_these_iterations() -> None:
    for name, (rows, wanted) in ALARMS.items():
        assert alarms(rows) == wanted, name


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        ({"policy_clip_fraction": 0.09}, "policy/clip_fraction"),
        ({"policy_entropy": 0.61}, "policy/entropy"),
        ({"policy_entropy": 0.001}, "policy/entropy"),
        ({"rollout_valid_answer": 0.7}, "rollout/valid_answer"),
        ({"rollout_searches": 0.7}, "rollout/searches"),
    ],
)
def test_each_metric_alone_is_a_warning(change: dict[str, float], metric: str) -> None:
    detector = CollapseDetector()
    for each in RISE:
        assert not detector.observe(each).signs
    verdict = detector.observe(row(0.7, **change))
    assert list(verdict.signs) == [metric]
    assert not verdict.alarm
    assert not verdict.good, "weights under suspicion are not kept as good"


@pytest.mark.parametrize(
    ("metric", "value"), [("policy/ratio_max", 9.0), ("policy/grad_norm", 2.1), ("kl/reference", 1.2)]
)
def test_heavy_tailed_metrics_need_two_iterations_for_a_sign(metric: str, value: float) -> None:
    def signs(*values: float) -> list[list[str]]:
        detector = CollapseDetector()
        for each in RISE:
            detector.observe(each)
        return [list(detector.observe(row(0.7) | {metric: each}).signs) for each in values]

    usual = row(0.7)[metric]
    assert signs(1000.0, usual, 1000.0) == [[], [], []], "one token's outlier is no sign"
    assert signs(value, value) == [[], [metric]]


def test_entropy_is_measured_from_its_lowest() -> None:
    learning = [row(0.3 + 0.05 * n, policy_entropy=0.5 - 0.05 * n) for n in range(8)]  # down to 0.15
    detector = CollapseDetector()
    assert not any(detector.observe(each).signs for each in learning)
    assert list(detector.observe(row(0.7, policy_entropy=0.31)).signs) == ["policy/entropy"]


def test_where_held_out_accuracy_decides_the_rest_only_warns() -> None:
    decides = Thresholds(held_out_decides=True)
    fallen = held_out((0.3, 0.6), (0.5, 0.8), (0.6, 0.8), (0.6, 0.8), (0.1, 0.75), (0.1, 0.7))
    assert alarms(fallen) == [5, 6]
    assert alarms(fallen, decides) == []
    detector = CollapseDetector(decides)
    assert [sign for each in fallen for sign in detector.observe(each).signs] == ["reward/success"] * 2
    # Where it is not measured, success counts as before.
    assert alarms([*RISE, row(0.3), row(0.4)], decides) == [7]


def test_a_metric_that_is_no_number_is_a_sign_and_never_good() -> None:
    detector = CollapseDetector()
    verdict = detector.observe(row(0.3, policy_grad_norm=float("nan")))
    assert list(verdict.signs) == ["policy/grad_norm"]
    assert not verdict.good


@pytest.mark.parametrize(
    "wrong", [{"success_fall": 0.0}, {"spike": 1.0}, {"entropy_rise": 1.0}, {"history": 1}, {"searches_fall": 1.0}]
)
def test_thresholds_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Thresholds(**wrong)
    with pytest.raises(ConfigError, match="factor"):
        CollapseMonitor(factor=1.0)


def weights(module: LightningModule) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters() if value.requires_grad}


class Saboteur(Callback):
    """Ruins the policy after iteration 2, and notes what each iteration's first update found."""

    seen: ClassVar[list[tuple[dict[str, torch.Tensor], list[torch.Tensor], float]]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Experience, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            moments = [state["exp_avg"].clone() for state in trainer.optimizers[0].state.values()]
            self.seen.append((weights(pl_module), moments, trainer.optimizers[0].param_groups[0]["lr"]))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, AgentModule)
        if trainer.current_epoch == 1:
            with torch.no_grad():
                for parameter in pl_module.shared_base.policy_parameters():
                    parameter.normal_(std=3.0)


def sabotaged(run: Path, index: Path, *, action: str, **thresholds: object) -> list[str]:
    """The command line of a run that is ruined after iteration 2.

    Its monitor takes unreadable answers for collapse.
    """
    callbacks = [
        {"class_path": f"{__name__}.Saboteur"},
        {
            "class_path": "medagent.training.callbacks.CollapseMonitor",
            "init_args": {
                "action": action,
                "thresholds": {
                    "invalid_rise": 0.5,
                    "warnings_for_alarm": 1,
                    "kl": 1e9,
                    "spike": 1e9,
                    "entropy_rise": 1e9,
                    "clip_rise": 1e9,
                    **thresholds,
                },
            },
        },
    ]
    extra = run.parent / "monitor.yaml"
    extra.write_text(yaml.safe_dump({"trainer": {"callbacks+": callbacks}}))
    Saboteur.seen.clear()
    return [*arguments(run, index, epochs=4, **{"data.num_questions": 32}), "--config", str(extra)]


@pytest.mark.long
def test_going_back_restores_weights_and_moments_and_halves_the_step(train_index: Path, tmp_path: Path) -> None:
    run = train_command(sabotaged(tmp_path / "run", train_index, action="rollback"))
    (event,) = json.loads((run / "collapse.json").read_text())
    assert (event["iteration"], event["action"]) == (3, "rollback")
    back = event["back_to"] - 1
    assert back < 2, "an iteration from before the sabotage"
    assert any("rollout/valid_answer" in sign for sign in event["signs"])
    good, after = Saboteur.seen[back], Saboteur.seen[3]
    assert all(torch.equal(good[0][name], after[0][name]) for name in good[0])
    assert all(torch.equal(a, b) for a, b in zip(good[1], after[1], strict=True))
    assert after[2] == pytest.approx(0.5 * 2e-3 * (1 - 3 / 20)), "half the rate that is due by the schedule"
    rows = read_metrics(run)
    assert [each["monitor/alarm"] for each in rows] == [0, 0, 1, 0]
    assert rows[2]["rollout/valid_answer"] < 0.3 < rows[3]["rollout/valid_answer"], "the rescued policy answers again"


def test_going_back_with_stale_rollouts_is_refused(train_index: Path, tmp_path: Path) -> None:
    command = [*arguments(tmp_path / "run", train_index, epochs=1), "--data.off_policy.staleness=1"]
    with pytest.raises(ConfigError, match="would judge weights from earlier iterations"):
        train_command([*command, "--config", str(ALGORITHMS.parent / "collapse" / "rollback.yaml")])


@pytest.mark.long
def test_a_stopped_run_exports_the_good_weights_and_stays_stopped(
    train_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = sabotaged(tmp_path / "run", train_index, action="stop")
    run = train_command(command)
    (event,) = json.loads((run / "collapse.json").read_text())
    assert "COLLAPSE at iteration 3" in capsys.readouterr().out
    assert len(read_metrics(run)) == 3
    name = "shared_base.peft.base_model.model.model.layers.0.self_attn.q_proj.lora_B.policy.weight"
    state = torch.load(newest_checkpoint(run), weights_only=True)["state_dict"]
    assert torch.equal(state[name], Saboteur.seen[event["back_to"] - 1][0][name])
    load_agent(run / "agent")
    train_command(command)
    assert "this run was stopped" in capsys.readouterr().out
    assert len(read_metrics(run)) == 3


def test_a_detector_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    rows = held_out((0.3, 0.6), (0.5, 0.8), (0.6, 0.8), (0.6, 0.75), (0.6, 0.6), (0.6, 0.3), (0.1, 0.3), (0.1, 0.3))
    for decides in (False, True):
        for at in range(1, len(rows)):
            whole, first, second = (CollapseDetector(Thresholds(held_out_decides=decides)) for _ in range(3))
            for each in rows[:at]:
                whole.observe(each)
                first.observe(each)
            second.restore(json.loads(json.dumps(first.state())))
            assert [second.observe(each) for each in rows[at:]] == [whole.observe(each) for each in rows[at:]]


@pytest.mark.parametrize("heard", [False, True])
def test_only_this_iterations_held_out_accuracy_is_judged(heard: bool, monkeypatch) -> None:
    module, monitor = make_module(), CollapseMonitor(action="report")
    monkeypatch.setattr(module, "log_dict", lambda *row, **settings: None)
    trainer: Any = SimpleNamespace(
        callback_metrics={HELD_OUT: 0.4}, world_size=1, current_epoch=4, loggers=[], global_step=0
    )
    monitor.on_validation_end(trainer, module)  # of the iteration before
    monitor.on_train_epoch_start(trainer, module)
    monitor._seen["reward/success"] = [1.0, 0.0]
    if heard:
        monitor.on_validation_end(trainer, module)
    monitor.on_train_epoch_end(trainer, module)
    assert monitor._detector.rows == [{"reward/success": 0.5, **({HELD_OUT: pytest.approx(0.4)} if heard else {})}]


def test_a_rollback_forgets_the_iterations_that_it_discards(tmp_path: Path, monkeypatch) -> None:
    """They would alarm again at once, though the policy is the good one."""
    module, monitor = make_module(), CollapseMonitor(action="rollback")
    monkeypatch.setattr(module, "log_dict", lambda *row, **settings: None)
    monkeypatch.setattr(collapse_monitor, "_go_back", lambda *_: 1)
    optimizer = module.configure_optimizers()
    trainer = SimpleNamespace(
        callbacks=[monitor],
        world_size=1,
        current_epoch=0,
        max_epochs=99,
        loggers=[],
        global_step=0,
        default_root_dir=str(tmp_path),
        is_global_zero=True,
        optimizers=[optimizer],
        strategy=SimpleNamespace(barrier=lambda *_: None),
    )
    scales = []
    for success in (0.3, 0.5, 0.7, 0.8, 0.8, 0.3, 0.3, 0.75, 0.75):
        monitor.on_train_epoch_start(trainer, module)  # type: ignore[arg-type]
        monitor.on_train_batch_start(trainer, module, None, 0)  # type: ignore[arg-type]
        monitor._seen["reward/success"] = [success]
        monitor.on_train_epoch_end(trainer, module)  # type: ignore[arg-type]
        scales.append(module.policy_lr_scale)
        trainer.current_epoch += 1
    assert scales == [1.0] * 6 + [0.5] * 3
