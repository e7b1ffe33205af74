"""Each iteration's rollouts on disk, with the trainer's numbers of every sampled token beside them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from medagent.evaluation.rollout_files import readable, write_lines
from medagent.evaluation.viewer.recorded import ROLLOUTS, summary_path, write_summaries
from medagent.training.callbacks.trackers import track
from medagent.training.data import RolloutData
from medagent.training.experience import Experience, rollout_name
from medagent.training.module import AgentModule, StepCallback
from medagent.training.objectives import PolicyTerms, reference_kl
from medagent.types import Rollout

SCALE = "policy/clip_bias_scale"
LONGEST = 4  # bytes of a character


class RolloutRecords(StepCallback):
    """Writes every `every`-th iteration to `rollouts/iteration_0000.jsonl.gz` in the run's folder, for `medagent view`.

    A line is a rollout. Each of its turns has the texts of the sampled tokens, and per token the numbers of the last
    optimizer step that read it (`token_numbers`).
    """

    def __init__(self, every: int = 1, limit: int | None = 128) -> None:
        """`limit` keeps the first so many rollouts of an iteration; none keeps all."""
        self._every, self._limit = every, limit
        self._numbers: dict[str, dict[str, Tensor]] = {}
        self._scales: dict[str, float] = {}
        self._in_step: list[str] = []
        self._failed_trackers = set[str]()

    def on_policy_loss(self, module: AgentModule, terms: PolicyTerms) -> None:
        if self._writes(module.trainer):
            numbers = token_numbers(terms, kl=bool(module.kl_coef), values=module.has_critic)
            self._in_step += terms.batch.names
            for row, name in enumerate(terms.batch.names):
                self._numbers[name] = {field: each[row] for field, each in numbers.items()}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: Experience, batch_idx: int
    ) -> None:
        if SCALE in trainer.callback_metrics:
            self._scales |= dict.fromkeys(self._in_step, float(trainer.callback_metrics[SCALE]))
        self._in_step = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, RolloutData)
        assert isinstance(pl_module, AgentModule)
        numbers, self._numbers = self._numbers, {}
        scales, self._scales = self._scales, {}
        if not self._writes(trainer):
            return
        rows = []
        for rollout in data.rollouts[: self._limit]:
            name = rollout_name(rollout)
            rows.append(
                record(rollout, numbers.get(name, {}), pl_module.tokenizer) | {"clip_bias_scale": scales.get(name)}
            )
        write_iteration(Path(trainer.default_root_dir), trainer.current_epoch, rows)
        track(trainer, rows, self._failed_trackers)

    def _writes(self, trainer: Trainer) -> bool:
        return trainer.is_global_zero and trainer.current_epoch % self._every == 0


def write_iteration(run: Path, iteration: int, rows: Sequence[dict[str, Any]]) -> None:
    """Write an iteration's rollouts, then their summary: the viewer shows what has both."""
    place = run / ROLLOUTS / f"iteration_{iteration:04d}.jsonl.gz"
    summary_path(place).unlink(missing_ok=True)  # of an attempt that was killed
    write_lines(place, rows)
    write_summaries(place, rows)


@torch.no_grad()
def token_numbers(terms: PolicyTerms, *, kl: bool, values: bool) -> dict[str, Tensor]:
    """[B, T] the numbers of each action token on the CPU, by name; "counts" is 1 at tokens that the loss counts.

    `ratio` is the importance weight after averaging over the token's segment. `clipped` is 1 above the trust range, -1
    below it, 0 inside.
    """
    batch, logprobs_BT = terms.batch, terms.logprobs_BT
    found = {
        "counts": batch.mask_BT,
        "rollout_logprob": batch.rollout_logprobs_BT,
        "old_logprob": batch.old_logprobs_BT,
        "logprob": logprobs_BT,
        "ratio": terms.result.ratios_BT,
        "clipped": terms.result.outside_BT * (terms.result.ratios_BT - 1).sign(),
        "advantage": batch.advantages_BT,
        "entropy": terms.entropy_BT,
        "weight": batch.loss_weights_BT,
        **({"value": batch.values_BT} if values else {}),
        **({"kl": reference_kl(logprobs_BT, batch.reference_logprobs_BT, batch.mask_BT)} if kl else {}),
    }
    return {name: each.detach().float().cpu() for name, each in found.items()}


def record(rollout: Rollout, numbers: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """A rollout as a row whose turns hold `token_texts`, and the trainer's `numbers` of them where there are."""
    row, place = readable(rollout), len(rollout.prompt_ids)
    row["prompt"] = _text(tokenizer, [max(0, each) for each in rollout.prompt_ids])
    for told, turn in zip(row["turns"], rollout.turns, strict=True):
        place += len(turn.before)
        sampled = slice(place + turn.forced_prefix, place + len(turn.token_ids))
        place += len(turn.token_ids) + len(turn.observation_ids)
        told |= {"reward": turn.reward, "given": _text(tokenizer, turn.token_ids[: turn.forced_prefix])}
        told["token_texts"] = token_texts(tokenizer, turn.token_ids[turn.forced_prefix :])
        told["numbers"] = {name: _written(each[sampled]) for name, each in numbers.items()}
    return row


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token. Where a character is spread over several, the last of them has it and the others none."""
    texts, open_ids = list[str](), list[int]()
    for id_ in ids:
        open_ids.append(id_)
        text = _text(tokenizer, open_ids)
        whole = not text.endswith("\ufffd") or len(open_ids) == LONGEST
        texts.append(text if whole else "")
        open_ids = [] if whole else open_ids
    return [*texts[:-1], _text(tokenizer, open_ids)] if open_ids else texts


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _written(values: Tensor) -> list[float | None]:
    """Numbers as short as they can be written without a change of their 32 bits; None where they are not finite."""
    return [float(str(each)) if math.isfinite(each) else None for each in values.numpy()]
