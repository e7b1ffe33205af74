"""Every YAML parses against the code, and the demo's format is the one its base policy was taught."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from medagent.causal_lm import STARTER, model_path
from medagent.saved import read_spec
from training.data import RolloutData
from training.module import AgentModule
from training.run import AgentCLI

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def parser() -> LightningArgumentParser:
    from lightning import Trainer

    made = LightningArgumentParser()
    made.add_lightning_class_args(Trainer, "trainer")
    made.add_lightning_class_args(AgentModule, "model")
    made.add_lightning_class_args(RolloutData, "data")
    made.add_argument("--seed_everything", type=int)
    AgentCLI.add_arguments_to_parser(None, made)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_configuration_parses_and_its_batches_fit(path: Path) -> None:
    parsed = parser().parse_path(str(path))
    assert parsed.trainer.accumulate_grad_batches == parsed.data.num_micro_batches
    names = [callback.class_path.rsplit(".", 1)[1] for callback in parsed.trainer.callbacks]
    assert {"AgentExport", "ProgressLine", "RolloutRecords"} <= set(names)


def test_a_misspelt_setting_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "demo.yaml").read_text().replace("policy_lr", "policy_learning_rate")
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(SystemExit):
        parser().parse_path(str(tmp_path / "bad.yaml"))


def test_the_demo_speaks_the_format_of_its_base() -> None:
    agent = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())["data"]["agent"]
    spec = read_spec(Path(model_path(STARTER)))
    assert agent["protocol"] == {
        "instructions": spec.protocol.instructions,
        "options_style": spec.protocol.options_style,
    }
    assert agent["limits"] == spec.to_json()["limits"]
    assert agent["top_k"] == spec.top_k
