"""Recorded rollouts for the trackers among a run's loggers: tables in W&B and trackio, traces in MLflow."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from medagent.evaluation.viewer.recorded import Row, summary_of
from medagent.retrieval.errors import needs_package

SHOWN = 64  # rollouts of an iteration


class TrackioLogger(Logger):
    """Metrics and rollouts for `trackio show`. Where the project has a run of this name, it goes on."""

    name, version = "trackio", ""
    _run: Any = None

    def __init__(self, project: str = "medagent", run: str | None = None) -> None:
        with needs_package("TrackioLogger", "trackio", "trackio"):
            import trackio
        self._table, self._begin = trackio.Table, partial(trackio.init, project, run, resume="allow")

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Give the run its configuration, before it begins."""
        self._begin.keywords["config"] = {name: each for name, each in dict(params).items() if not name.startswith("_")}

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log an optimizer step's or an iteration's figures."""
        self._run = self._run or self._begin()
        self._run.log(dict(metrics), step=step)

    def log_table(self, key: str, columns: list[str], data: list[list[Any]], step: int) -> None:
        """Log rows of values, as `WandbLogger.log_table` does."""
        self.log_metrics({key: self._table(columns, data)}, step)


def track(trainer: Trainer, rows: Sequence[Row], failed: set[str]) -> None:
    """Show an iteration's first rows in each logger with traces or `log_table`, and name those that `failed` once."""
    for logger in trainer.loggers:
        try:
            if isinstance(logger, MLFlowLogger):
                _trace(logger, rows[:SHOWN], trainer.current_epoch)
            elif rows and hasattr(logger, "log_table"):
                told = [_told(row, trainer.current_epoch) for row in rows[:SHOWN]]
                values = [list(each.values()) for each in told]
                logger.log_table("rollouts", list(told[0]), values, step=max(0, trainer.global_step - 1))
        except Exception as error:  # a tracker raises what it likes
            if (name := type(logger).__name__) not in failed:
                rank_zero_warn(f"{name}: rollouts were not logged ({error!r}). The run goes on without them there.")
            failed.add(name)


def _told(row: Row, iteration: int) -> Row:
    """A rollout's figures, the means of its turns, and its texts."""
    turns = [_means(turn) for turn in row["turns"]]
    means = {f"turn_{name}s": str([round(each[name], 4) for each in turns if each]) for name in ("ratio", "advantage")}
    said = [text for turn in row["turns"] for text in (turn["text"], *(each["text"] for each in turn["passages"]))]
    texts = {"question": row["question"], "gold_answer": row["gold"], "answer": row["answer"]}
    return {"iteration": iteration, **summary_of(row), **means, **texts, "dialogue": "\n\n".join(said)}


def _means(turn: Row) -> dict[str, float]:
    finite = {name: [each for each in values if each is not None] for name, values in turn["numbers"].items()}
    return {name: fmean(values) for name, values in finite.items() if values}


def _trace(logger: MLFlowLogger, rows: Sequence[Row], iteration: int) -> None:
    from mlflow import start_span_no_context as start

    place: Row = {"experiment_id": logger.experiment_id, "metadata": {"mlflow.sourceRun": str(logger.run_id)}}
    for row in rows:
        told = _told(row, iteration)
        tags = {name: str(told[name]) for name in ("iteration", "verdict", "stop_reason")}
        root = start("rollout", "AGENT", inputs=told, tags=tags, **place)
        for turn in row["turns"]:
            start("turn", "LLM", root, attributes=_means(turn)).end(turn["text"])
            if turn["query"] is not None:
                found = [{"page_content": each["text"], "metadata": {"id": each["id"]}} for each in turn["passages"]]
                start("search", "RETRIEVER", root, turn["query"]).end(found)
        root.end(row["answer"])
