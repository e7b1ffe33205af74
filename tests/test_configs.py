"""Every YAML parses against the code, and the demo's format is the one its base policy was taught."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache, reduce
from itertools import permutations, product
from pathlib import Path
from pydoc import locate

import pytest
import yaml
from jsonargparse import ArgumentParser, Namespace, dict_to_namespace
from lightning import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from medagent.agent_spec import read_spec
from medagent.cli.commands.evaluate import evaluate
from medagent.config_files import one_algorithm, with_one_algorithm
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks.source import KNOWN, BenchmarkSource
from medagent.evaluation.modes import Mode
from medagent.evaluation.run import Plan
from medagent.models.base_models import STARTER, model_path
from medagent.training.command import AgentCLI, check_algorithm, with_defaults
from medagent.training.data import RolloutData
from medagent.training.module import AgentModule
from medagent.training.settings import check_shares, num_ranks
from medagent.training.sft.supervised import SupervisedData, SupervisedModule
from tests.support import CONFIGS
from tests.training.support import parser

EXPERIMENTS = sorted((CONFIGS / "experiments").glob("*.yaml"))
COMPLETE = ("demo", "starter-smollm2", "bioasq")  # which have their algorithm
TASKS = [path for path in EXPERIMENTS if path.stem not in COMPLETE]
ALGORITHMS = sorted((CONFIGS / "algorithms").glob("*.yaml"))
STARTER_TASK = CONFIGS / "experiments" / "starter.yaml"


one_parser = cache(parser)


@cache
def parsed_from(*files: Path) -> Namespace:
    """Settings that several tests read, and none changes."""
    return one_parser().parse_args([argument for file in files for argument in ("--config", str(file))])


def test_a_configuration_parses_and_its_batches_fit() -> None:
    for path in EXPERIMENTS:
        assert parsed_from(path).trainer.accumulate_grad_batches == 1, path
        assert {"AgentExport", "ProgressLine", "RolloutRecords"} <= set(resolved_callbacks(path)), path


class Parsed(AgentCLI):
    """The command's own parsing, without building what was configured."""

    def instantiate_classes(self) -> None:
        pass


def resolved_callbacks(*files: Path, sft: bool = False) -> list[str]:
    """Names of the callbacks that a run with these files would have, in the order in which they run."""
    kinds = (SupervisedModule, SupervisedData) if sft else (AgentModule, RolloutData)
    args = [argument for file in files for argument in ("--config", str(file))]
    cli = Parsed(*kinds, run=False, args=args, save_config_callback=None, auto_configure_optimizers=False)
    return [callback.class_path.rsplit(".", 1)[1] for callback in cli.config.trainer.callbacks]


def test_every_task_has_the_default_callbacks_and_the_algorithm_s() -> None:
    for path in TASKS:
        kept = ["RolloutRecords", "AgentExport", "ProgressLine"]
        algorithm = ["TurnLevelSampling", "ClippingBiasCorrection"]
        found = resolved_callbacks(path, CONFIGS / "algorithms" / "st_ppo.yaml")
        assert found == kept + algorithm, path


