"""A user's class in the YAML: taken by its methods, and refused with what was wanted."""

from __future__ import annotations

import inspect
from itertools import combinations
from types import ModuleType

import pytest

from medagent.interface_check import compare_by_names, misfit
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.training import advantages, engines, objectives, rewards
from medagent.training.command import AgentParser
from medagent.training.data import RolloutData
from medagent.training.engines import Engine, InProcessEngine, ServersEngine, VllmEngine
from medagent.training.objectives import PolicyLoss
from medagent.training.rewards import Reward
from medagent.types import Question, Rollout, StopReason
from tests.training import user_classes

HERE = user_classes.__name__


def parse(capsys: pytest.CaptureFixture[str], **given: str) -> str:
    """What the parser of a run says to settings of `data`, nothing where it takes them."""
    parser = AgentParser()
    parser.add_lightning_class_args(RolloutData, "data")
    fitting = {
        "benchmark": "medagent.evaluation.benchmarks.StarterBenchmark",
        "retriever": "tests.training.golden.make.NoRetriever",
    }
    settings = {**fitting, **given}
    try:
        parser.parse_args([f"--data.{name}={value}" for name, value in settings.items()])
    except SystemExit:
        return " ".join(capsys.readouterr().err.split())
    return ""


def test_a_class_without_annotations_is_taken_by_its_names(capsys) -> None:
    assert parse(capsys, reward=f"{HERE}.Unannotated") == ""
    parser = AgentParser()
    parser.add_argument("--reward", type=Reward)
    made = parser.instantiate_classes(parser.parse_args([f"--reward={HERE}.Unannotated"]))
    graded = made.reward(Rollout(Question("q", "?"), (1,), (), StopReason.MALFORMED))
    assert (graded.reward, graded.success) == (1.0, True)


MISFITS = {
    ("reward", "WithoutCall"): "no method __call__",
    ("reward", "OtherName"): "def __call__(self, episode: Rollout) -> Rollout. Name the parameters as wanted",
    ("retriever", "Swapped"): "def search(self, queries: Sequence[str]) -> list[list[Hit]]. Name the parameters",
    ("benchmark", "WithoutCall"): "no method questions",
    ("advantage", "NotDerived"): "Derive it from medagent.training.advantages.AdvantageEstimator",
    ("advantage", "OtherParameters"): "def estimate(self, rollouts). Name the parameters as wanted",
}


def test_a_class_that_does_not_fit_is_told_what_was_wanted(capsys) -> None:
    for (setting, name), told in MISFITS.items():
        said = parse(capsys, **{setting: f"{HERE}.{name}"})
        assert f"{HERE}.{name} does not fit" in said
        assert told in said, name


def test_a_subclass_without_its_method_is_told_which(capsys) -> None:
    parser = AgentParser()
    parser.add_argument("--loss", type=PolicyLoss)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--loss={HERE}.Unfinished"])
    said = " ".join(capsys.readouterr().err.split())
    assert f"{HERE}.Unfinished does not fit medagent.training.objectives.PolicyLoss" in said
    assert "no such method. Define it." in said


def test_a_subclass_is_told_what_the_trainer_would_miss() -> None:
    class Nameless(PolicyLoss):
        def __call__(self, policy_logprobs_BT, batch): ...

    class Renamed(PolicyLoss):
        clips = False

        def __call__(self, logprobs, batch): ...

    class Extra(TagProtocol):
        def parse(self, text, mode): ...

    assert "Wanted: the class attribute clips: ClassVar[bool]. Found: none. Set it." in str(
        misfit(Nameless, PolicyLoss)
    )
    assert "Found: def __call__(self, logprobs, batch). Name the parameters" in str(misfit(Renamed, PolicyLoss))
    assert "Found: def parse(self, text, mode)." in str(misfit(Extra, TurnProtocol))
    assert misfit(TagProtocol, TurnProtocol) is None
    for engine in (InProcessEngine, ServersEngine, VllmEngine):
        assert misfit(engine, Engine) is None


def test_names_in_another_order_and_further_parameters() -> None:
    class Order:
        def pair(self, one: int, other: int) -> None: ...

    class Wanted:
        _is_protocol = True

        def pair(self, other: int, one: int) -> None: ...

    class Optional:
        def pair(self, other, one, third=None): ...

    class Anything:
        def pair(self, *args, **kwargs): ...

    class Required:
        def pair(self, other, one, third): ...

    assert misfit(Order, Wanted) is not None
    assert misfit(Required, Wanted) is not None
    assert misfit(Optional, Wanted) is None
    assert misfit(Anything, Wanted) is None


def test_a_protocol_keeps_its_annotations() -> None:
    compare_by_names(Retriever)
    assert "return" not in str(inspect.signature(Retriever.search))
    assert set(Retriever.search.__annotations__) == {"queries", "top_k", "return"}


@pytest.mark.parametrize("module", [advantages, engines, objectives, rewards])
def test_classes_for_one_setting_share_the_defaults_of_settings_with_one_name(module: ModuleType) -> None:
    """The parser hands a default class's settings on, by name, to a class that a user names in its place."""
    classes = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__.startswith("medagent.training")
    ]
    for one, other in combinations(classes, 2):
        its, others = inspect.signature(one).parameters, inspect.signature(other).parameters
        for name in (its.keys() & others.keys()) - {"args", "kwargs"}:
            same = repr(its[name].default) == repr(others[name].default)  # the text, as lazy instances are never equal
            assert same, f"{one.__name__} and {other.__name__} differ in the default of {name}"


def test_a_shipped_reward_needs_no_settings(capsys) -> None:
    for name in ("F1", "ExactMatch", "ContainsAnswer"):
        parser = AgentParser()
        parser.add_lightning_class_args(RolloutData, "data")
        named = [
            "--data.benchmark=medagent.evaluation.benchmarks.StarterBenchmark",
            "--data.retriever=tests.training.golden.make.NoRetriever",
            f"--data.reward=medagent.training.rewards.{name}",
        ]
        reward = parser.instantiate_classes(parser.parse_args(named)).data.reward
        assert (type(reward).__name__, reward.well_formed, reward.abstained) == (name, 0.1, 0.1)
