"""A setting does what it says, or is refused before anything is loaded, with its name and its remedy."""

from __future__ import annotations

import inspect
import math
import re
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
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.settings import (
    SUPPORTED,
    TRAINER_RULES,
    check_module_settings,
    check_trainer,
    check_trainer_settings,
    num_ranks,
)
from medagent.training.sft.supervised import SupervisedModule
from tests.support import CONFIGS
from tests.training.support import arguments, make_data, make_module

NAN, INF = math.nan, math.inf
# Arguments of the trainer that do what they say, though the help does not list them.
KEPT = set(
    "plugins limit_val_batches num_sanity_val_steps enable_model_summary deterministic benchmark inference_mode "
    "use_distributed_sampler detect_anomaly reload_dataloaders_every_n_epochs enable_autolog_hparams "
    "model_registry".split()
)
STRATEGIES, CALLBACKS, PLUGINS = (f"lightning.pytorch.{name}" for name in ("strategies", "callbacks", "plugins"))
DDP = f"{STRATEGIES}.DDPStrategy"
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "precision": (("bf16-mixed", "bf16-true", "16-mixed", "16-true", "64-true", "bf16", 16), "model.dtype"),
    "gradient_clip_val": ((1e-12, 0.0), "model.policy_max_grad_norm and model.critic_max_grad_norm"),
    "gradient_clip_algorithm": (("value",), "model.policy_max_grad_norm"),
    "fast_dev_run": ((True, 3), "trainer.max_epochs 1"),
    "barebones": ((True,), "metrics and checkpoints"),
    "max_epochs": ((-1, 0), "exported after the last"),
    "max_steps": ((7,), "trainer.max_epochs"),
    "max_time": (("00:01:00:00",), "trainer.max_epochs"),
    "min_epochs": ((5,), "CollapseMonitor"),
    "min_steps": ((5,), "CollapseMonitor"),
    "limit_train_batches": ((0.5, 1), "data.num_questions"),
    "accumulate_grad_batches": ((2,), "data.num_micro_batches"),
    "overfit_batches": ((2, 0.1), "benchmark of few questions"),
    "limit_test_batches": ((5,), "data.val_benchmark"),
    "limit_predict_batches": ((0.1,), "data.val_benchmark"),
    "val_check_interval": ((10,), "check_val_every_n_epoch"),
    "check_val_every_n_epoch": ((0, None), "1 iteration or more"),
    "sync_batchnorm": ((True,), "frozen base"),
    "enable_checkpointing": ((False,), "goes on from its checkpoints"),
    "log_every_n_steps": ((50,), "come once"),
    "accelerator": (("tpu", "xla"), "auto, cpu"),
    "strategy": (
        (
            *("fsdp", "deepspeed_stage_2", "xla", "single_xla", FSDPStrategy()),
            *({"class_path": f"{STRATEGIES}.{name}"} for name in ("FSDPStrategy", "ModelParallelStrategy")),
        ),
        "wanted auto or ddp",
    ),
    "plugins": (
        ([{"class_path": f"{PLUGINS}.MixedPrecision"}], {"class_path": f"{PLUGINS}.precision.HalfPrecision"}),
        "model.dtype",
    ),
}
REFUSED_CALLBACKS = {
    "StochasticWeightAveraging": "not their average",
    "EMAWeightAveraging": "not their average",
    "GradientAccumulationScheduler": "num_micro_batches",
    "LearningRateFinder": "model.policy_lr",
    "BatchSizeFinder": "max_tokens",
    "Timer": "max_epochs",
    "BackboneFinetuning": "adapters train",
    "ModelPruning": "own copy",
}
TAKEN: dict[str, tuple[object, ...]] = {
    "precision": ("32-true", 32, None),
    "fast_dev_run": (False,),
    "limit_train_batches": (1.0,),
    "max_steps": (-1,),
    "overfit_batches": (0.0,),
    "accelerator": ("auto", "gpu"),
    "strategy": (
        *("auto", "ddp", "ddp_find_unused_parameters_true"),
        {"class_path": DDP},
    ),
    "plugins": ([{"class_path": f"{PLUGINS}.io.AsyncCheckpointIO"}],),
    "callbacks": (
        [
            {"class_path": f"{CALLBACKS}.LearningRateMonitor"},
            {"class_path": "medagent.training.callbacks.ProgressLine"},
        ],
    ),
}


def test_every_argument_of_the_trainer_is_decided_on() -> None:
    ruled = set(TRAINER_RULES)
    assert ruled | set(SUPPORTED) | KEPT == set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert ruled & set(SUPPORTED) == {"max_epochs", "check_val_every_n_epoch"}
    assert ruled <= set(REFUSED)


def test_a_setting_of_the_trainer_does_what_it_says_or_is_refused() -> None:
    for name, (values, remedy) in REFUSED.items():
        for value in values:
            with pytest.raises(ConfigError, match=rf"trainer\.{name}: found .*{remedy}"):
                check_trainer_settings({name: value})
    for name, remedy in REFUSED_CALLBACKS.items():
        with pytest.raises(ConfigError, match=rf"trainer\.callbacks: found {name}.*{remedy}"):
            check_trainer_settings({"callbacks": [{"class_path": f"{CALLBACKS}.{name}"}]})
    hook = {"class_path": DDP, "init_args": {"ddp_comm_hook": "some.hook"}}
    with pytest.raises(ConfigError, match=r"trainer\.strategy: .*ddp_comm_hook some.hook"):
        check_trainer_settings({"strategy": hook})
    for name, allowed in TAKEN.items():
        for value in allowed:
            check_trainer_settings({name: value})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"trainer.precision": "bf16-mixed"}, "model.dtype"),
        ({"trainer.strategy": "fsdp"}, "wanted auto or ddp"),
        ({"trainer.accumulate_grad_batches": 3}, "accumulate_grad_batches: found 3, wanted 1.*num_micro_batches"),
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


