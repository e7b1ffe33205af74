"""Forty things that a user of Lightning tries: each works, or is refused in one line with the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.training.callbacks import ClippingBiasCorrection, CollapseMonitor
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.rollouts.collection import check_ranks
from medagent.training.run import _refuse_changes
from medagent.training.settings import check_trainer_settings
from tests.training.support import OneBatch, make_data, make_module, quiet_trainer, small_experience

VALIDATION = StarterBenchmark("validation", limit_per_kind=1)
LORA = {"policy_lora": LoraSettings(4, 8), "critic_lora": LoraSettings(4, 8)}

IDIOMS = {
    "configure_optimizers: an optimizer": "works",
    "configure_optimizers: a scheduler per step": "works",
    "configure_optimizers: a scheduler per epoch": "works",
    "configure_optimizers: two optimizers": "refused",
    "--optimizer": "works",
    "--lr_scheduler": "works",
    "val_dataloader": "works",
    "trainer.validate": "works",
    "trainer.validate with ckpt_path": "works",
    "check_val_every_n_epoch": "works",
    "limit_val_batches": "works",
    "num_sanity_val_steps": "works",
    "EarlyStopping(monitor)": "works",
    "ModelCheckpoint(monitor, save_top_k)": "works",
    "fast_dev_run": "refused",
    "limit_train_batches": "refused",
    "max_time": "refused",
    "max_steps": "refused",
    "overfit_batches": "refused",
    "detect_anomaly": "works",
    "accumulate_grad_batches": "refused",
    "gradient_clip_val": "refused",
    "LearningRateMonitor": "works",
    "StochasticWeightAveraging": "refused",
    "GradientAccumulationScheduler": "refused",
    "TQDMProgressBar and RichProgressBar": "works",
    "DeviceStatsMonitor": "works",
    "profiler": "works",
    "a callback's hooks": "works",
    "CSVLogger and TensorBoardLogger": "works",
    "a logger that is not installed": "refused",
    "logger false": "works",
    "enable_checkpointing false": "refused by the command line",
    "load_from_checkpoint": "works",
    "ckpt_path last": "works",
    "another world size at resume": "works",
    "trainer.test and trainer.predict": "refused",
    "the learning rate finder": "refused",
    "precision": "refused",
    "devices 2 and ddp": "works, see test_ddp.py",
    "deterministic": "works",
    "self.log in a subclass": "works",
    "seed_everything": "works",
    "save_hyperparameters": "works, see test_settings.py",
    "reload_dataloaders_every_n_epochs": "works",
    "barebones": "refused",
    "inference_mode false": "works",
}


def test_no_idiom_is_listed_twice() -> None:
    assert len(IDIOMS) >= 40
    assert all(said.startswith(("works", "refused")) for said in IDIOMS.values())


def steps(module: AgentModule, number: int = 2) -> DataLoader:
    return DataLoader(OneBatch([small_experience(module)] * number), batch_size=None)


def fit(module: AgentModule, folder: Path, *, epochs: int = 2, callbacks=(), **settings: Any) -> Trainer:
    """Two optimizer steps per epoch, without rollouts."""
    trainer = quiet_trainer(folder, epochs=epochs, callbacks=callbacks, **settings)
    trainer.fit(module, steps(module))
    return trainer


class Rates(Callback):
    """Keeps the policy's rate of each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


def subclass(configure: Callable[[AgentModule], Any], **settings: Any) -> AgentModule:
    class Own(AgentModule):
        def configure_optimizers(self):
            return configure(self)

    torch.manual_seed(0)
    return Own(**LORA, **settings)


def halved(**scheduler: Any) -> Callable[[AgentModule], Any]:
    def configure(module: AgentModule):
        optimizer = torch.optim.SGD(module.parameter_groups())
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, lambda n: 0.5**n), **scheduler},
        }

    return configure


