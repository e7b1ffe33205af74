"""Configuration files are found, and class paths of earlier versions are read under today's name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from medagent.agent_spec import read_spec
from medagent.config_files import config_path, packaged_configs, with_config_paths, with_current_names
from medagent.errors import ConfigError
from medagent.models.base_models import STARTER, model_path
from medagent.protocol import TagProtocol


def test_former_names_are_read_as_todays() -> None:
    for text, wanted in {
        "reward: {class_path: training.rewards.F1}": "reward: {class_path: medagent.training.rewards.F1}",
        '{"class_path": "evaluation.benchmarks.StarterBenchmark"}': (
            '{"class_path": "medagent.evaluation.benchmarks.StarterBenchmark"}'
        ),
        "--data.reward=training.rewards.F1": "--data.reward=medagent.training.rewards.F1",
        "init_args:\n  hand_over: merged": "init_args:\n  weight_sync: merged",
        "  weight_sync: auto\n  max_merge_lost: 0.05\n": "  weight_sync: auto\n",
        "  temperature: 1.0\n  routing_replay: none\n": "  temperature: 1.0\n",
        "  routing_replay: r3\n": "  routing_replay: r3\n",
        '{"hand_over": "merged"}': '{"weight_sync": "merged"}',
        "--data.engine.init_args.hand_over": "--data.engine.init_args.weight_sync",
    }.items():
        assert with_current_names(text) == wanted
        assert with_current_names(wanted) == wanted
    kept = "benchmark: bf16_hand_over path: training.questions.jsonl runs/training.rewards.F1 training.rewards.Absent"
    assert with_current_names(kept) == kept


def test_a_package_of_the_users_wins_where_it_has_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    (tmp_path / "training" / "rewards.py").write_text("class F1:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert with_current_names("training.rewards.F1") == "training.rewards.F1"
    assert with_current_names("training.rewards.ExactMatch") == "medagent.training.rewards.ExactMatch"
    for name in ("training", "training.rewards"):
        sys.modules.pop(name)


def test_an_agent_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    shutil.copytree(model_path(STARTER), agent)
    spec = json.loads((agent / "agent.json").read_text())
    (agent / "agent.json").write_text(json.dumps({**spec, "tools": {"dose": "retrieval.search.HybridRetriever"}}))
    assert read_spec(agent).tools == {"dose": "medagent.retrieval.search.HybridRetriever"}
    assert isinstance(read_spec(agent).protocol, TagProtocol)


def test_a_configuration_is_the_users_own_or_a_packaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group = packaged_configs() / "critic" / "group.yaml"
    assert config_path("configs/critic/group.yaml") == config_path("critic/group.yaml") == group
    given = ["train", "--config", "critic/group.yaml", "--config=critic/group.yaml"]
    assert with_config_paths(given) == ["train", "--config", str(group), f"--config={group}"]
    (tmp_path / "critic").mkdir()
    (tmp_path / "critic" / "group.yaml").write_text("own: true\n")
    assert config_path("critic/group.yaml") == Path("critic/group.yaml")
    with pytest.raises(ConfigError, match="--config nowhere.yaml: .*Correct its path"):
        config_path("nowhere.yaml")