BY_HAND = [
    ({"precision": "bf16-mixed"}, "trainer.precision"),
    ({"plugins": [MixedPrecision("bf16-mixed", "cpu")]}, "trainer.precision"),
    ({"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches: found 2, wanted 1.*num_micro_batches"),
    ({"min_epochs": 3, "max_epochs": 4}, "trainer.min_epochs"),
    ({"max_time": "00:00:01:00"}, "trainer.callbacks: found Timer"),
    ({"callbacks": [lightning_callbacks.StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging"),
    ({"callbacks": [lightning_callbacks.GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
]
PLAIN = {"accelerator": "cpu", "logger": False, "max_epochs": 1, "enable_checkpointing": False}


def test_a_trainer_made_in_python_is_checked(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for settings, words in BY_HAND:
            with pytest.raises(ConfigError, match=words):
                check_trainer(Trainer(**{**PLAIN, "default_root_dir": tmp_path, **settings}))


@pytest.mark.parametrize("with_data", [True, False])
def test_a_trainer_made_in_python_is_checked_before_it_trains(with_data: bool, retriever, tmp_path: Path) -> None:
    made = {**PLAIN, "devices": 1, "default_root_dir": str(tmp_path)}
    trainer, module = Trainer(**made, enable_progress_bar=False, gradient_clip_val=1.0), make_module()
    given = {"datamodule": make_data(retriever)} if with_data else {"train_dataloaders": [None]}
    with pytest.raises(ConfigError, match=r"trainer\.gradient_clip_val"):
        trainer.fit(module, **given)


def test_trainers_that_work_are_taken() -> None:
    check_trainer(Trainer(devices=1, **PLAIN))
    for strategy in ("ddp", DDPStrategy()):
        check_trainer(Trainer(devices=2, strategy=strategy, **PLAIN))
    with pytest.raises(ConfigError, match="ddp_comm_hook bf16_compress_hook"):
        check_trainer(Trainer(devices=2, strategy=DDPStrategy(ddp_comm_hook=bf16_compress_hook), **PLAIN))


def test_the_number_of_ranks() -> None:
    cases = {(2, 3): 6, ("2", 1): 2, ("0,1,4", 2): 6, ("auto", 1): None, (-1, 2): None}
    assert {case: num_ranks(*case) for case in cases} == cases
    assert num_ranks([0, 3], 1) == 2


NUMBERS: dict[str, tuple[float, ...]] = {
    "policy_lr": (NAN, INF, -1e-3, 1e30),
    "critic_lr": (NAN, INF, -1e-3, 2.0),
    "policy_max_grad_norm": (NAN, INF, 0.0, -1.0),
    "critic_max_grad_norm": (NAN, INF, 0.0, -1.0),
    "weight_decay": (NAN, INF, -0.1),
    "kl_coef": (NAN, INF, -1e-3),
    "entropy_coef": (NAN, -INF),
    "temperature": (NAN, INF, 0.0, -1.0),
    "value_clip": (NAN, INF, 0.0, -1.0),
    "lr_decay_iterations": (0, -3),
    "lr_warmup_iterations": (-1, NAN),
}


def test_a_number_out_of_range_is_refused_before_a_model_is_loaded() -> None:
    for name, values in NUMBERS.items():
        for value in values:
            with pytest.raises(ConfigError, match=re.escape(f"model.{name}: found {value}, wanted ")):
                AgentModule("/no/such/folder", **{name: value})
    for value in (None, "1", True):
        with pytest.raises(ConfigError, match=rf"model\.policy_max_grad_norm: found {value}, wanted"):
            SupervisedModule("/no/such/folder", policy_max_grad_norm=value)
    for made in (AgentModule, SupervisedModule):
        for dtype in ("float16", "half"):
            with pytest.raises(ConfigError, match=rf"model\.dtype: found {dtype}, wanted bfloat16 or float32\."):
                made("/no/such/folder", dtype=dtype)
    for name, value in (("rank", 0), ("rank", -2), ("alpha", 0), ("alpha", -8), ("alpha", NAN)):
        with pytest.raises(ConfigError, match=f"LoRA.{name}: found {value}, wanted a whole number, 1 or more"):
            LoraSettings(**{name: value})


def test_numbers_in_range_are_taken() -> None:
    numbers = {"kl_coef": 0, "lr_warmup_iterations": 0, "lr_decay_iterations": 1, "policy_lr": 0.0, "critic_lr": 1.0}
    numbers |= {"policy_max_grad_norm": 1e6, "critic_max_grad_norm": 1, "value_clip": None, "entropy_coef": -0.1}
    lora = {"policy_lora": LoraSettings(), "critic_lora": LoraSettings(), "execution": Execution()}
    named = {"dtype": "bfloat16", "critic_inputs": "context", "base_model": "starter"}
    check_module_settings({**numbers, **lora, **named, "weight_decay": 0, "temperature": 0.7})
