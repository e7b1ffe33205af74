"""Configuration files are found, a user's own before a packaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.config_files import config_path, packaged_configs, with_config_paths
from medagent.errors import ConfigError


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
