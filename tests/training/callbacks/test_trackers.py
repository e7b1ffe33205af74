"""Recorded rollouts in the trackers that a run logs to."""

from __future__ import annotations

import json
import sqlite3
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger

from medagent.retrieval.errors import RetrievalError
from medagent.training.callbacks import RolloutRecords, TrackioLogger
from medagent.training.callbacks.trackers import track
from tests.evaluation.viewer.support import HOSTILE, SUMMARY, rollout
from tests.training.support import make_data, make_module, quiet_trainer


class Tables(CSVLogger):
    """A logger that takes tables, and may fail."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        super().__init__(folder)
        self.tables, self.error = [], error

    def log_table(self, key, columns, data, step) -> None:
        self.tables.append((key, columns, data, step))
        if self.error:
            raise self.error


def at(iteration: int, *loggers):
    return SimpleNamespace(loggers=loggers, current_epoch=iteration, global_step=4 * (iteration + 1))


def rows(count: int = 2) -> list[dict]:
    return [rollout("q0", sample, right=sample == 0) for sample in range(count)]


def test_a_table_has_a_row_per_rollout_with_its_figures_and_its_dialogue(tmp_path: Path) -> None:
    logger = Tables(tmp_path)
    track(at(1, logger), rows(70), set())
    ((key, columns, data, step),) = logger.tables
    assert (key, len(data), step) == ("rollouts", 64, 7)
    first = dict(zip(columns, data[0], strict=True))
    assert first.pop("dialogue").startswith(f" word0 word1 word2 word3{HOSTILE}\n\n")
    assert first == {
        "iteration": 1,
        **SUMMARY,
        "turn_ratios": "[1.0, 0.5]",
        "turn_advantages": "[0.125, 0.125]",
        "question": f"q0 {HOSTILE}",
        "gold_answer": "A",
        "answer": "x",
    }


def test_a_rollout_without_the_trainers_numbers_is_logged_too(tmp_path: Path) -> None:
    logger, row = Tables(tmp_path), rows(1)[0]
    for turn in row["turns"]:
        turn["numbers"] = {}
    track(at(0, logger), [row], set())
    ((_, columns, data, _),) = logger.tables
    assert data[0][columns.index("turn_ratios")] == "[]"
    track(at(0, logger), [], set())
    assert len(logger.tables) == 1, "there is no table of nothing"


def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(retriever, tmp_path: Path) -> None:
    fails, works = Tables(tmp_path, ConnectionError("no route")), Tables(tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        quiet_trainer(tmp_path, epochs=2, callbacks=[RolloutRecords()], logger=[fails, works], log_every_n_steps=1).fit(
            make_module(), make_data(retriever, num_questions=4, num_minibatches=1)
        )
    said = [str(each.message) for each in told if "rollouts" in str(each.message)]
    assert said == [
        "Tables: rollouts were not logged (ConnectionError('no route')). The run goes on without them there."
    ]
    assert [len(fails.tables), len(works.tables)] == [2, 2]
    assert [table[2][0][0] for table in works.tables] == [0, 1], "each has its iteration"
    assert len(list((tmp_path / "rollouts").glob("*.jsonl.gz"))) == 2


def test_without_trackio_its_logger_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(RetrievalError, match=r"medagent\[trackio\]"):
        TrackioLogger()


def test_wandb_stores_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(project="medagent", save_dir=tmp_path, offline=True)
    track(at(0, logger), rows(), set())
    wandb.finish()
    (place,) = tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    table = json.loads(place.read_text())
    assert [dict(zip(table["columns"], each, strict=True))["verdict"] for each in table["data"]] == ["correct", "wrong"]


@pytest.mark.filterwarnings("ignore")
def test_trackio_stores_metrics_and_the_table_and_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # which its import reads
    trackio = pytest.importorskip("trackio")
    for _ in range(2):
        logger = TrackioLogger("medagent", "mine")
        logger.log_hyperparams({"rate": 0.5, "_instantiator": "x"})
        logger.log_metrics({"reward/success": 0.5}, step=3)
        track(at(0, logger), rows(), set())
        trackio.finish()
    with sqlite3.connect(tmp_path / "medagent.db") as store:
        found = store.execute("select run_name, metrics from metrics order by id").fetchall()
    assert {name for name, _ in found} == {"mine"}
    (table, _) = [told["rollouts"]["_value"] for told in (json.loads(each) for _, each in found) if "rollouts" in told]
    assert [each["verdict"] for each in table] == ["correct", "wrong"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_stores_a_trace_per_rollout_with_a_span_per_turn(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", minversion="3")
    logger = MLFlowLogger("medagent", tracking_uri=f"sqlite:///{tmp_path / 'store.db'}")
    track(at(3, logger), rows(), set())
    mlflow.flush_trace_async_logging()
    found = mlflow.search_traces(
        locations=[logger.experiment_id],
        run_id=logger.run_id,
        filter_string="tags.verdict = 'wrong'",
        return_type="list",
    )
    (trace,) = found
    assert trace.info.tags["iteration"] == "3"
    root, *spans = trace.data.spans
    assert (root.name, root.inputs["reward"], root.outputs) == ("rollout", 0.0, "x")
    assert [each.name for each in spans] == ["turn", "search", "turn"]
    assert {each.parent_id for each in spans} == {root.span_id}
    assert [each.attributes["ratio"] for each in spans if each.name == "turn"] == [1.0, 0.5]
    assert (spans[1].inputs, spans[1].outputs[0]["metadata"]) == ("gout", {"id": "p1"})
