"""Shared by every kind of training: the dialogue's rules, the retriever, and access to the present policy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from lightning import LightningDataModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader

from medagent.agent import Agent
from medagent.environment import AgentSettings, Environment
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.contamination import contamination, question_texts, refuse_contaminated
from medagent.evaluation.metrics import summarize
from medagent.evaluation.run import run_benchmark
from medagent.interface_check import check_part
from medagent.policy import Policy
from medagent.retrieval.controls import corpus_of
from medagent.retrieval.retriever import Retriever
from medagent.tools.base import check_working
from medagent.training.engines import Engine, EngineSetup, ModuleWeights
from medagent.training.execution import TokenLimit
from medagent.training.memory.estimate import Load, ModelShape, fit_token_limit, free_memory
from medagent.training.module import AgentModule
from medagent.training.ranks import callbacks_of
from medagent.training.rollouts.collection import Background
from medagent.training.validation import ValidationBatches
from medagent.types import Question, Rollout

PROBE_TOKENS = 256  # of a prompt, by which an engine checks that weights arrived


class Work(NamedTuple):
    """A rank's work in an iteration: rollouts of at most `longest` tokens in `parts` that never divide `together`."""

    rollouts: int
    parts: int
    longest: int
    together: int = 1


def rows_of_micro_batch(rollouts: int, *, parts: int, together: int) -> int:
    """The largest number of rollouts in a micro-batch; groups of `together` rollouts are never divided.

    >>> rows_of_micro_batch(144, parts=8, together=16)
    32
    """
    return -(-(rollouts // together) // parts) * together


def questions_in(setting: str, benchmark: Benchmark | None) -> list[Question]:
    """A benchmark's questions; ConfigError where `setting` names none."""
    check_part(setting, benchmark, Benchmark)
    assert benchmark is not None
    questions = benchmark.questions()
    if not isinstance(questions, list) or not all(isinstance(each, Question) for each in questions):
        raise ConfigError(
            f"{setting}: {type(benchmark).__name__}.questions() gave a {type(questions).__name__}, wanted a list of "
            "Question. A BenchmarkSource gives its benchmark by open()."
        )
    return questions


class AgentData(LightningDataModule):
    """Base of the data modules.

    `questions` are those trained on, `val_questions` those that validation asks, `trainer.check_val_every_n_epoch` says
    how often. A larger share than `allowed_contamination` of them that are near-duplicates of the former is refused.
    `default_callbacks` are class paths: what a run gets unless its configuration
    has a list of its own. `any_step_ends`: an iteration may end after any optimizer step.
    """

    default_callbacks: ClassVar[tuple[str, ...]] = ()
    any_step_ends: ClassVar[bool] = False
    config: Mapping[str, Any] = MappingProxyType({})  # the arguments as a configuration has them
    trainer: Trainer  # Lightning sets it before it calls a hook
    num_micro_batches: int  # per optimizer step
    environment: Environment | None = None  # instead of a benchmark, a retriever and a reward
    _agent: Agent  # of the present validation

    def __init__(
        self,
        agent: AgentSettings,
        retriever: Retriever,
        engine: Engine,
        *,
        val_benchmark: Benchmark | None,
        allowed_contamination: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.agent_settings, self.retriever, self.engine, self.seed = agent, retriever, engine, seed
        self.questions: list[Question] = []
        self.val_questions = questions_in("data.val_benchmark", val_benchmark) if val_benchmark else []
        self.allowed_contamination = allowed_contamination
        self.background = Background()

    def work(self, world_size: int) -> Work | None:
        """The work of one of `world_size` ranks; None where nothing is known of it."""
        return None

    def token_limit(self) -> TokenLimit:
        """How many tokens a pass may read on this rank, by its work and its free memory."""
        trainer, module, device = self.trainer, self.trainer.lightning_module, self.trainer.strategy.root_device
        assert isinstance(module, AgentModule)
        if (work := self.work(trainer.world_size)) is None:
            return TokenLimit(0, "nothing is known of the work")
        try:
            shape = ModelShape.of(module.base_name)
        except ConfigError as error:
            return TokenLimit(0, f"nothing is known of what it needs ({error})")
        load = Load(
            shape,
            module.dtype_name,
            module.policy_lora,
            module.critic_lora,
            module.execution,
            replace(self.agent_settings.limits, max_total_tokens=work.longest),
            work.rollouts,
            rows_of_micro_batch(work.rollouts, parts=work.parts, together=work.together),
            in_process=self.engine.samples_here,
            device="cpu" if device.type == "cpu" else "gpu",
            weight_sync=self.engine.weight_sync,
        )
        ranks_here = 1 if device.type == "cuda" else trainer.num_devices
        return fit_token_limit(load, self.engine.trainer_share * free_memory(device, sharing=ranks_here))

    def start_engine(self, module: AgentModule, prompt_ids: Sequence[int]) -> None:
        """Start the engine, or have it refuse what it cannot serve. `prompt_ids` is a text to compare log-probs on."""
        self.engine.start(
            ModuleWeights(module),
            EngineSetup(
                Path(self.trainer.default_root_dir),
                self.agent_settings.limits.max_total_tokens,
                tuple(prompt_ids[:PROBE_TOKENS]),
                self.trainer.local_rank,
                self.trainer.num_devices,
                self.trainer.strategy.root_device,
            ),
        )

    def check_validation(self) -> None:
        """Refuse near-duplicates of questions trained on, and what waits for validation where there is none."""
        if self.val_questions:
            report = contamination(self.val_questions, question_texts(self.questions))
            refuse_contaminated(report, allowed_share=self.allowed_contamination, what="validation")
            return
        for each in callbacks_of(self.trainer, EarlyStopping):
            at_epoch_end = each._check_on_train_epoch_end
            if not at_epoch_end and (at_epoch_end is False or self.trainer.check_val_every_n_epoch != 1):
                raise ConfigError(
                    "trainer.callbacks: found EarlyStopping, which looks at its metric after validation, and no "
                    "validation. Set data.val_benchmark, or its check_on_train_epoch_end to true."
                )

    def val_dataloader(self) -> DataLoader[list[Question]] | list[Any]:
        """The questions of validation in batches; no loader where there are none."""
        if not self.val_questions:
            return []
        return DataLoader(ValidationBatches(self.val_questions, self.trainer), batch_size=None)

    def agent_with(self, policy: Policy, retriever: Retriever) -> Agent:
        """The environment's agent, else one that searches with the retriever."""
        rules = self.agent_settings
        if self.environment:
            return self.environment.agent(policy, rules)
        check_working(rules.made_tools)
        return Agent(policy, retriever, rules.protocol, rules.limits, top_k=rules.top_k, tools=rules.made_tools)

    def sync_agent(self, module: AgentModule, *, version: int) -> None:
        """Make the agent with the module's weights; its retriever has no failures but those it will have in use."""
        self._agent = self.agent_with(self.policy_of(module, version=version), corpus_of(self.retriever))

    def answers(self, questions: Sequence[Question]) -> list[Rollout]:
        """Its greedy answers, in order."""
        return run_benchmark(self._agent, questions, temperature=0.0, seed=self.seed)

    def validation_metrics(self, answers: Sequence[Rollout]) -> dict[str, float]:
        """Accuracy, that of each kind of question, the measures of open questions, and what an environment paid."""
        summary = summarize(answers)
        by_type = {f"validation/{kind}": part.accuracy for kind, part in summary.by_type.items()}
        measures = {f"validation/{name}": found.value for name, found in summary.measures.items()}
        earned = sum(each.total_reward for each in answers) / max(1, len(answers))
        paid = {"validation/reward": earned} if self.environment else {}
        return {"validation/accuracy": summary.overall.accuracy, **by_type, **measures, **paid}

    def state_dict(self) -> dict[str, Any]:
        """An empty state, once the background is done: no checkpoint is ahead of rollouts before it."""
        self.background.wait()
        return {}

    def policy_of(self, module: AgentModule, *, version: int) -> Policy:
        """A policy with the module's weights of iteration `version`, once rollouts with those before are done."""
        self.background.wait()
        return self.engine.sync_weights(ModuleWeights(module), version=version)

    def teardown(self, stage: str) -> None:
        """Stop what the engine started: the run has ended."""
        self.engine.close()

    def on_exception(self, exception: BaseException) -> None:
        """Stop what the engine started: the run has failed, or was interrupted."""
        self.engine.close()