@pytest.mark.parametrize(
    ("configure", "rates"),
    [
        (lambda module: torch.optim.SGD(module.parameter_groups()), [0.4] * 4),
        (lambda module: torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1), [0.1] * 4),
        (halved(), [0.4, 0.4, 0.2, 0.2]),
        (halved(interval="step"), [0.4, 0.2, 0.1, 0.05]),
        (halved(interval="step", frequency=2), [0.4, 0.4, 0.2, 0.2]),
    ],
)
def test_a_configure_optimizers_of_the_users_is_used(configure, rates, tmp_path) -> None:
    seen, module = Rates(), subclass(configure, policy_lr=0.4)
    before = [each.detach().clone() for each in module.shared_base.policy_parameters()]
    trainer = fit(module, tmp_path, callbacks=[seen, LearningRateMonitor()], logger=CSVLogger(tmp_path))
    assert seen.seen == pytest.approx(rates)
    assert isinstance(trainer.optimizers[0], torch.optim.SGD)
    assert not all(map(torch.equal, before, module.shared_base.policy_parameters()))
    assert {"policy/grad_norm", "critic/grad_norm"} <= trainer.callback_metrics.keys()


def plateau(module: AgentModule):
    optimizer = torch.optim.SGD(module.parameter_groups())
    return {"optimizer": optimizer, "lr_scheduler": ReduceLROnPlateau(optimizer), "monitor": "policy/loss"}


