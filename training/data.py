"""Experience as a Lightning data source: an epoch is an iteration, collected with the weights at its first `next()`."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from medagent.agent import Job
from medagent.environment import AgentSettings, Environment
from medagent.errors import ConfigError, require
from medagent.evaluation.benchmarks import Benchmark
from medagent.interface_check import check_part
from medagent.models.text_length import check_trained_text
from medagent.policy import Policy
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.retriever import Retriever
from medagent.training.advantages import GAE, AdvantageEstimator, Reduce
from medagent.training.agent_data import AgentData, Work, questions_in
from medagent.training.batching import split_update
from medagent.training.compatibility import (
    check_composition,
    check_engine,
    check_environment,
    check_protocol,
    fitting,
    warn_of_tight_limits,
)
from medagent.training.default_callbacks import tokens_to_sample
from medagent.training.engines import Engine, InProcessEngine
from medagent.training.experience import Experience, Reduction, step_weights
from medagent.training.metrics import explained_variance, logprob_gap, rollout_metrics
from medagent.training.module import AgentModule
from medagent.training.prepare import OffPolicy, TruncatedMode, ZeroStdMode, check_bootstrap, prepare
from medagent.training.ranks import over_ranks
from medagent.training.rewards import OutcomeReward, Reward, as_earned
from medagent.training.rollouts.collection import SamplingCost, StaleRollouts, check_ranks, collect, num_actions
from medagent.training.rollouts.questions import NoisyRetrieval, draws, order_of_pass
from medagent.training.settings import as_config, check_shares
from medagent.types import Question, Rollout, rollout_seed


class RolloutData(AgentData):
    """Questions, retriever, reward and batching of a training run.

    An iteration rolls out `num_questions` questions `num_samples` times each. It makes `num_epochs` passes of
    `num_minibatches` optimizer steps over them. A step accumulates the gradients of `num_micro_batches`.

    `num_critic_epochs` passes for the critic alone come first: it learns from fewer and noisier targets than the
    policy. An untrained critic starts at the first mean return.

    `truncated` says how a truncated rollout counts: "terminal" (an end like any other), "bootstrap" (the critic's value
    of its last state is added) or "mask" (no loss).

    `zero_std_groups` "mask": a question whose rollouts all earned the same has no loss, where the advantage compares
    them. "resample": other questions take its place, as in DAPO (arXiv 2503.14476). After `max_num_gen_batches` draws,
    the first included, groups that still have no spread have no loss. Metrics are of the groups that stay.

    `reward_concurrency`: rewards that threads compute at once, beside sampling; above 1 the reward must be thread-safe.

    `filter_overlong_prompts`: leave questions out that do not fit into the limits, instead of refusing them.

    Validation asks `val_benchmark` and the last `val_size` questions of `benchmark`, which are then not trained on.

    `environment` takes the place of `benchmark`, `retriever` and `reward`.
    """

    default_callbacks = (
        "medagent.training.callbacks.RolloutRecords",
        "medagent.training.callbacks.AgentExport",
        "medagent.training.callbacks.ProgressLine",
    )

    def __init__(
        self,
        benchmark: Benchmark | None = None,
        retriever: Retriever | None = None,
        agent: AgentSettings = AgentSettings(),
        reward: Reward = lazy_instance(OutcomeReward),
        advantage: AdvantageEstimator = lazy_instance(GAE),
        off_policy: OffPolicy = OffPolicy(),
        engine: Engine = lazy_instance(InProcessEngine),
        truncated: TruncatedMode = "terminal",
        zero_std_groups: ZeroStdMode = "keep",
        max_num_gen_batches: int = 10,
        reward_concurrency: int = 1,
        filter_overlong_prompts: bool = False,
        noisy_retrieval: NoisyRetrieval = NoisyRetrieval(),
        num_questions: int = 128,
        num_samples: int = 1,
        num_epochs: int = 1,
        num_critic_epochs: int = 0,
        num_minibatches: int = 4,
        num_micro_batches: int = 2,
        reduction: Reduction = "rollout-mean",
        val_benchmark: Benchmark | None = None,
        val_size: int = 0,
        allowed_contamination: float = 0.0,
        seed: int = 0,
        environment: Environment | None = None,
    ) -> None:
        self.config = as_config({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        if environment:
            check_environment(environment, agent, reward, benchmark, retriever, val_benchmark, noisy_retrieval)
            self.environment, benchmark, retriever, reward = environment, environment, NoRetriever(), as_earned
        check_part("data.retriever", retriever, Retriever)
        check_part("data.reward", reward, Reward)
        assert retriever is not None
        super().__init__(
            agent,
            retriever,
            engine,
            val_benchmark=val_benchmark,
            allowed_contamination=allowed_contamination,
            seed=seed,
        )
        require(reward_concurrency >= 1, "data.reward_concurrency", reward_concurrency, "1 or more")
        require(max_num_gen_batches >= 2, "data.max_num_gen_batches", max_num_gen_batches, "2 or more")
        self.reward, self.reward_concurrency = reward, reward_concurrency
        self.advantage, self.off_policy, self.truncated = advantage, off_policy, truncated
        self.zero_std_groups, self.max_num_gen_batches = zero_std_groups, max_num_gen_batches
        self.filter_overlong_prompts = filter_overlong_prompts
        self.noisy_retrieval = noisy_retrieval
        self.num_questions, self.num_samples = num_questions, num_samples
        self.num_epochs, self.num_critic_epochs = num_epochs, num_critic_epochs
        self.num_minibatches, self.num_micro_batches = num_minibatches, num_micro_batches
        self.reduction = reduction
        self.questions = questions_in("data.benchmark", benchmark)
        total = len(self.questions)
        require(0 <= val_size < total, "data.val_size", val_size, f"0 or more of {total} questions")
        self.val_questions = self.val_questions + self.questions[total - val_size :]
        self.questions = self.questions[: total - val_size]
        noisy_retrieval.check(self.questions)
        self.rollouts: list[Rollout] = []  # of the current iteration, for records
        self.samplings: dict[int, SamplingCost] = {}  # iteration -> what its rollouts cost
        if num_questions * num_samples < num_minibatches * num_micro_batches:
            raise ConfigError(
                f"data: {num_questions} questions x {num_samples} samples cannot fill {num_minibatches} minibatches of "
                f"{num_micro_batches} micro-batches. Raise num_questions or lower the others."
            )

    def setup(self, stage: str) -> None:
        """Refuse what does not fit together, before anything long starts."""
        if self.trainer is None or not isinstance(self.trainer.lightning_module, AgentModule):
            raise ConfigError("RolloutData serves a trainer that fits an AgentModule.")
        module, settings = self.trainer.lightning_module, self.agent_settings
        parts = self.num_minibatches * self.num_micro_batches
        check_shares(self.num_questions, self.num_samples // self._together(), parts, self.trainer.world_size)
        check_composition(type(self.advantage), module, self)
        if self.truncated == "bootstrap":
            check_bootstrap(module, self.advantage)
        check_engine(self.engine, quantise=module.execution.quantise, overlap=self.off_policy.overlap)
        warn_of_tight_limits(module.base_name, settings.limits)
        check_protocol(module.shared_base.base, module.tokenizer, settings.protocol)
        check_trained_text(module.shared_base.peft.config, settings.limits, f"the base {module.base_name}")
        if not self.environment:  # its first messages are not known yet
            self.questions = fitting(self.questions, module.tokenizer, settings, leave_out=self.filter_overlong_prompts)
        self.check_validation()
        check_ranks(Path(self.trainer.default_root_dir), self.trainer.world_size)
        self.start_engine(module, settings.protocol.encode_prompt(module.tokenizer, self.questions[0]))

    def work(self, world_size: int) -> Work:
        """A rank's work in memory; the last passages may go over the limit, which is asked before the next turn."""
        limits = self.agent_settings.limits
        return Work(
            self.num_questions * self.num_samples // world_size,
            self.num_minibatches * self.num_micro_batches,
            limits.max_total_tokens + limits.max_observation_tokens,
            self._together(),
        )

    def _together(self) -> int:
        """Rollouts that are never dealt apart: a question's samples, where rows share prefixes."""
        module = self.trainer and self.trainer.lightning_module
        return self.num_samples if isinstance(module, AgentModule) and module.execution.shared_prefixes else 1

    def questions_of(self, iteration: int) -> list[Question]:
        """The questions of an iteration: the next slice of an endless sequence of seeded permutations."""
        total, chosen = len(self.questions), []
        for position in range(iteration * self.num_questions, (iteration + 1) * self.num_questions):
            number, offset = divmod(position, total)
            chosen.append(self.questions[order_of_pass(self.seed, number, total)[offset]])
        return chosen

    def train_dataloader(self) -> DataLoader[Experience]:
        """A loader without workers or collation: the dataset yields whole optimizer steps."""
        return DataLoader(_Iteration(self, self.trainer), batch_size=None, num_workers=0)

    def collect(
        self, policy: Policy, *, temperature: float, iteration: int, version: int, rank: int, world_size: int
    ) -> list[Rollout]:
        """Sample and grade this rank's rollouts for an iteration; the policy's weights are of iteration `version`."""
        agent = self.agent_with(policy, self.retriever)
        asked = draws(self.questions_of(iteration), self.questions, seed=self.seed, iteration=iteration)
        groups = (
            [
                self.noisy_retrieval.with_noise(
                    Job(
                        question,
                        seed=rollout_seed(self.seed, iteration=iteration, question_id=question.id, sample=sample),
                        temperature=temperature,
                        policy_version=version,
                        sample=sample,
                    ),
                    seed=self.seed,
                    iteration=iteration,
                    retriever=self.retriever,
                )
                for sample in range(repeat * self.num_samples, (repeat + 1) * self.num_samples)
            ]
            for question, repeat in islice(asked, rank, None, world_size)
        )
        rollouts, self.samplings[iteration] = collect(
            agent,
            groups,
            self.reward,
            num_groups=len(range(rank, self.num_questions, world_size)),
            concurrency=self.reward_concurrency,
            max_batches=self.max_num_gen_batches if self.zero_std_groups == "resample" else 1,
        )
        return rollouts


