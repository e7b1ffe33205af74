"""Parts of a user's own, given to training from Python: those that cannot work are named before long work starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.loggers.logger import Logger

from medagent.errors import ConfigError
from medagent.evaluation import BenchmarkSource
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.training.advantages import GAE, GroupNormalised
from medagent.training.callbacks import TurnLevelSampling
from medagent.training.compatibility import check_composition
from medagent.training.data import RolloutData
from medagent.training.engines import ModuleWeights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.objectives import ClippedSurrogate
from medagent.training.prepare import prepare
from medagent.training.rewards import OutcomeReward, graded
from medagent.training.run import known_questions, newest_checkpoint, run_checkpoints, train
from medagent.types import Question, Rollout
from tests.training.support import AGENT, make_data, make_module
from tests.training.test_bad_numbers import ROLLOUT

LORA = LoraSettings(rank=4, alpha=8)


def equal(rollout: Rollout) -> Rollout:
    return rollout.graded(0.5, success=False)


class Steps(Logger):
    name, version = "steps", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics, step=None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *args, **kwargs) -> None:
        """None are kept."""


def trainer(run: Path, epochs: int, log: Logger) -> Trainer:
    settings = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return Trainer(
        default_root_dir=run,
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        log_every_n_steps=1,
        logger=[log],
        callbacks=[run_checkpoints(run)],
        **settings,
    )


def test_parts_that_do_not_fit_are_named(retriever) -> None:
    starter = StarterBenchmark("train", limit_per_kind=1)
    for parts, said in (
        ({"benchmark": "starter"}, r"data\.benchmark: found 'starter'.*def questions"),
        ({"benchmark": BenchmarkSource("starter")}, r"data\.benchmark: BenchmarkSource.*open\(\)"),
        ({"retriever": "runs/demo/index"}, r"data\.retriever: found 'runs/demo/index'.*def search"),
        ({"reward": "accuracy"}, r"data\.reward: found 'accuracy'"),
        ({"reward": OutcomeReward}, r"data\.reward: found the class OutcomeReward.*OutcomeReward\(\.\.\.\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            RolloutData(**{"benchmark": starter, "retriever": retriever, "agent": AGENT, **parts})


def test_a_reward_that_raises_is_named_with_its_rollout() -> None:
    def trips(rollout: Rollout) -> Rollout:
        raise KeyError("gold_span")

    with pytest.raises(ConfigError, match=r"data\.reward \(function\), question q7, sample 2: raised KeyError"):
        graded(trips, ROLLOUT)


def test_prompts_that_do_not_fit_are_refused_or_left_out_once(retriever, tmp_path: Path) -> None:
    found = StarterBenchmark("train", limit_per_kind=2).questions()
    questions = [replace(found[0], text="word " * 600 + found[0].text), *found[1:]]

    def prepared(questions: list, *, leave_out: bool) -> RolloutData:
        data = RolloutData(
            Given(questions),
            retriever,
            agent=AGENT,
            num_questions=2,
            num_minibatches=1,
            num_micro_batches=1,
            filter_overlong_prompts=leave_out,
        )
        data.trainer = SimpleNamespace(
            lightning_module=make_module(), world_size=1, callbacks=[], default_root_dir=tmp_path
        )
        data.start_engine = lambda module, prompt_ids: None
        data.setup("fit")
        return data

    with pytest.raises(ConfigError, match=rf"1 of {len(questions)}.*{found[0].id}.*filter_overlong_prompts"):
        prepared(questions, leave_out=False)
    with pytest.warns(UserWarning, match="left out"):
        assert prepared(questions, leave_out=True).questions == found[1:]
    with pytest.raises(ConfigError, match="max_total_tokens"):
        prepared(questions[:1], leave_out=True)


class Given:
    def __init__(self, questions: list) -> None:
        self._questions = questions

    def questions(self) -> list:
        return self._questions


def test_equal_rollouts_move_no_weight_and_are_counted(retriever, tmp_path: Path) -> None:
    """KL to the reference is then rounding, and AdamW would make whole steps of it."""
    log, module = Steps(), AgentModule(policy_lora=LORA, critic_lora=None, kl_coef=0.02, policy_lr=2e-3)
    before = [parameter.detach().clone() for parameter in module.shared_base.policy_parameters()]
    data = make_data(retriever, advantage=GroupNormalised(), num_samples=2, num_questions=8, reward=equal)
    trainer(tmp_path, 3, log).fit(module, datamodule=data)
    assert all(map(torch.equal, before, module.shared_base.policy_parameters()))
    assert {row["reward/zero_std_groups"] for _, row in log.rows if "reward/zero_std_groups" in row} == {1.0}


def test_groups_of_equal_rollouts_have_no_loss_if_asked(retriever) -> None:
    module = AgentModule(policy_lora=LORA, critic_lora=None)
    data = make_data(retriever, advantage=GroupNormalised(), num_samples=2, num_questions=4)
    rollouts = data.collect(
        data.engine.sync_weights(ModuleWeights(module), version=0),
        temperature=1.0,
        iteration=0,
        version=0,
        rank=0,
        world_size=1,
    )
    paid = [replace(rollout, reward=float(number == 0)) for number, rollout in enumerate(rollouts)]
    kept, masked = (
        prepare(
            module,
            paid,
            estimator=GroupNormalised(),
            reduce=lambda tensor: tensor,
            num_samples=2,
            zero_std_groups=mode,
        )
        for mode in ("keep", "mask")
    )
    assert kept.metrics["reward/zero_std_groups"] == masked.metrics["reward/zero_std_groups"] == 0.75
    assert kept.mask_BT.any(dim=1).tolist() == [True] * 8
    assert masked.mask_BT.any(dim=1).tolist() == [True] * 2 + [False] * 6
    assert torch.equal(masked.advantages_BT[:2], kept.advantages_BT[:2])
    with pytest.raises(ConfigError, match=r"data\.zero_std_groups"):
        check_composition(
            GAE, make_module(), make_data(retriever, num_samples=2, num_critic_epochs=0, zero_std_groups="mask")
        )


def test_steps_never_fall_and_lightning_loads_a_checkpoint(retriever, tmp_path: Path) -> None:
    """Over a resumption too. Arguments that are objects come back from plain data."""
    log, loss = Steps(), ClippedSurrogate(clip_low=0.1, clip_high=0.3)

    def fit(epochs: int, checkpoint: Path | None) -> AgentModule:
        module = AgentModule(policy_lora=LORA, critic_lora=LORA, policy_loss=loss)
        trainer(tmp_path, epochs, log).fit(module, datamodule=make_data(retriever), ckpt_path=checkpoint)
        return module

    fit(1, None)
    module = fit(2, newest_checkpoint(tmp_path))
    steps = [step for step, _ in log.rows]
    assert steps == sorted(steps)
    assert steps[-1] == 3
    path = newest_checkpoint(tmp_path)
    hparams = torch.load(path, map_location="cpu", weights_only=True)["hyper_parameters"]
    assert hparams["policy_lora"] == {"rank": 4, "alpha": 8, "start": None}
    loaded = AgentModule.load_from_checkpoint(path)
    assert (loaded.policy_loss.clip_low, loaded.policy_loss.clip_high) == (0.1, 0.3)
    assert all(map(torch.equal, module.shared_base.policy_parameters(), loaded.shared_base.policy_parameters()))


def test_a_second_call_with_other_parts_is_refused(retriever, tmp_path: Path, capsys) -> None:
    def run(**others) -> Path:
        settings = {"reward": OutcomeReward(well_formed=0.2), "iterations": 1, "callbacks": (), **others}
        data = make_data(retriever, reward=settings.pop("reward"), num_questions=4, num_micro_batches=1)
        return train(make_module(), data, out=tmp_path / "run", accelerator="cpu", **settings).run

    with pytest.raises(ConfigError, match="iterations: found '2'"):
        run(iterations="2")
    run()
    assert (
        "Algorithm: one weight per token; ClippedSurrogate(clip_low=0.2, clip_high=0.2); GAE("
        in capsys.readouterr().out
    )
    for others, named in (({"reward": equal}, r"data\.reward"), ({"callbacks": TurnLevelSampling()}, "callbacks")):
        with pytest.raises(ConfigError, match=named):
            run(**others)
    assert run(reward=equal, overwrite=True).exists()


def test_questions_that_the_examples_showed_are_counted(tmp_path: Path) -> None:
    rows = tmp_path / "examples" / "demonstrations" / "part-1" / "dialogues.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text('{"question": "Why?"}\n{"question": "How?"}\n')
    asked = [Question("a", "Why?", (), "A"), Question("b", "Why so?", (), "B")]
    assert known_questions(str(tmp_path / "examples" / "agent"), asked) == 1
    assert known_questions(None, asked) == known_questions("smollm2", asked) == 0
