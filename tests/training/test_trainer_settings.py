"""A setting of Lightning's trainer does what it says, or is refused before anything is loaded."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest
from lightning import Trainer
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from medagent.errors import ConfigError
from medagent.training.command import sft_command, train_command
from medagent.training.sharding import ShardedBase
from medagent.training.trainer_settings import ALONE, RULES, check_trainer, num_ranks, refuse_settings
from tests.support import CONFIGS
from tests.training.support import arguments, make_data, make_module

# Arguments that do what they say, each with what they do here.
KEPT = {
    "accelerator": "a kind of machine; those that Lightning alone knows are refused",
    "strategy": "one device, DDP or ShardedBase",
    "plugins": "a cluster's environment, or how checkpoints are written; no precision",
    "callbacks": "all but those in CALLBACKS",
    "devices": "ranks; the shares are checked",
    "num_nodes": "ranks",
    "logger": "where metrics go",
    "num_sanity_val_steps": "there is nothing to validate, so no step is taken",
    "enable_progress_bar": "Lightning's bar beside our line",
    "enable_model_summary": "a table at the start",
    "accumulate_grad_batches": "equal to data.num_micro_batches",
    "deterministic": "torch's own",
    "benchmark": "cuDNN's own",
    "inference_mode": "of loops that do not run here",
    "use_distributed_sampler": "the data has no sampler",
    "profiler": "reports times",
    "detect_anomaly": "torch's own: an error at the first NaN of a backward pass",
    "reload_dataloaders_every_n_epochs": "the loader holds no state",
    "default_root_dir": "the run's folder",
    "enable_autolog_hparams": "what loggers are given",
    "model_registry": "where Lightning uploads",
}

REFUSED = [
    ("precision", "bf16-mixed", "model.dtype"),
    ("precision", "bf16-true", "model.dtype"),
    ("precision", "16-mixed", "model.dtype"),
    ("precision", "16-true", "model.dtype"),
    ("precision", "64-true", "model.dtype"),
    ("precision", "bf16", "model.dtype"),
    ("precision", 16, "model.dtype"),
    ("precision", "transformer-engine", "model.dtype"),
    ("gradient_clip_val", 1e-12, "model.policy_max_grad_norm and model.critic_max_grad_norm"),
    ("gradient_clip_val", 0.0, "model.policy_max_grad_norm"),
    ("gradient_clip_algorithm", "value", "model.policy_max_grad_norm"),
    ("fast_dev_run", True, "trainer.max_epochs 1"),
    ("fast_dev_run", 3, "trainer.max_epochs 1"),
    ("barebones", True, "metrics and checkpoints"),
    ("max_epochs", -1, "exported after the last"),
    ("max_epochs", 0, "exported after the last"),
    ("max_steps", 7, "trainer.max_epochs"),
    ("max_time", "00:01:00:00", "trainer.max_epochs"),
    ("min_epochs", 5, "CollapseMonitor"),
    ("min_steps", 5, "CollapseMonitor"),
    ("limit_train_batches", 0.5, "data.num_questions"),
    ("limit_train_batches", 1, "data.num_questions"),
    ("overfit_batches", 2, "benchmark of few questions"),
    ("overfit_batches", 0.1, "benchmark of few questions"),
    ("limit_val_batches", 0, "HeldOutEvaluation"),
    ("limit_test_batches", 5, "HeldOutEvaluation"),
    ("limit_predict_batches", 0.1, "HeldOutEvaluation"),
    ("val_check_interval", 10, "HeldOutEvaluation"),
    ("check_val_every_n_epoch", 4, "HeldOutEvaluation"),
    ("sync_batchnorm", True, "frozen base"),
    ("accelerator", "tpu", "auto, cpu"),
    ("accelerator", "xla", "auto, cpu"),
    ("strategy", "fsdp", "medagent.training.sharding.ShardedBase"),
    ("strategy", "deepspeed_stage_2", "medagent.training.sharding.ShardedBase"),
    ("strategy", "xla", "medagent.training.sharding.ShardedBase"),
    ("strategy", "single_xla", "medagent.training.sharding.ShardedBase"),
    ("strategy", {"class_path": "lightning.pytorch.strategies.FSDPStrategy"}, "medagent.training.sharding.ShardedBase"),
    (
        "strategy",
        {"class_path": "lightning.pytorch.strategies.ModelParallelStrategy"},
        "medagent.training.sharding.ShardedBase",
    ),
    (
        "strategy",
        {"class_path": "medagent.training.sharding.ShardedBase", "init_args": {"ddp_comm_hook": "some.hook"}},
        "ddp_comm_hook some.hook",
    ),
    ("plugins", [{"class_path": "lightning.pytorch.plugins.MixedPrecision"}], "model.dtype"),
    ("plugins", {"class_path": "lightning.pytorch.plugins.precision.HalfPrecision"}, "model.dtype"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.StochasticWeightAveraging"}], "not their average"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging"}], "not their average"),
    ("callbacks", {"class_path": "lightning.pytorch.callbacks.GradientAccumulationScheduler"}, "num_micro_batches"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.LearningRateFinder"}], "model.policy_lr"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.BatchSizeFinder"}], "max_tokens"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.Timer"}], "max_epochs"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.BackboneFinetuning"}], "adapters train"),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.ModelPruning"}], "own copy"),
]

TAKEN = [
    ("precision", "32-true"),
    ("precision", 32),
    ("precision", None),
    ("fast_dev_run", False),
    ("limit_train_batches", 1.0),
    ("max_steps", -1),
    ("overfit_batches", 0.0),
    ("accelerator", "auto"),
    ("accelerator", "gpu"),
    ("strategy", "auto"),
    ("strategy", "ddp"),
    ("strategy", "ddp_find_unused_parameters_true"),
    ("strategy", {"class_path": "medagent.training.sharding.ShardedBase"}),
    ("strategy", {"class_path": "lightning.pytorch.strategies.DDPStrategy"}),
    ("plugins", [{"class_path": "lightning.pytorch.plugins.io.AsyncCheckpointIO"}]),
    ("callbacks", [{"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}]),
    ("callbacks", [{"class_path": "medagent.training.callbacks.ProgressLine"}]),
]


def test_every_argument_of_the_trainer_is_decided_on() -> None:
    decided = {rule.name for rule in (*RULES, *ALONE)} | set(KEPT)
    assert decided == set(inspect.signature(Trainer.__init__).parameters) - {"self"}


@pytest.mark.parametrize(("name", "value", "remedy"), REFUSED)
def test_a_setting_that_does_something_else_is_refused(name, value, remedy) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.{name}: found .*{remedy}"):
        refuse_settings({name: value})


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_a_setting_that_does_what_it_says_is_taken(name, value) -> None:
    refuse_settings({name: value}, (*RULES, *ALONE))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"trainer.precision": "bf16-mixed"}, "model.dtype"),
        ({"trainer.gradient_clip_val": 0.5}, "policy_max_grad_norm"),
        ({"trainer.fast_dev_run": "true"}, "max_epochs 1"),
        ({"trainer.strategy": "fsdp"}, "ShardedBase"),
        ({"trainer.enable_checkpointing": "false"}, "goes on from its checkpoints"),
        ({"trainer.log_every_n_steps": 50}, "come once"),
        ({"trainer.accumulate_grad_batches": 3}, "accumulate_grad_batches is 3, data.num_micro_batches is 4"),
        ({"trainer.devices": 3, "trainer.strategy": "ddp"}, "num_questions is 16 on 3 ranks"),
        ({"trainer.devices": "0,1,2", "trainer.strategy": "ddp"}, "num_questions is 16 on 3 ranks"),
        ({"trainer.devices": 1, "trainer.num_nodes": 5}, "num_questions is 16 on 5 ranks"),
        ({"trainer.devices": 4, "trainer.strategy": "ddp"}, "16 on 4 ranks"),  # 4 of each rank fill no 8 micro-batches
        (
            {"trainer.callbacks+": '{"class_path": "lightning.pytorch.callbacks.StochasticWeightAveraging", '
             '"init_args": {"swa_lrs": 0.1}}'},
            "not their average",
        ),
    ],
)  # fmt: skip
def test_the_command_line_refuses_before_a_model_is_loaded(setting, words, train_index, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("medagent.training.module.load_causal_lm", None)  # which would fail otherwise
    with pytest.raises(ConfigError, match=words):
        train_command(arguments(tmp_path / "run", train_index, epochs=1, **setting))
    assert not (tmp_path / "run").exists()


def test_fine_tuning_refuses_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("medagent.training.module.load_causal_lm", None)
    config = ["--config", str(CONFIGS / "sft" / "own_model.yaml"), f"--trainer.default_root_dir={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match="model.dtype"):
        sft_command([*config, "--trainer.precision=bf16-true"])
    with pytest.raises(ConfigError, match="accumulate_grad_batches is 2"):
        sft_command([*config, "--trainer.accumulate_grad_batches=2"])


BY_HAND = [
    ({"precision": "bf16-mixed"}, "trainer.precision"),
    ({"precision": "bf16-true"}, "trainer.precision"),
    ({"plugins": [MixedPrecision("bf16-mixed", "cpu")]}, "trainer.precision"),
    ({"gradient_clip_val": 1.0}, "trainer.gradient_clip_val"),
    ({"limit_train_batches": 1}, "trainer.limit_train_batches"),
    ({"fast_dev_run": True}, "trainer.fast_dev_run"),
    ({"max_steps": 3}, "trainer.max_steps"),
    ({"min_epochs": 3, "max_epochs": 4}, "trainer.min_epochs"),
    ({"strategy": "ddp", "sync_batchnorm": True}, "trainer.sync_batchnorm"),
    ({"max_time": "00:00:01:00"}, "trainer.callbacks: found Timer"),
    ({"callbacks": [lightning_callbacks.StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging"),
    ({"callbacks": [lightning_callbacks.GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
]


@pytest.mark.parametrize(("settings", "words"), BY_HAND, ids=[words for _, words in BY_HAND])
@pytest.mark.parametrize("with_data", [True, False])
def test_a_trainer_made_in_python_is_checked_before_it_trains(settings, words, with_data, retriever, tmp_path) -> None:
    made = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "max_epochs": 1,
        "accumulate_grad_batches": 1 if "GradientAccumulationScheduler" in words else 2,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(tmp_path),
        **settings,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer, module = Trainer(**made), make_module()
        given = {"datamodule": make_data(retriever)} if with_data else {"train_dataloaders": [None]}
        with pytest.raises(ConfigError, match=words):
            trainer.fit(module, **given)


def test_trainers_that_work_are_taken() -> None:
    plain = {"accelerator": "cpu", "logger": False, "max_epochs": 1, "enable_checkpointing": False}
    check_trainer(Trainer(devices=1, **plain))
    check_trainer(Trainer(devices=2, strategy="ddp", **plain))
    check_trainer(Trainer(devices=2, strategy=DDPStrategy(), **plain))
    check_trainer(Trainer(devices=2, strategy=ShardedBase(), **plain))
    with pytest.raises(ConfigError, match="ddp_comm_hook bf16_compress_hook"):
        check_trainer(Trainer(devices=2, strategy=DDPStrategy(ddp_comm_hook=bf16_compress_hook), **plain))
    with pytest.raises(ConfigError, match="FSDPStrategy"):
        refuse_settings({"strategy": FSDPStrategy()})


def test_the_number_of_ranks() -> None:
    assert num_ranks(2, 3) == 6
    assert num_ranks("2", 1) == 2
    assert num_ranks("0,1,4", 2) == 6
    assert num_ranks([0, 3], 1) == 2
    assert num_ranks("auto", 1) is None
    assert num_ranks(-1, 2) is None