def test_a_list_of_ones_own_leaves_the_default_callbacks_and_the_algorithm_s(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    st_ppo = CONFIGS / "algorithms" / "st_ppo.yaml"
    algorithm = ["TurnLevelSampling", "ClippingBiasCorrection"]
    stopping = {"class_path": "EarlyStopping", "init_args": {"monitor": "reward/mean"}}
    for given in ([stopping], stopping):
        mine.write_text(yaml.safe_dump({"trainer": {"callbacks": given}}))
        own = [*algorithm, "EarlyStopping"]
        assert resolved_callbacks(STARTER_TASK, st_ppo, mine) == ["RolloutRecords", "AgentExport", "ProgressLine", *own]
    mine.write_text("without_callbacks: [AgentExport]\ntrainer:\n  callbacks: []\n")
    assert resolved_callbacks(STARTER_TASK, st_ppo, mine) == ["RolloutRecords", "ProgressLine", *algorithm]
    assert resolved_callbacks(CONFIGS / "sft" / "own_model.yaml", sft=True) == [
        "HeldOutLoss",
        "AgentExport",
        "SupervisedProgress",
    ]
    mine.write_text("without_callbacks: [TurnLevelSampling]\n")
    with pytest.raises(ConfigError, match="without_callbacks.*TurnLevelSampling.*AgentExport"):
        resolved_callbacks(STARTER_TASK, st_ppo, mine)


def test_a_default_callback_that_is_named_again_stands_once_with_its_own_settings() -> None:
    def named(class_path: str, **settings: int) -> Namespace:
        return Namespace(class_path=class_path, init_args=Namespace(**settings))

    ours = "medagent.training.callbacks"
    other = named("lightning.pytorch.callbacks.ModelSummary")
    mine = named("medagent.training.AgentExport", every=10)
    defaults = (f"{ours}.AgentExport", f"{ours}.ProgressLine")
    line = named(defaults[1])
    assert with_defaults([other, mine, other], defaults) == [mine, line, other, other]


def test_no_configuration_names_a_file_outside_a_users_reach() -> None:
    for path in (CONFIGS).rglob("*.yaml"):
        assert "../" not in path.read_text(encoding="utf-8"), path


def test_every_algorithm_goes_with_every_task() -> None:
    tasks = {task: parsed_from(task) for task in TASKS}
    for task, algorithm in product(TASKS, ALGORITHMS):
        alone, parsed = tasks[task], parsed_from(task, algorithm)
        block = yaml.safe_load(algorithm.read_text())["algorithm"]
        named = [each.class_path for each in parsed.algorithm.callbacks]
        assert (parsed.algorithm.name, parsed.trainer.callbacks) == (block["name"], alone.trainer.callbacks)
        assert list(map(locate, named)) == [locate(each["class_path"]) for each in block.get("callbacks", [])]
        assert parsed.model.base_model == alone.model.base_model
        critic_free = parsed.data.advantage.class_path.rsplit(".", 1)[1] != "GAE"
        assert (parsed.model.critic_lora is None) == critic_free, (task, algorithm)


def test_of_two_files_the_last_algorithm_counts_and_nothing_of_the_first_is_left() -> None:
    with_algorithms = [*ALGORITHMS, *(CONFIGS / "experiments" / f"{name}.yaml" for name in COMPLETE)]
    loaded = {path: yaml.safe_load(path.read_text()) for path in with_algorithms}
    for first, last in product(with_algorithms, with_algorithms):
        _, one, _, other = with_one_algorithm(["--config", str(first), "--config", str(last)])
        before, after, block, own = yaml.safe_load(one), yaml.safe_load(other), loaded[last], loaded[first]
        assert "algorithm" not in before
        assert after["algorithm"] == block["algorithm"]
        for group in ("model", "data"):
            assert before[group] == own.get(group, {})
            assert block["algorithm"].get(group, {}).items() <= after[group].items()


def test_the_configuration_of_a_run_gives_up_its_algorithm_to_a_later_one(tmp_path: Path) -> None:
    st_ppo, grpo = (
        yaml.safe_load((CONFIGS / "algorithms" / f"{name}.yaml").read_text()) for name in ("st_ppo", "grpo")
    )
    run = {"model": {"base_model": "mine", **st_ppo["algorithm"]["model"]}, "algorithm": st_ppo["algorithm"]}
    first, *_ = with_one_algorithm([f"--config={yaml.safe_dump(each)}" for each in (run, grpo)])
    assert yaml.safe_load(first.removeprefix("--config="))["model"] == {"base_model": "mine"}
    own = {"algorithm": {"model": {"kl_coef": 1.0}}, "model": {"kl_coef": 2.0}, "remark": "long " * 1000}
    (last,) = with_one_algorithm([f"--config={json.dumps(own)}"])
    assert yaml.safe_load(last.removeprefix("--config="))["model"] == {"kl_coef": 2.0}
    assert with_one_algorithm(["--config", "nowhere.yaml", "--config={a: [", "--model.x", "1"])[0] == "--config"
    for wrong in ("st_ppo", "{name: X, modle: {}}", "{name: X, model: 3}"):
        with pytest.raises(ConfigError, match="algorithm: found .*X|st_ppo.*wanted a name"):
            with_one_algorithm([f"--config=algorithm: {wrong}"])


AXES = ("experiments", "algorithms", "critic", "rewards", "collapse", "engines", "hardware")  # in the README's order
LOADED = {path: yaml.safe_load(path.read_text()) for axis in AXES for path in sorted((CONFIGS / axis).glob("*.yaml"))}
BLOCKS = {LOADED[path]["algorithm"]["name"]: LOADED[path]["algorithm"] for path in ALGORITHMS}


def laid_over(under: dict, over: dict) -> dict:
    """What the parser makes of two files, without its checks of types."""
    found = dict(under)
    for name, value in over.items():
        before = found.get(name)
        other_class = isinstance(value, dict) and "class_path" in value and before != value
        nested = isinstance(value, dict) and isinstance(before, dict) and not other_class
        found[name] = laid_over(before, value) if nested else value
    return found


def resolved(defaults: dict, *files: Path) -> Namespace:
    """The settings of a run, as far as they decide its algorithm."""
    settings = [LOADED[path] for path in files]
    having = [number for number, each in enumerate(settings) if "algorithm" in each]
    for number, each in zip(having, one_algorithm([settings[number] for number in having]), strict=True):
        settings[number] = each
    return dict_to_namespace(reduce(laid_over, settings, defaults))


def refusal(run: Namespace) -> str:
    """Why the command refuses it before it builds a model; empty where it goes on."""
    try:
        ranks = num_ranks(run.trainer.devices, run.trainer.num_nodes)
        data = run.data
        check_shares(data.num_questions, data.num_samples, data.num_minibatches * data.num_micro_batches, ranks)
        check_algorithm(run)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def defaults() -> dict:
    return one_parser().get_defaults().as_dict()


def test_every_pair_of_files_is_an_algorithm_that_exists_or_is_refused(defaults: dict) -> None:
    reasons: Counter[str] = Counter()
    for first, last in permutations(LOADED, 2):
        task = [] if {first.parent.name, last.parent.name} & {"experiments"} else [STARTER_TASK]
        run, pair = resolved(defaults, *task, first, last), (first.name, last.name)
        reason = refusal(run)
        reasons[reason.partition(":")[0].partition(" is ")[0]] += 1
        critics = (first.parent.name == "critic") + (last.parent.name == "critic")
        free = [path for path in (first, last) if "critic_lora" in LOADED[path].get("algorithm", {}).get("model", {})]
        critic_free = len([path for path in free if path in ALGORITHMS])
        in_order = AXES.index(first.parent.name) < AXES.index(last.parent.name)
        if in_order:  # as configs/README.md has it
            assert bool(reason) == bool(critics and critic_free), (pair, reason)
        if critics and critic_free:
            assert "needs no critic" in reason, (pair, reason)
        if reason:
            continue
        block = BLOCKS[run.algorithm.name]
        loss = block.get("model", {}).get("policy_loss", defaults["model"]["policy_loss"])
        advantage = locate(block["data"]["advantage"]["class_path"])
        assert locate(run.data.advantage.class_path) is advantage, pair
        assert locate(run.model.policy_loss.class_path) is locate(loss["class_path"]), pair
        assert run.model.policy_loss.init_args.as_dict().items() >= loss["init_args"].items(), pair
        assert [each["class_path"] for each in run.algorithm.callbacks] == [
            each["class_path"] for each in block.get("callbacks", [])
        ], pair
        has_critic = run.model.critic_lora is not None or run.model.critic_inputs != "context"
        assert has_critic == advantage.needs_critic, pair
        assert run.data.num_samples > 1 or not advantage.needs_groups, pair
    assert set(reasons) == {"", "data.advantage", "data.num_questions", "model.critic_inputs"}, reasons


def test_pairs_are_laid_over_each_other_as_the_parser_does(defaults: dict) -> None:
    for names in (("algorithms/gspo", "engines/vllm"), ("experiments/demo", "algorithms/grpo"), ("critic/group",) * 2):
        files = [STARTER_TASK, *(CONFIGS / f"{name}.yaml" for name in names)]
        mine, parsed = resolved(defaults, *files), parsed_from(*files)
        for name in ("num_questions", "num_samples", "num_critic_epochs", "num_minibatches"):
            assert mine.data[name] == parsed.data[name], (names, name)
        for group, name in (("data", "advantage"), ("model", "policy_loss"), ("data", "engine")):
            assert locate(mine[group][name].class_path) is locate(parsed[group][name].class_path)
        assert (mine.algorithm.name, refusal(mine)) == (parsed.algorithm.name, refusal(parsed))


def test_engines_and_hardware_go_with_every_task() -> None:
    overlays = [path for folder in ("engines", "hardware") for path in (CONFIGS / folder).glob("*.yaml")]
    for task, overlay in product(TASKS, overlays):
        parsed = parsed_from(task, overlay)
        wanted = yaml.safe_load(overlay.read_text())["data"]["engine"]["class_path"]
        assert locate(parsed.data.engine.class_path) is locate(wanted), (task, overlay)
        assert parsed.data.off_policy.importance == "decoupled", (task, overlay)
        assert parsed.model == parsed_from(task).model, (task, overlay)


def test_a_critic_that_sees_the_evidence_goes_with_every_task() -> None:
    for task, (name, sees) in product(TASKS, (("evidence", "evidence"), ("group", "evidence_and_group"))):
        parsed = parsed_from(task, CONFIGS / "algorithms" / "st_ppo.yaml", CONFIGS / "critic" / f"{name}.yaml")
        assert (parsed.model.critic_inputs, parsed.data.num_critic_epochs) == (sees, 4), task
        assert parsed.model.critic_lora is None
        assert parsed.data.num_samples > 1 or sees == "evidence"


def test_a_configuration_of_examples_parses() -> None:
    for path in (CONFIGS / "sft").glob("*.yaml"):
        made = LightningArgumentParser()
        made.add_lightning_class_args(Trainer, "trainer")
        made.add_lightning_class_args(SupervisedModule, "model")
        made.add_lightning_class_args(SupervisedData, "data")
        made.add_argument("--seed_everything", type=int)
        parsed = made.parse_path(str(path))
        assert parsed.trainer.accumulate_grad_batches == 1, path


def test_a_collapse_monitor_goes_with_a_task_and_an_algorithm() -> None:
    for action in ("report", "stop", "rollback"):
        names = ("experiments/own_model.yaml", "algorithms/ppo.yaml", f"collapse/{action}.yaml")
        monitor = parsed_from(*(CONFIGS / name for name in names)).trainer.callbacks[-1]
        assert monitor.class_path.endswith(".CollapseMonitor")
        assert monitor.init_args.action == action


def test_turn_rewards_go_with_the_starter_task() -> None:
    files = [CONFIGS / name for name in ("experiments/starter.yaml", "algorithms/st_ppo.yaml", "rewards/turns.yaml")]
    reward = parsed_from(*files).data.reward
    assert reward.class_path.endswith(".TurnRewards")
    assert reward.init_args.outcome.init_args.well_formed == 0.2


def test_a_misspelt_setting_is_refused(tmp_path: Path) -> None:
    text = (STARTER_TASK).read_text().replace("policy_lr", "policy_learning_rate")
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(SystemExit):
        one_parser().parse_args(["--config", str(tmp_path / "bad.yaml")])


def test_the_demo_uses_protocol_and_limits_of_its_base() -> None:
    agent = yaml.safe_load((STARTER_TASK).read_text())["data"]["agent"]
    spec = read_spec(Path(model_path(STARTER)))
    named = spec.to_json()["protocol"]
    assert agent["protocol"]["class_path"] == named["class_path"]
    assert {**named["init_args"], **agent["protocol"]["init_args"]} == named["init_args"]
    assert agent["limits"] == spec.to_json()["limits"]
    assert agent["top_k"] == spec.top_k


def test_every_evaluation_file_is_one_that_the_command_takes() -> None:
    evaluation = ArgumentParser()
    evaluation.add_function_arguments(evaluate)
    for path in (CONFIGS / "eval").glob("*.yaml"):
        settings = evaluation.parse_path(str(path))
        assert settings.benchmark in KNOWN, path
        source = BenchmarkSource(settings.benchmark, settings.path, settings.hub, settings.subset, settings.split)
        source.open()  # opening reads nothing, but refuses settings that the benchmark does not have
        Plan(tuple(Mode(mode) for mode in settings.modes))


def test_a_complete_experiment_is_a_task_with_its_algorithm_and_critic() -> None:
    for name in COMPLETE:
        parsed = parsed_from(CONFIGS / "experiments" / f"{name}.yaml")
        names = resolved_callbacks(CONFIGS / "experiments" / f"{name}.yaml")
        assert {"TurnLevelSampling", "ClippingBiasCorrection"} < set(names)
        assert ("CollapseMonitor" in names) == (name == "demo")
        assert parsed.trainer.max_epochs < parsed.model.lr_decay_iterations
        assert parsed.model.policy_loss.init_args.as_dict() == {"clip_low": 0.05, "clip_high": 0.05, "dual_clip": None}
        critic = yaml.safe_load((CONFIGS / "critic" / "group.yaml").read_text())["model"]
        assert {setting: parsed.model[setting] for setting in critic} == critic
        assert (parsed.data.num_samples, parsed.data.num_critic_epochs) == (8, 4)
