"""The worked example of examples/own_task/README.md runs as it says, on fewer questions."""

from __future__ import annotations

import gzip
import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from medagent.agent_folder import load_agent
from medagent.cli.main import main
from medagent.errors import ConfigError
from medagent.models.base_models import STARTER, model_path
from medagent.training.agent_data import AgentSettings
from medagent.training.sft.dialogues import RejectionSampled
from medagent.types import Question, Rollout, StopReason, Turn
from tests.support import ROOT


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, where the user stands."""
    shutil.copytree(ROOT / "examples" / "own_task", tmp_path / "task")
    monkeypatch.chdir(tmp_path / "task")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the commands find the classes by themselves
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


@pytest.mark.long  # trains
def test_the_example_runs(here: Path, index_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(index_folder, "runs/open-index")
    example = runpy.run_path("open_qa.py", run_name="__main__")
    assert len(Path("dialogues.jsonl").read_text().splitlines()) == 600
    questions = example["OpenQuestions"]("train", facts=32, doses=32).questions()
    example["write"]("dialogues.jsonl", example["demonstrations"](questions))
    for name in ("sft.yaml", "train.yaml"):
        Path(name).write_text(Path(name).read_text().replace("facts: 200, doses: 200", "facts: 4, doses: 4"))
    assert main(["sft", "--config", "sft.yaml", "--trainer.max_epochs=1"]) == 0
    assert main(["export", "runs/open-sft/agent", "--out", "runs/open-warm"]) == 0
    assert "It calls tools whose code is not here: dose." in Path("runs/open-warm/README.md").read_text()
    algorithm = str(ROOT / "configs" / "algorithms" / "st_ppo.yaml")
    small = ["--trainer.max_epochs=1", "--data.num_questions=16"]
    assert main(["train", "--config", "train.yaml", "--config", algorithm, *small]) == 0
    lines = gzip.decompress(Path("runs/open/rollouts/iteration_0000.jsonl.gz").read_bytes()).splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["kind"] for row in rows} == {"fact", "dose"}
    ask = ["ask", "How much is 15 mg per kg for 64 kg?", "--agent", "runs/open/agent"]
    capsys.readouterr()
    assert main(ask) == 1
    assert """found the tools [], wanted ['dose']. Give --tools '["open_qa.dose"]'""" in capsys.readouterr().err
    assert main([*ask, "--tools", "[open_qa.dose]"]) == 0
    assert "not medical advice" in capsys.readouterr().out
    measure = ["evaluate", "--benchmark", "open_qa.OpenQuestions", "--split", "test", "--agent", "runs/open/agent"]
    assert main([*measure, "--tools", "[open_qa.dose]", "--out", "runs/open-report", "--limit", "4"]) == 0
    assert len(Path("runs/open-report/predictions.jsonl").read_text().splitlines()) >= 4
    agent = load_agent(Path("runs/open/agent"), tools=["open_qa.dose"])
    assert [tool.name for tool in agent.tools] == ["dose"]
    with pytest.raises(ConfigError, match="Leave --tools out"):
        load_agent(Path(model_path(STARTER)), index="runs/open-index", tools=["open_qa.dose"])
    sampled = RejectionSampled(OneQuestion(), "runs/open/agent", samples=1)
    settings = AgentSettings(agent.protocol, agent.limits, agent.top_k, ("open_qa.dose",))
    sampled.make(settings, agent.retriever, Path("sampled"), agent.policy.tokenizer)
    assert (Path("sampled") / "predictions.jsonl").exists(), "its tools are the run's own"


class OneQuestion:
    """A benchmark of one question."""

    def questions(self) -> list[Question]:
        """See `Benchmark.questions`."""
        return [Question("q", "How much is 2 mg per kg for 7 kg?", answer="14 mg")]
