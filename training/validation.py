"""Validation on Lightning's loop: greedy answers to held-out questions with the weights of the moment."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import IterableDataset

from medagent.errors import ConfigError
from medagent.training.default_callbacks import log_at_once
from medagent.training.ranks import gathered
from medagent.types import Question, Rollout

BATCH = 128  # questions that are answered together, which no figure depends on


class ValidationModule(LightningModule):
    """A module that is validated by what its agent answers; a batch is a list of questions.

    Logs `validation/accuracy` (and per question type). Open questions also log F1, exact match and containment, and
    BioASQ's types the challenge's measures (`medagent.evaluation.open_measures`).
    """

    _answers: list[Rollout]

    @torch.inference_mode(mode=False)  # what an engine makes now, training reads later
    @torch.no_grad()
    def on_validation_epoch_start(self) -> None:
        trainer = self.trainer
        self._answers = []
        self._data().sync_agent(self, version=trainer.current_epoch + int(not trainer.sanity_checking))

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def validation_step(self, batch: list[Question], batch_idx: int) -> None:
        self._answers += self._data().answers(batch)

    def on_validation_epoch_end(self) -> None:
        answers = gathered(self.trainer, self._answers)
        if self.trainer.sanity_checking:
            return
        metrics = self._data().validation_metrics(answers)
        if self.trainer.state.fn == TrainerFn.FITTING:
            log_at_once(self.trainer, self, metrics)
        else:
            self.log_dict(metrics, rank_zero_only=True)  # `trainer.validate` returns what its logger gets

    def _data(self) -> Any:
        """The data module, an `AgentData`."""
        data = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "sync_agent"):
            raise ConfigError(
                f"validation: found {type(data).__name__} as data module, wanted RolloutData or another AgentData. It "
                "holds the agent's retriever and protocol."
            )
        return data


class ValidationBatches(IterableDataset[list[Question]]):
    """A rank's questions in batches. All ranks have equally many, as DDP runs them together; some may be empty."""

    def __init__(self, questions: Sequence[Question], trainer: Trainer) -> None:
        self._own = questions[trainer.global_rank :: trainer.world_size]
        self._count = -(-len(questions[:: trainer.world_size]) // BATCH)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[Question]]:
        for number in range(self._count):
            yield list(self._own[number * BATCH : (number + 1) * BATCH])
