"""Shared by every kind of training: the dialogue's rules, the retriever, and access to the present policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from lightning import LightningDataModule

from medagent.policy import Policy
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.training.engines import Engine, EngineSetup, ModuleWeights
from medagent.training.execution import TokenLimit
from medagent.training.memory.batch_size_tuning import Work, token_limit_of
from medagent.training.module import AgentModule
from medagent.training.rollouts.stale_rollouts import Background
from medagent.training.sharding import ShardedBase
from medagent.types import Limits, Question

PROBE_TOKENS = 256  # of a prompt, by which an engine checks that weights arrived


@dataclass(frozen=True)
class AgentSettings:
    """The dialogue's rules; exported with the agent."""

    protocol: TurnProtocol = field(default_factory=TagProtocol)
    limits: Limits = Limits()
    top_k: int = 3


def rows_of_micro_batch(rollouts: int, *, parts: int, together: int) -> int:
    """The largest number of rollouts in a micro-batch; groups of `together` rollouts are never divided.

    >>> rows_of_micro_batch(144, parts=8, together=16)
    32
    """
    return -(-(rollouts // together) // parts) * together


class AgentData(LightningDataModule):
    """Base of the data modules.

    `questions` are those trained on. `default_callbacks` are class paths: what a run gets unless its configuration
    has a list of its own. `any_step_ends`: an iteration may end after any optimizer step.
    """

    default_callbacks: ClassVar[tuple[str, ...]] = ()
    any_step_ends: ClassVar[bool] = False
    config: Mapping[str, Any] = MappingProxyType({})  # the arguments as a configuration has them
    num_micro_batches: int  # per optimizer step

    def __init__(self, agent: AgentSettings, retriever: Retriever, engine: Engine, *, seed: int) -> None:
        super().__init__()
        self.agent_settings, self.retriever, self.engine, self.seed = agent, retriever, engine, seed
        self.questions: list[Question] = []
        self.background = Background()

    def work(self, world_size: int) -> Work | None:
        """The work of one of `world_size` ranks; None where nothing is known of it."""
        return None

    def work_of(self, rollouts: int, *, parts: int, longest: int, together: int = 1) -> Work:
        """A rank's work: `rollouts` of at most `longest` tokens in `parts` that never divide `together`."""
        return Work(
            rollouts,
            rows_of_micro_batch(rollouts, parts=parts, together=together),
            replace(self.agent_settings.limits, max_total_tokens=longest),
            self.engine.samples_here,
            self.engine.weight_sync,
            self.engine.trainer_share,
        )

    def token_limit(self) -> TokenLimit:
        """How many tokens a pass may read on this rank, by its work and its free memory."""
        assert self.trainer is not None
        module = self.trainer.lightning_module
        assert isinstance(module, AgentModule)
        work = self.work(self.trainer.world_size)
        return token_limit_of(self.trainer, module, work) if work else TokenLimit(0, "nothing is known of the work")

    def start_engine(self, module: AgentModule, prompt_ids: Sequence[int]) -> None:
        """Start the engine, or have it refuse what it cannot serve. `prompt_ids` is a text to compare log-probs on."""
        assert self.trainer is not None
        self.engine.start(
            ModuleWeights(module),
            EngineSetup(
                Path(self.trainer.default_root_dir),
                self.agent_settings.limits.max_total_tokens,
                tuple(prompt_ids[:PROBE_TOKENS]),
                self.trainer.local_rank,
                self.trainer.num_devices,
                self.trainer.strategy.root_device,
                isinstance(self.trainer.strategy, ShardedBase),
            ),
        )

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
