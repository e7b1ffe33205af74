"""Exports the trained agent: a directory that evaluation, the command line and serving load."""

import shutil
from pathlib import Path
from typing import Any

import yaml
from lightning import Callback, LightningModule, Trainer

from medagent.agent_folder import retriever_spec, save_agent
from medagent.agent_spec import AgentSpec, read_spec
from medagent.models.base_models import stored_name
from medagent.training.agent_data import AgentData
from medagent.training.module import AgentModule

# Settings of a run that its model card names.
DATA_PARTS = tuple("benchmark demonstrations reward advantage off_policy num_questions num_samples".split())
MODEL_PARTS = ("policy_lora", "policy_lr", "kl_coef", "policy_loss")


class AgentExport(Callback):
    """Writes `agent/` in the run's folder after the last iteration (and after every `every`-th, if set).

    It does so before the iteration's checkpoint is saved. A run that is killed in between exports again when it goes
    on. If another callback ends the run early, such as EarlyStopping, the export follows at the end. A run that was
    stopped, and is then asked for the iterations that it has done, exports too.
    """

    def __init__(self, every: int | None = None) -> None:
        self._every = every
        self._left: int | None = None  # iterations of an agent that is not exported
        self._trained = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = trainer.current_epoch + 1
        if done == trainer.max_epochs or (self._every and done % self._every == 0):
            self.export(trainer, pl_module)
            self._left = None
        else:
            self._left = done

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Export what the last iteration left where the run ended early."""
        if self._left is not None:
            self.export(trainer, pl_module, iterations=self._left)
            self._left = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that iterations are left: Lightning skips training where none is."""
        self._trained = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that nothing was left to do, and export what a run that was stopped before has learnt."""
        done = trainer.current_epoch
        if self._trained or not done or not trainer.is_global_zero:
            return
        print(f"Nothing is left to do: the run has made {done} of the {trainer.max_epochs} trainer.max_epochs.")
        folder = Path(trainer.default_root_dir) / "agent"
        if not folder.exists() or read_spec(folder).training.get("iterations") != str(done):
            self.export(trainer, pl_module, iterations=done)

    @staticmethod
    def export(trainer: Trainer, pl_module: LightningModule, iterations: int | None = None) -> None:
        """Write the agent's folder whole or not at all, as of `iterations` or the present one."""
        assert isinstance(pl_module, AgentModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, AgentData)
        if not trainer.is_global_zero:
            return
        settings = data.agent_settings
        spec = AgentSpec(
            base_model=stored_name(pl_module.base_name),
            dtype=pl_module.dtype_name,
            protocol=settings.protocol,
            limits=settings.limits,
            top_k=settings.top_k,
            retriever=retriever_spec(data.retriever),
            metrics={name: float(value) for name, value in trainer.callback_metrics.items()},
            training=how_made(trainer, iterations),
            tools={tool.name: tool.given for tool in settings.made_tools},
            quantise=pl_module.execution.quantise,
            base_sha256=pl_module.base_sha256,
        )
        folder = Path(trainer.default_root_dir) / "agent"
        fresh, old = folder.with_name("agent.part"), folder.with_name("agent.old")
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        save_agent(fresh, spec, pl_module.tokenizer)
        pl_module.shared_base.save_policy(fresh / "adapter")
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def how_made(trainer: Trainer, iterations: int | None = None) -> dict[str, str]:
    """The parts of a run that a model card names, from the run's resolved configuration where there is one."""
    path = Path(trainer.default_root_dir) / "config.yaml"
    made = {"iterations": str(iterations or trainer.current_epoch + 1)}
    if not path.exists():
        return made
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    parts = {
        "algorithm": (config.get("algorithm") or {}).get("name"),
        "callbacks": config["trainer"]["callbacks"],
        **{name: config["data"].get(name) for name in DATA_PARTS},
        **{name: config["model"].get(name) for name in MODEL_PARTS},
    }
    return made | {name: in_words(value) for name, value in parts.items() if value is not None}


def in_words(value: Any) -> str:
    """A setting in one line: classes by their last name, with their arguments."""
    if isinstance(value, list):
        return ", ".join(map(in_words, value))
    if isinstance(value, dict) and "class_path" in value:
        arguments = ", ".join(
            f"{name}={in_words(each)}" for name, each in (value.get("init_args") or {}).items() if each is not None
        )
        return f"{value['class_path'].rsplit('.', 1)[-1]}({arguments})"
    if isinstance(value, dict):
        return ", ".join(f"{name}={in_words(each)}" for name, each in value.items())
    return str(value)