@pytest.mark.parametrize(
    ("configure", "settings", "callbacks", "told"),
    [
        (lambda m: [torch.optim.SGD([group]) for group in m.parameter_groups()], {}, [], "SGD and SGD, wanted one"),
        (lambda m: torch.optim.LBFGS(list(m.shared_base.policy_parameters())), {}, [], "LBFGS, wanted one .* closure"),
        (plateau, {}, [], "ReduceLROnPlateau, wanted a scheduler"),
        (halved(), {"lr_decay_iterations": 9}, [], "lr_decay_iterations: found 9 beside Own.configure_optimizers"),
        (halved(), {}, [CollapseMonitor("rollback")], "found 'rollback' with Own.configure_optimizers"),
        (
            lambda m: torch.optim.SGD(list(m.shared_base.policy_parameters())),
            {},
            [ClippingBiasCorrection()],
            "first group is not named policy",
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The lr scheduler dict")
def test_an_optimizer_that_would_not_do_what_settings_say_is_refused(
    configure, settings, callbacks, told, tmp_path
) -> None:
    with pytest.raises(ConfigError, match=told):
        fit(subclass(configure, **settings), tmp_path, callbacks=callbacks)


def test_trainer_validate_measures_a_module_and_a_checkpoint(retriever, tmp_path) -> None:
    data = make_data(retriever, num_questions=4, num_minibatches=1, num_micro_batches=1, val_benchmark=VALIDATION)
    best = ModelCheckpoint(tmp_path / "best", monitor="validation/accuracy", mode="max", save_top_k=1)
    stopping = EarlyStopping("validation/accuracy", mode="max", patience=5)
    trainer = quiet_trainer(
        tmp_path,
        callbacks=[best, stopping],
        enable_checkpointing=True,
        logger=CSVLogger(tmp_path),
        inference_mode=False,
        deterministic=True,
        detect_anomaly=True,
        reload_dataloaders_every_n_epochs=1,
    )  # with Lightning's sanity check
    trainer.fit(make_module(policy_lr=1e-2), datamodule=data)
    torch.use_deterministic_algorithms(mode=False)
    measured = float(trainer.callback_metrics["validation/accuracy"])
    module = AgentModule.load_from_checkpoint(best.best_model_path)
    fresh = quiet_trainer(tmp_path)
    (found,) = fresh.validate(module, datamodule=data)
    assert found["validation/accuracy"] == measured == float(best.best_model_score)
    (again,) = fresh.validate(make_module(), datamodule=data, ckpt_path=best.best_model_path)
    assert again == found
    assert not quiet_trainer(tmp_path, limit_val_batches=0).validate(module, datamodule=data)[:1]


def test_validation_without_data_of_an_agent_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="validation: found NoneType as data module, wanted RolloutData"):
        quiet_trainer(tmp_path).validate(make_module(), DataLoader(OneBatch([[]]), batch_size=None))


REFUSED = {
    "fast_dev_run": True,
    "limit_train_batches": 2,
    "max_time": "00:01:00:00",
    "max_steps": 5,
    "overfit_batches": 1,
    "accumulate_grad_batches": 2,
    "gradient_clip_val": 1.0,
    "precision": "bf16-mixed",
    "barebones": True,
    "enable_checkpointing": False,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_algorithm_in_silence_is_refused_in_a_line(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.{name}: found .*, wanted ") as error:
        check_trainer_settings({name: REFUSED[name]})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["StochasticWeightAveraging", "GradientAccumulationScheduler", "LearningRateFinder"])
def test_callbacks_that_change_an_optimizer_step_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"trainer.callbacks: found {name}. Take it out: "):
        check_trainer_settings({"callbacks": [{"class_path": f"lightning.pytorch.callbacks.{name}"}]})


def test_the_learning_rate_finder_testing_and_predicting_are_refused(tmp_path, retriever) -> None:
    module, data = make_module(), make_data(retriever)
    with pytest.raises(ConfigError, match="found LearningRateFinder"):
        Tuner(quiet_trainer(tmp_path)).lr_find(module, steps(module))
    for loop in ("test", "predict"):
        with pytest.raises(Exception, match=f"{loop}"):
            getattr(quiet_trainer(tmp_path), loop)(module, datamodule=data)


class Hooks(Callback):
    """Notes which hooks were called, and whether a gradient was there before the step."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        norms = [float(each.grad.norm()) for each in pl_module.parameters() if each.grad is not None]
        if norms and all(map(math.isfinite, norms)):
            self.called.add("on_before_optimizer_step")


for _name in "on_train_start on_train_batch_start on_train_batch_end on_before_backward".split():
    setattr(Hooks, _name, lambda self, *_, name=_name: self.called.add(name))


def test_watchers_of_lightning_and_of_the_users_work(tmp_path) -> None:
    class Logs(AgentModule):
        def on_train_batch_end(self, outputs, batch, batch_idx) -> None:
            self.log("mine", float(batch_idx))

    seed_everything(1, verbose=False)
    hooks = Hooks()
    watchers = [lightning_callbacks.DeviceStatsMonitor(cpu_stats=False), lightning_callbacks.TQDMProgressBar(), hooks]
    settings = {"logger": CSVLogger(tmp_path), "profiler": "simple", "enable_progress_bar": True}
    trainer = fit(Logs(**LORA), tmp_path, callbacks=watchers, **settings)
    assert float(trainer.callback_metrics["mine"]) == 1.0
    assert hooks.called == {
        *("on_train_start", "on_train_batch_start", "on_train_batch_end"),
        *("on_before_backward", "on_before_optimizer_step"),
    }


def test_a_run_goes_on_from_the_last_checkpoint(tmp_path) -> None:
    def trained(epochs: int, path: str | None, folder: Path) -> AgentModule:
        module = make_module()
        saving = ModelCheckpoint(folder, save_last=True)
        trainer = quiet_trainer(folder, epochs=epochs, callbacks=[saving], enable_checkpointing=True)
        trainer.fit(module, steps(module), ckpt_path=path)
        return module

    whole = trained(2, None, tmp_path / "whole")
    trained(1, None, tmp_path / "parts")
    parts = trained(2, "last", tmp_path / "parts")
    assert all(map(torch.equal, whole.shared_base.policy_parameters(), parts.shared_base.policy_parameters()))


def test_another_world_size_goes_on_unless_rollouts_of_other_ranks_wait(tmp_path) -> None:
    before = {"trainer": {"devices": 1, "num_nodes": 1}, "data": {"seed": 0}}
    _refuse_changes(tmp_path, before, {"trainer": {"devices": 4, "num_nodes": 2}, "data": {"seed": 0}})
    with pytest.raises(ConfigError, match="other settings .data.seed."):
        _refuse_changes(tmp_path, before, {"trainer": {"devices": 4, "num_nodes": 1}, "data": {"seed": 1}})
    check_ranks(tmp_path, 2)
    (tmp_path / "stale_rollouts").mkdir()
    for name in ("000001.rank0.jsonl", "000001.rank1.jsonl", "000002.rank0.jsonl"):
        (tmp_path / "stale_rollouts" / name).touch()
    check_ranks(tmp_path, 2)
    with pytest.raises(ConfigError, match="found rollouts of 2 ranks .*, wanted those of 1. Go on with 2 ranks"):
        check_ranks(tmp_path, 1)