class _Iteration(IterableDataset[Experience]):
    """The optimizer steps of the trainer's current epoch."""

    def __init__(self, data: RolloutData, trainer: Trainer) -> None:
        self._data, self._trainer = data, trainer

    def __len__(self) -> int:
        data = self._data
        return (data.num_critic_epochs + data.num_epochs) * data.num_minibatches

    def __iter__(self) -> Iterator[Experience]:
        data, trainer = self._data, self._trainer
        module = trainer.lightning_module
        assert isinstance(module, AgentModule)
        iteration = trainer.current_epoch
        started = time.perf_counter()
        data.rollouts = self._rollouts(module, iteration)
        rollout_s = time.perf_counter() - started
        # A class of the user's may collect otherwise.
        sampling = data.samplings.pop(iteration, None) or SamplingCost(rollout_s, num_actions(data.rollouts))
        module.shared_base.token_counts.read(tokens_to_sample(data.rollouts) + sampling.discarded_tokens)
        reduce, largest = (partial(over_ranks, trainer, op=op) for op in ("sum", "max"))
        if iteration == 0 and module.has_critic:
            totals = reduce(torch.tensor([sum(r.total_reward for r in data.rollouts), float(len(data.rollouts))]))
            module.shared_base.start_values_at(float(totals[0] / totals[1]))
        experience = prepare(
            module,
            data.rollouts,
            estimator=data.advantage,
            reduce=reduce,
            num_samples=data.num_samples,
            off_policy=data.off_policy,
            truncated=data.truncated,
            zero_std_groups=data.zero_std_groups,
        )
        value_mask_BT = data.advantage.value_mask(experience.mask_BT, experience.turn_ids_BT)
        variance = {"critic/explained_variance": explained_variance(experience, value_mask_BT, reduce)}
        metrics = {
            **rollout_metrics(data.rollouts, iteration=iteration, reduce=reduce),
            **(variance if module.has_critic else {}),
            **sampling.over_ranks({**data.engine.metrics(), "time/rollout": rollout_s}, reduce, largest),
            **logprob_gap(experience, off_policy=data.off_policy, reduce=reduce, largest=largest),
            **experience.metrics,
        }
        for number, step in enumerate(self._steps(experience, value_mask_BT, module, iteration, reduce)):
            yield replace(step, metrics={} if number else metrics)

    def _steps(
        self, experience: Experience, value_mask_BT: Tensor, module: AgentModule, iteration: int, reduce: Reduce
    ) -> Iterator[Experience]:
        data = self._data
        lengths = experience.attention_BT.sum(dim=1).tolist()
        factor = float(self._trainer.world_size)
        weights_of = partial(step_weights, reduction=data.reduction, reduce=reduce, factor=factor)
        for epoch in range(data.num_critic_epochs + data.num_epochs):
            shuffle = rollout_seed(data.seed, iteration=iteration, question_id="minibatches", sample=epoch)
            for parts in split_update(
                lengths,
                groups=experience.groups_B.tolist() if module.execution.shared_prefixes else None,
                num_minibatches=data.num_minibatches,
                num_micro_batches=data.num_micro_batches,
                seed=shuffle,
            ):
                step, rows = experience.step(parts), [row for part in parts for row in part]
                yield replace(
                    step,
                    loss_weights_BT=weights_of(step.mask_BT),
                    value_weights_BT=weights_of(value_mask_BT[rows, : step.mask_BT.shape[1]]),
                    critic_only=epoch < data.num_critic_epochs,
                )

    def _rollouts(self, module: AgentModule, iteration: int) -> list[Rollout]:
        data, trainer = self._data, self._trainer
        policy = data.policy_of(module, version=iteration)

        def collect(coming: int) -> list[Rollout]:
            return data.collect(
                policy,
                temperature=module.temperature,
                iteration=coming,
                version=iteration,
                rank=trainer.global_rank,
                world_size=trainer.world_size,
            )

        if not data.off_policy.staleness:
            rollouts = collect(iteration)
        else:
            assert trainer.max_epochs is not None
            kept = StaleRollouts(
                Path(trainer.default_root_dir),
                staleness=data.off_policy.staleness,
                rank=trainer.global_rank,
                background=data.background,
                overlap=data.off_policy.overlap,
            )

            last = trainer.max_epochs - 1
            rollouts = kept.take(iteration, last=last, collect=collect, costs=data.samplings)
        data.engine.sleep()
        return rollouts
