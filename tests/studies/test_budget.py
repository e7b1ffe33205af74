"""A study with a budget: the parts of a cell, what is left for the second, and what the report says."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from medagent.errors import ConfigError
from studies import run as running
from studies.budget_report import recommendation
from studies.design import STUDIES, Arm, Budget, Demonstrated, Study
from studies.report import Row, read_rows
from studies.run import Processes, run_study, write_report

EXAMPLES = str(STUDIES / "budget" / "configs" / "parts" / "examples.yaml")
STUDY = Study(
    "small",
    ["starter.yaml"],
    {
        "none": Arm([]),
        "half": Arm([], first=Demonstrated("by rule", 0.5, [EXAMPLES], {"data.batch_size": 4})),
        "all": Arm([], first=Demonstrated("by rule", 1.0, [EXAMPLES])),
    },
    [1],
    budget=Budget(1000, {"seen": {"split": "train"}, "unseen": {"split": "test"}}),
)


class Pretending:
    """Stands for the processes: each part spends what its budget says and a little more, and `failing` ends badly."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.failing = ""

    def __call__(self, processes: Processes, command: Sequence[str], **kwargs: object) -> int:
        words = tuple(command[3:])
        self.asked.append(words)
        given = dict(word[2:].split("=", 1) for word in words if "=" in word)
        if words[0] == "evaluate":
            out = Path(given["out"])
            out.mkdir(parents=True)
            kinds = {"one_hop": {"accuracy": 0.75}, "two_hop": {"accuracy": 0.5}}
            (out / "report.json").write_text(json.dumps({"by_type": kinds}))
        else:
            log = Path(given["trainer.default_root_dir"]) / "logs" / "version_0" / "metrics.csv"
            log.parent.mkdir(parents=True, exist_ok=True)
            units = budget_of(words)
            row = {"epoch": 0, "step": 1, "compute/forward_tokens": units + 10, "compute/backward_tokens": 0}
            with log.open("w", newline="") as file:
                writer = csv.DictWriter(file, row)
                writer.writeheader()
                writer.writerow(row)
        return int(words[0] == self.failing)


def budget_of(words: Sequence[str]) -> float:
    last = [word for word, before in zip(words[1:], words, strict=False) if before == "--config"][-1]
    ((callback),) = yaml.safe_load(Path(last).read_text())["trainer"]["callbacks+"]
    assert callback["class_path"] == "medagent.training.callbacks.ComputeBudget"
    return callback["init_args"]["units"]


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> Pretending:
    made = Pretending()
    monkeypatch.setattr(Processes, "run", lambda self, command, **kwargs: made(self, command, **kwargs))
    monkeypatch.setattr(running, "build_starter_index", lambda *args, **kwargs: None)
    return made


def test_each_arm_spends_its_share_on_demonstrations_and_what_is_left_on_rl(
    pretending: Pretending, tmp_path: Path
) -> None:
    cells = run_study(STUDY, tmp_path)
    assert [words[0] for words in pretending.asked] == [
        *("train", "evaluate", "evaluate"),
        *("sft", "train", "evaluate", "evaluate"),
        *("sft", "evaluate", "evaluate"),
    ]
    spent = [budget_of(words) for words in pretending.asked if words[0] != "evaluate"]
    assert spent == [1000, 500, 490, 1000], "what the first part took too much is missing in the second"
    half = tmp_path / "runs" / "half-1"
    _, sft, train = (words for words in pretending.asked[:5] if words[0] != "evaluate")
    assert "--data.batch_size=4" in sft
    assert f"--model.policy_lora.start={half / 'examples' / 'agent'}" in train
    agents = [word for words in pretending.asked for word in words if word.startswith("--agent=")]
    assert agents[::2] == agents[1::2]
    assert [Path(agent).parent.name for agent in agents[::2]] == ["rl", "rl", "examples"]
    assert all(f"--index={tmp_path / 'index-whole'}" in words for words in pretending.asked if words[0] == "evaluate")
    text = write_report(STUDY, cells, tmp_path)
    assert "| half | 1 | 75.0 | 50.0 | 75.0 | 50.0 |" in text
    assert [row["rl_forward"] for row in read_rows(tmp_path / "budget.csv")] == [1010, 500, 0]


def test_a_cell_goes_on_with_the_part_that_failed_and_a_finished_one_is_kept(
    pretending: Pretending, tmp_path: Path
) -> None:
    pretending.failing = "train"
    (cell,) = run_study(STUDY, tmp_path, arms=["half"])
    assert not cell.finished
    assert [words[0] for words in pretending.asked] == ["sft", "train"]
    pretending.failing = ""
    (cell,) = run_study(STUDY, tmp_path, arms=["half"])
    assert cell.finished
    assert [words[0] for words in pretending.asked[2:]] == ["train", "evaluate", "evaluate"]
    run_study(STUDY, tmp_path, arms=["half"])
    assert len(pretending.asked) == 5
    assert STUDY.budget
    with pytest.raises(ConfigError, match="run with other settings"):
        run_study(replace(STUDY, budget=replace(STUDY.budget, units=2000)), tmp_path)


def test_a_budget_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"share of 1\.5"):
        Demonstrated("by rule", 1.5, [EXAMPLES])
    with pytest.raises(ConfigError, match="budget of 0 units"):
        Budget(0, {"seen": {}})
    with pytest.raises(ConfigError, match="no budget to share"):
        replace(STUDY, budget=None)
    with pytest.raises(ConfigError, match=r"no configuration file nowhere\.yaml"):
        replace(STUDY, arms={"x": Arm([], first=Demonstrated("by rule", 0.5, ["nowhere.yaml"]))})


def result(arm: str, seed: int, share: float, one_hop: float, two_hop: float) -> Row:
    return {"arm": arm, "seed": seed, "share": share, "unseen/one_hop": one_hop, "unseen/two_hop": two_hop}


# Means over kinds: none 0.80, 0.82, 0.81; a fifth 0.85, 0.88, 0.82; all 0.50, 0.52, 0.51.
RESULTS = [
    *(result("none", seed, 0.0, value, value) for seed, value in enumerate((0.80, 0.82, 0.81))),
    *(result("a fifth", seed, 0.2, value + 0.1, value - 0.1) for seed, value in enumerate((0.85, 0.88, 0.82))),
    *(result("all", seed, 1.0, value, value) for seed, value in enumerate((0.50, 0.52, 0.51))),
]


def test_the_recommendation_names_the_best_arm_and_those_not_told_from_it() -> None:
    # Less none: 0.05, 0.06, 0.01, so 0.04 with half of 4.303 x 0.0265 / sqrt(3) = 0.066; less all 0.34 with as much.
    assert recommendation(RESULTS, "unseen") == (
        "Take a fifth (85.0% right, unseen); 3 seeds do not tell none from it."
    )
    steady = [each for each in RESULTS if each["arm"] != "a fifth"]
    assert recommendation(steady, "unseen") == "Take none (81.0% right, unseen); 3 seeds tell all others from it."
    one = [each for each in RESULTS if each["seed"] == 0]
    assert recommendation(one, "unseen") == "Take a fifth (85.0% right, unseen); one seed tells no arm from it."
