"""Log-prob, concentration and entropy of chosen tokens, without keeping vocabulary scores for the backward pass.

The gradient of a log-prob by its state, (W[token] - p W) / temperature, is made in the forward pass, while p is there.

Shapes: R rows, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

CPU_ROWS = 128  # whose scores stay in a processor's cache between one operation and the next


@dataclass(frozen=True)
class TokenScores:
    """Scores per action token, each [B, T] and 0 elsewhere.

    They are log-prob, probability, sum of squared probabilities, and entropy in nats.
    """

    logprobs_BT: Tensor
    collision_BT: Tensor
    entropy_BT: Tensor


def frozen_head(model: PreTrainedModel) -> nn.Linear | None:
    """The vocabulary projection where it is a plain linear layer that is not trained, else None."""
    head = model.get_output_embeddings()
    return head if type(head) is nn.Linear and not any(each.requires_grad for each in head.parameters()) else None


def chosen_scores(
    head: nn.Linear, states_RH: Tensor, tokens_R: Tensor, *, temperature: float, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """[R] log-probs of the tokens, with gradient; sums of squared probabilities; entropies. `rows` at a time."""
    if states_RH.device.type == "cpu":
        rows = min(rows, CPU_ROWS)
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _ChosenScores.apply
    return apply(states_RH, head.weight, head.bias, tokens_R, temperature, rows)


class _ChosenScores(torch.autograd.Function):
    """See `chosen_scores`."""

    @staticmethod
    def forward(
        ctx: Any,
        states_RH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        tokens_R: Tensor,
        temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        slope_RH = torch.empty_like(states_RH) if ctx.needs_input_grad[0] else None
        parts = []
        for start in range(0, max(1, len(states_RH)), rows):  # once where there are none
            part = slice(start, start + rows)
            tokens = tokens_R[part]
            scores = linear(states_RH[part], weight_VH, bias_V).float()
            scores = scores if temperature == 1 else scores.div_(temperature)
            logprobs = torch.log_softmax(scores, dim=-1)
            probabilities = torch.exp(logprobs, out=scores)
            collision, negative = (_dot(probabilities, each) for each in (probabilities, logprobs))
            if not bool(negative.isfinite().all()):  # p log p is 0 at p = 0, where the log-prob is -inf
                negative = _dot(probabilities, logprobs.clamp_min(torch.finfo(logprobs.dtype).min))
            parts.append((logprobs.gather(1, tokens[:, None])[:, 0], collision, -negative))
            if slope_RH is not None:
                mean = probabilities.to(weight_VH.dtype) @ weight_VH
                slope_RH[part] = (weight_VH[tokens] - mean).div_(temperature)
        ctx.save_for_backward(slope_RH)
        chosen_R, collision_R, entropy_R = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.mark_non_differentiable(collision_R, entropy_R)
        return chosen_R, collision_R, entropy_R

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_R: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        (slope_RH,) = ctx.saved_tensors
        return (gradient_R[:, None] * slope_RH).to(slope_RH.dtype), None, None, None, None, None


def _dot(left_RV: Tensor, right_RV: Tensor) -> Tensor:
    """[R] the sums of products, without a matrix of them."""
    return torch.bmm(left_RV[:, None], right_RV[:, :, None])[:, 0, 0]


CriticInputs = Literal["context", "evidence", "evidence_and_group"]

TURNS = 4  # turns with a number of their own; the last also stands for all later ones
EVIDENCE = TURNS + 6
EVIDENCE_WIDTH = 64
NUM_EVIDENCE_FEATURES: dict[CriticInputs, int] = {
    "context": 0,
    "evidence": EVIDENCE,
    "evidence_and_group": EVIDENCE + 1,
}


def evidence_network(num_features: int) -> nn.Sequential:
    """The critic that reads `num_features` numbers instead of the context; its last layer starts at zero."""
    last = nn.Linear(EVIDENCE_WIDTH, 1, dtype=torch.float32)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(num_features, EVIDENCE_WIDTH, dtype=torch.float32), nn.GELU(), last)
