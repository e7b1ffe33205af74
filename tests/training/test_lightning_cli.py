"""What the command line makes of Lightning's settings and a user's classes: it takes them, or says why in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lightning import Callback
from torch.utils.data import DataLoader

from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.training.command import AgentCLI, errors_of_classes, in_one_line
from medagent.training.data import RolloutData
from medagent.training.module import AgentModule
from tests.support import CONFIGS
from tests.training.support import OneBatch, Snoop, quiet_trainer, small_experience


def cli(tmp_path: Path, *given: str) -> AgentCLI:
    task = ["--config", str(CONFIGS / "experiments" / "starter.yaml"), f"--trainer.default_root_dir={tmp_path}"]
    without = ["--data.retriever=tests.training.golden.make.NoRetriever", "--model.lr_decay_iterations=null"]
    with errors_of_classes():
        return AgentCLI(
            AgentModule,
            RolloutData,
            run=False,
            args=[*task, *without, *given],
            save_config_callback=None,
            auto_configure_optimizers=False,
            parser_kwargs={"prog": "medagent train"},
        )


def test_the_command_line_takes_optimizer_and_scheduler(tmp_path) -> None:
    given = [
        "--optimizer=torch.optim.SGD",
        "--optimizer.momentum=0.5",
        "--lr_scheduler=ExponentialLR",
        "--lr_scheduler.gamma=0.5",
    ]
    module, rates = cli(tmp_path, *given).model, Snoop()
    trainer = quiet_trainer(tmp_path, epochs=2, callbacks=[rates])
    trainer.fit(module, DataLoader(OneBatch([small_experience(module)] * 2), batch_size=None))
    assert rates.lr == pytest.approx([2e-3, 2e-3, 1e-3, 1e-3])
    assert [group["momentum"] for group in trainer.optimizers[0].param_groups] == [0.5, 0.5]
    with pytest.raises(ConfigError, match="model.weight_decay: found one beside --optimizer"):
        cli(tmp_path, "--optimizer=torch.optim.SGD", "--model.weight_decay=0.1")


class Watch(Callback):
    """A user's callback with a benchmark inside."""

    def __init__(self, benchmark: StarterBenchmark) -> None:
        self.benchmark = benchmark


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--trainer.logger=WandbLogger"], "wandb.*pip install"),
        (["--data.val_benchmark=JsonlBenchmark", "--data.val_benchmark.path=/no/such"], "/no/such: cannot be read"),
        (["--trainer.callbacks", "Broken"], "a benchmark is missing"),
    ],
)
def test_what_a_class_of_the_configuration_says_is_told_in_one_line(given, told, tmp_path) -> None:
    given = [each.replace("JsonlBenchmark", "medagent.evaluation.benchmarks.JsonlBenchmark") for each in given]
    given = [each.replace("Broken", f"{__name__}.Broken") for each in given]
    with pytest.raises((ConfigError, InputError), match=told) as error:
        cli(tmp_path, *given)
    assert "\n" not in str(error.value)


class Broken(Callback):
    def __init__(self) -> None:
        raise ConfigError("a benchmark is missing")


@pytest.mark.parametrize(
    ("benchmark", "told"),
    [
        ({"class_path": "medagent.evaluation.benchmarks.Nope"}, "has no attribute 'Nope'"),
        ({"class_path": "StarterBenchmark", "init_args": {"slpit": "test"}}, "Option 'slpit' is not accepted"),
        ({"class_path": "StarterBenchmark", "init_args": {"seed": "x"}}, "Option 'seed' is not accepted"),
    ],
)
def test_a_wrong_name_inside_a_nested_class_is_one_line(benchmark, told, tmp_path, capsys) -> None:
    path = benchmark["class_path"].replace("StarterBenchmark", "medagent.evaluation.benchmarks.StarterBenchmark")
    callback = {"class_path": f"{__name__}.Watch", "init_args": {"benchmark": {**benchmark, "class_path": path}}}
    for given in (
        f"--trainer.callbacks={json.dumps([callback])}",
        f"--data.val_benchmark={json.dumps({**benchmark, 'class_path': path})}",
    ):
        with pytest.raises(SystemExit):
            cli(tmp_path, given)
        said = capsys.readouterr().err.strip()
        assert told in said
        assert "\n" not in said
        assert len(said) < 500


def test_the_parsers_message_names_the_innermost_class() -> None:
    message = """Parser key "trainer.callbacks":
      Does not validate against any of the Union subtypes
      Errors:
        - Problem with given class_path 'a.B':
            Errors:
              - Problem with given class_path 'c.D':
                  no such file
              - Expected a <class 'NoneType'>
      Given value type: <class 'list'>"""
    wanted = "Parser key \"trainer.callbacks\": Problem with given class_path 'c.D': no such file"
    assert in_one_line(message) == wanted
    assert in_one_line('Parser key "x":\n  Expected a number') == 'Parser key "x": Expected a number'
