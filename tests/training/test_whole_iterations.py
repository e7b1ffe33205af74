"""A run ends after a whole iteration, with its agent, and is taken up after one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from torch.utils.data import DataLoader

from medagent.agent_spec import read_spec
from medagent.errors import ConfigError
from medagent.training.callbacks import AgentExport
from medagent.training.execution import Execution
from medagent.training.module import AgentModule
from medagent.training.run import newest_checkpoint, run_checkpoints
from tests.training.support import OneBatch, make_data, make_module, quiet_trainer, small_experience


class StopAt(Callback):
    """Asks the trainer to stop in one of its hooks."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        trainer.should_stop = self.hook == "batch"

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        trainer.should_stop = self.hook == "step"

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        trainer.should_stop = self.hook == "epoch"


def parts(count: int, **settings: object) -> tuple[AgentModule, DataLoader]:
    """A module, and `count` micro-batches of an iteration."""
    module = make_module(**settings)
    return module, DataLoader(OneBatch([small_experience(module)] * count), batch_size=None)


STOPS = {
    "early stopping": lambda: EarlyStopping("kl/reference", divergence_threshold=-1.0),
    "a user's callback": lambda: StopAt("epoch"),
}


@pytest.mark.parametrize(("stop", "first"), [("early stopping", True), ("a user's callback", False)])
def test_a_run_that_ends_early_exports_its_agent(stop: str, first: bool, retriever, tmp_path: Path) -> None:
    callbacks = [AgentExport(), STOPS[stop]()]
    data = make_data(retriever, num_questions=2, num_minibatches=1, num_micro_batches=1)
    trainer = quiet_trainer(tmp_path, epochs=3, callbacks=callbacks[:: -1 if first else 1])
    trainer.fit(make_module(), datamodule=data)
    assert trainer.current_epoch == 1
    spec = read_spec(tmp_path / "agent")
    assert spec.training["iterations"] == "1"
    assert spec.metrics["reward/success"] >= 0


@pytest.mark.parametrize("hook", ["batch", "step"])
def test_a_stop_inside_an_iteration_is_an_error(hook: str, tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, callbacks=[StopAt(hook)])
    if hook == "step":  # which the callback's own batch hook would undo
        trainer.callbacks[-1].on_train_batch_end = lambda *_: None
    with pytest.raises(ConfigError, match=r"should_stop: found true in iteration 0 after step 1 of 2"):
        trainer.fit(*parts(2))
    quiet_trainer(tmp_path, callbacks=[StopAt("batch")]).fit(*parts(1))  # the last one of an iteration may


class Fail(Callback):
    """Ends the process inside the second iteration."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.current_epoch == 1:
            raise RuntimeError("killed")


def trainer_of(run: Path, callbacks: list[Callback], **settings: object) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=run, devices=1, max_epochs=2, callbacks=callbacks, **quiet, **settings)


INSIDE = {
    "every step": lambda folder: ModelCheckpoint(folder, filename="x-{step}", every_n_train_steps=1, save_top_k=-1),
    "on exception": lambda folder: OnExceptionCheckpoint(folder),
    "weights alone": lambda folder: ModelCheckpoint(folder, filename="x-{step}", save_weights_only=True, save_top_k=-1),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_a_run_is_taken_up_after_a_whole_iteration(kind: str, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "checkpoints"
    trainer = trainer_of(tmp_path, [INSIDE[kind](folder), Fail(), run_checkpoints(tmp_path)])
    with pytest.raises(RuntimeError, match="killed"):
        trainer.fit(*parts(1))
    others = [path for path in folder.glob("*.ckpt") if path.name != "epoch=0.ckpt"]
    assert others
    for path in others:
        os.utime(path, (2e9, 2e9))
    assert newest_checkpoint(tmp_path) == folder / "epoch=0.ckpt"
    why = "it holds weights alone" if kind == "weights alone" else "it was made inside an iteration"
    assert capsys.readouterr().out.count(f"is passed over: {why}") == len(others)


def test_the_iteration_before_is_kept_for_where_a_kill_tears_the_newest(tmp_path: Path) -> None:
    trainer_of(tmp_path, [run_checkpoints(tmp_path)]).fit(*parts(1))
    newest = tmp_path / "checkpoints" / "epoch=1.ckpt"
    assert newest_checkpoint(tmp_path) == newest
    newest.write_bytes(newest.read_bytes()[:999])
    assert newest_checkpoint(tmp_path) == newest.with_name("epoch=0.ckpt")


def test_ddp_on_one_device_trains_as_no_ddp_does(tmp_path: Path) -> None:
    before, found = dict(os.environ), []
    try:
        for strategy in ("auto", "ddp"):
            module, batches = parts(1, execution=Execution(max_tokens=12))
            trainer = trainer_of(tmp_path, [], strategy=strategy, enable_checkpointing=False)
            trainer.fit(module, batches)
            assert trainer.global_step == 2
            found.append(torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad]))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
    assert torch.equal(*found)
