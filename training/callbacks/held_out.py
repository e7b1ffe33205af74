"""Evaluation during training: greedy answers to held-out questions with the weights of the moment."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import Benchmark
from medagent.evaluation.contamination import contamination, question_texts, refuse_contaminated
from medagent.evaluation.metrics import summarize
from medagent.evaluation.run import run_benchmark
from medagent.retrieval.tools import without_failures
from medagent.training.agent_data import AgentData
from medagent.training.default_callbacks import log_at_once
from medagent.training.module import AgentModule
from medagent.types import Question


class HeldOutEvaluation(Callback):
    """Logs `validation/accuracy` (and per question type) after every `every`-th iteration.

    Open questions also log F1, exact match and containment, and BioASQ's types the challenge's measures
    (`medagent.evaluation.open_measures`).

    Before training it compares its questions with those trained on (`medagent.evaluation.contamination`). It refuses to
    go on where a larger share than `allowed_contamination` of them are near-duplicates.
    """

    def __init__(self, benchmark: Benchmark, every: int = 5, allowed_contamination: float = 0.0) -> None:
        if every < 1:
            raise ConfigError(f"HeldOutEvaluation.every: found {every}, wanted 1 or more.")
        self._questions: list[Question] = benchmark.questions()
        self._every, self._allowed = every, allowed_contamination
        self.latest: tuple[int, float] | None = None  # (epoch, accuracy) of the last evaluation

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse contaminated training data."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, AgentData)
        report = contamination(self._questions, question_texts(data.questions))
        refuse_contaminated(report, allowed_share=self._allowed, what="HeldOutEvaluation")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate after iterations `every`, 2 `every`, ..."""
        assert isinstance(pl_module, AgentModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, AgentData)
        if (trainer.current_epoch + 1) % self._every:
            return
        settings = data.agent_settings
        retriever = without_failures(data.retriever)  # measured on what the agent will have
        policy = data.policy_of(pl_module, version=trainer.current_epoch + 1)
        agent = Agent(policy, retriever, settings.protocol, settings.limits, top_k=settings.top_k)
        summary = summarize(run_benchmark(agent, self._questions, temperature=0.0, seed=data.seed))
        by_type = {f"validation/{kind}": part.accuracy for kind, part in summary.by_type.items()}
        measures = {f"validation/{name}": found.value for name, found in summary.measures.items()}
        metrics = {"validation/accuracy": summary.overall.accuracy, **by_type, **measures}
        self.latest = trainer.current_epoch, summary.overall.accuracy
        log_at_once(trainer, pl_module, metrics)
