"""What a run gives out: its agent, readable rollouts, a live line, and metrics; and the budget that ends it."""

import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from medagent.agent_folder import retriever_spec, save_agent
from medagent.agent_spec import AgentSpec, read_spec
from medagent.errors import InputError, require
from medagent.evaluation.viewer.recorded import ROLLOUTS, RecordedRun, read_metrics
from medagent.models.base_models import stored_name
from medagent.training.agent_data import AgentData
from medagent.training.default_callbacks import CountedTokens, budget_units
from medagent.training.module import AgentModule
from medagent.training.ranks import callbacks_of

SAID = 200  # characters of a rollout's turns at a run's end
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


class ProgressLine(Callback):
    """Prints a line per iteration: success, searches, clip fraction, speed and time left."""

    def __init__(self) -> None:
        self._started = self._epoch_started = 0.0
        self._first = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()
        self._first = trainer.current_epoch

    @rank_zero_only
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_started = time.monotonic()
        if sys.stdout.isatty():
            print(f"\riteration {trainer.current_epoch + 1}: collecting rollouts ...\x1b[K", end="", flush=True)

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if sys.stdout.isatty():
            done = f"{batch_idx + 1}/{trainer.num_training_batches}"
            print(f"\riteration {trainer.current_epoch + 1}: updating {done}\x1b[K", end="", flush=True)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        total = trainer.max_epochs or 0
        done = trainer.current_epoch + 1
        now = time.monotonic()
        left_s = (now - self._started) / (done - self._first) * (total - done)
        held_out = metrics.get("validation/accuracy")
        clipped = metrics.get("policy/clip_fraction", math.nan)  # there is none where every step was skipped
        bar = "#" * round(20 * metrics["reward/success"])
        line = (
            f"iteration {done:3d}/{total}  success {bar:.<20} {metrics['reward/success']:4.0%}"
            f"  searches {metrics['rollout/searches']:.2f}  clipped {clipped:5.1%}"
            f"  {metrics['throughput/action_tokens_per_s']:5,.0f} tokens/s  {now - self._epoch_started:4.1f} s"
            f"  left {left_s:3.0f} s" + (f"  held-out {held_out:4.0%}" if held_out is not None else "")
        )
        print(("\r\x1b[K" if sys.stdout.isatty() else "") + line, flush=True)

    @rank_zero_only
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell what changed most since the run began, with rollouts before and after."""
        run = Path(trainer.default_root_dir)
        try:
            told = [*changes(read_metrics(run)), *before_and_after(run)]
        except InputError as error:  # a record was damaged since, and the run itself is whole
            told = [str(error)]
        print("\n".join(told), flush=True)


WATCHED = {  # metric -> its words
    "reward/success": "success",
    "rollout/searches": "searches",
    "rollout/valid_answer": "readable answers",
    "rollout/truncated": "cut rollouts",
    "policy/clip_fraction": "clipped",
    "policy/entropy": "entropy",
}


def changes(metrics: Sequence[Mapping[str, float]], most: int = 3) -> list[str]:
    """The figures that changed most from the first iteration to the last, in a line."""
    if len(metrics) < 2:
        return []
    pairs = [(words, metrics[0].get(name), metrics[-1].get(name)) for name, words in WATCHED.items()]
    both = [(words, old, new) for words, old, new in pairs if old is not None and new is not None]
    both.sort(key=lambda each: abs(each[2] - each[1]) / max(abs(each[1]), abs(each[2]), 1e-9), reverse=True)
    told = ", ".join(f"{words} {old:.2f} to {new:.2f}" for words, old, new in both[:most])
    return [f"Changed most since the first iteration: {told}."]


def before_and_after(run: Path, most: int = 3) -> list[str]:
    """The questions whose reward changed most between the first and the last time that they were asked."""
    if len(list((run / ROLLOUTS).glob("*.gz"))) < 2:
        return []
    recorded, asked = RecordedRun(run), dict[tuple[str, int], list[tuple[str, dict[str, Any]]]]()
    for part, told in recorded.overview()["parts"].items():
        for row in told["rollouts"]:
            asked.setdefault((row["question_id"], row["sample"]), []).append((part, row))
    pairs = [(rows[0], rows[-1]) for rows in asked.values() if len(rows) > 1]
    pairs.sort(key=lambda pair: abs(pair[1][1]["reward"] - pair[0][1]["reward"]))
    changed = {pair[0][1]["question_id"]: pair for pair in pairs}  # of a question the sample that changed most
    lines = [f"See every rollout: medagent view {run}"]
    for pair in list(changed.values())[: -most - 1 : -1]:
        for part, row in pair:
            whole = recorded.rollout(part, row["question_id"], row["sample"])
            lines += [whole["question"]] if (part, row) == pair[0] else []
            said = " ".join(" ".join(turn["text"].split()) for turn in whole["turns"])
            lines.append(f"  iteration {int(part) + 1}, {row['verdict']}: {said[:SAID]}")
    return lines


class ComputeBudget(Callback):
    """Ends a run once it has spent `units`: tokens read forward, plus twice those read backward.

    `medagent train` ends after the iteration that crosses the budget, `medagent sft` after the optimizer step. The
    agent is exported. A run that has spent its budget stays ended when it is started again. `trainer.max_epochs` ends
    a run too, so give more than the budget allows. `model.lr_decay_iterations` counts iterations: set it to the length
    that you expect.
    """

    def __init__(self, units: float) -> None:
        require(units > 0, "ComputeBudget.units", units, "more than 0 tokens")
        self._units = units

    def spent(self, trainer: Trainer, pl_module: LightningModule) -> float:
        """The units that the run has spent so far, over all ranks."""
        return budget_units(*callbacks_of(trainer, CountedTokens)[0].so_far(trainer, pl_module))

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
        if callbacks_of(trainer, AgentExport):
            AgentExport.export(trainer, pl_module)
        if trainer.is_global_zero:
            done = trainer.current_epoch + 1
            print(f"The budget of {self._units:,.0f} units is spent in iteration {done}: {spent:,.0f}.", flush=True)
