"""The worked example of docs/own_task.md runs as it says, on fewer questions."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from medagent.agent import Job
from medagent.errors import ConfigError
from medagent.records import Question, Rollout, StopReason, Turn
from medagent.saved import load_agent, read_spec
from retrieval.tools import Toolbox, tool_named
from training.run import sft, train

ROOT = Path(__file__).parent.parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, where the user stands."""
    shutil.copytree(ROOT / "docs" / "own_task", tmp_path / "task")
    monkeypatch.chdir(tmp_path / "task")
    monkeypatch.syspath_prepend(str(tmp_path / "task"))
    yield tmp_path / "task"
    sys.modules.pop("open_qa", None)


def test_no_dose_is_in_two_splits_and_the_reward_is_exact_match(here: Path) -> None:
    example = runpy.run_path("open_qa.py")
    splits = {name: example["OpenQuestions"](name).questions() for name in ("train", "validation", "test")}
    weights = {name: {q.id.split(":")[-1] for q in each if q.kind == "dose"} for name, each in splits.items()}
    assert not weights["train"] & weights["test"]
    assert not weights["validation"] & (weights["train"] | weights["test"])
    assert all(q.answer and not q.options for each in splits.values() for q in each)
    reward = example["ExactMatch"]()

    def graded(answer: str | None, *, searched: bool) -> Rollout:
        turns = [Turn((1,), (0.0,), "", query="x" if searched else None), Turn((1,), (0.0,), "", answer=answer)]
        stop = StopReason.ANSWERED if answer is not None else StopReason.MALFORMED
        return reward(Rollout(Question("q", "?", answer="The left ventricle"), (1,), tuple(turns), stop))

    assert (graded("left ventricle [1]", searched=True).reward, graded("left ventricle", searched=False).success) == (
        1,
        True,
    )
    assert (graded("right ventricle", searched=True).reward, graded("right ventricle", searched=False).reward) == (
        0.1,
        0,
    )
    assert graded(None, searched=True).reward == 0


@pytest.mark.slow
def test_the_example_runs(here: Path, index_folder: Path) -> None:
    example = runpy.run_path("open_qa.py")
    questions = example["OpenQuestions"]("train", facts=32, doses=32).questions()
    Path("dialogues.jsonl").write_text("\n".join(json.dumps(row) for row in example["demonstrations"](questions)))
    index = "--data.retriever.init_args.retriever.init_args.index"
    fewer = "{class_path: training.callbacks.HeldOutEvaluation, init_args: {every: 1, benchmark: {class_path: open_qa.OpenQuestions, init_args: {split: test, facts: 4, doses: 4}}}}"
    callbacks = f"--trainer.callbacks=[{fewer}, {{class_path: training.callbacks.AgentExport}}, {{class_path: training.callbacks.RolloutRecords}}]"
    run = sft(
        ["--config", "sft.yaml", index, str(index_folder), "--trainer.max_epochs=1", callbacks.rsplit(", ", 1)[0] + "]"]
    )
    assert read_spec(run / "agent").retriever.tools == ("open_qa.Doses",)
    given = [
        "--config",
        "train.yaml",
        "--config",
        str(ROOT / "configs" / "algorithms" / "st_ppo.yaml"),
        index,
        str(index_folder),
    ]
    small = ["--trainer.max_epochs=1", "--data.num_questions=16", "--model.base_model=starter", callbacks]
    run = train([*given, *small])
    rows = [json.loads(line) for line in (run / "rollouts" / "iteration_0000.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"fact", "dose"}
    with pytest.raises(ConfigError, match=r"found \[\], wanted \['open_qa.Doses'\]"):
        load_agent(run / "agent")
    agent = load_agent(run / "agent", tools=[tool_named("open_qa.Doses")])
    assert isinstance(agent.retriever, Toolbox)
    assert agent.run_all([Job(questions[-1])])[0].turns
