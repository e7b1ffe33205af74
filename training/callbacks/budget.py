"""Ends a run by the compute that it has spent, in tokens and not in iterations."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from medagent.errors import ConfigError
from medagent.training.agent_data import AgentData
from medagent.training.callbacks.export import AgentExport
from medagent.training.default_callbacks import CountedTokens, budget_units
from medagent.training.module import AgentModule


class ComputeBudget(Callback):
    """Ends a run once it has spent `units`: tokens read forward, plus twice those read backward.

    `medagent train` ends after the iteration that crosses the budget, `medagent sft` after the optimizer step. The
    agent is exported. A run that has spent its budget stays ended when it is started again. `trainer.max_epochs` ends
    a run too, so give more than the budget allows. `model.lr_decay_iterations` counts iterations: set it to the length
    that you expect.
    """

    def __init__(self, units: float) -> None:
        if not units > 0:
            raise ConfigError(f"ComputeBudget.units: found {units}, wanted more than 0 tokens.")
        self._units = units

    def spent(self, trainer: Trainer, pl_module: LightningModule) -> float:
        """The units that the run has spent so far, over all ranks."""
        return budget_units(*CountedTokens.of(trainer).so_far(trainer, pl_module))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch and self.spent(trainer, pl_module) >= self._units:
            print(f"Nothing is left to do: the budget of {self._units:,.0f} units is spent.", flush=True)
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the iteration after this optimizer step, where any step may end one."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, AgentData)
        if data.any_step_ends and self.spent(trainer, pl_module) >= self._units:
            trainer.fit_loop.max_batches = batch_idx + 1
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run after an iteration that has spent the budget; export before its checkpoint is saved."""
        assert isinstance(pl_module, AgentModule)
        spent = self.spent(trainer, pl_module)
        if spent < self._units:
            return
        trainer.should_stop = True
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(each, AgentExport) for each in callbacks):
            AgentExport.export(trainer, pl_module)
        if trainer.is_global_zero:
            done = trainer.current_epoch + 1
            print(f"The budget of {self._units:,.0f} units is spent in iteration {done}: {spent:,.0f}.", flush=True)
