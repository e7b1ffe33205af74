"""Sampling by inversion: the token at which the cumulative distribution passes a uniform number.

Probabilities are summed in blocks first, so that the large vocabulary is gone through once in float32, and only a
block's entries are accumulated in float64.

Shapes: S slots, M numbers drawn for the slot that has most, V vocabulary, N blocks.
"""

import torch
from torch import Tensor

BLOCK = 256  # tokens


def sample_tokens(logits_SV: Tensor, temperatures_S: Tensor, drawn_SM: Tensor) -> tuple[Tensor, Tensor]:
    """[S, M] a token for each uniform number in [0, 1), and its log-prob; temperature 0 takes the likeliest.

    `logits_SV` is overwritten. A row that holds no distribution (a nan, an inf, or -inf throughout) has log-probs that
    are not finite.
    """
    slots, vocabulary = logits_SV.shape
    greedy_S = temperatures_S == 0
    divisors_S = temperatures_S.masked_fill(greedy_S, 1.0)
    if not bool((divisors_S == 1).all()):
        logits_SV.div_(divisors_S[:, None])
    highest_S = logits_SV.amax(dim=-1)
    padded = -(-vocabulary // BLOCK) * BLOCK
    weights_SP = logits_SV.new_zeros(slots, padded)
    torch.exp(logits_SV - highest_S[:, None], out=weights_SP[:, :vocabulary])
    blocks_SNB = weights_SP.view(slots, -1, BLOCK)
    cumulative_SN = blocks_SNB.sum(dim=-1).double().cumsum(dim=-1)
    total_S1 = cumulative_SN[:, -1:]
    target_SM = drawn_SM * total_S1
    block_SM = _passed(cumulative_SN, target_SM)
    before_SM = torch.where(block_SM > 0, cumulative_SN.gather(1, (block_SM - 1).clamp(min=0)), 0.0)
    rows_SM = torch.arange(slots, device=block_SM.device)[:, None].expand_as(block_SM)
    within_SMB = blocks_SNB[rows_SM, block_SM].double().cumsum(dim=-1)
    place_SM = _passed(within_SMB, (target_SM - before_SM)[..., None])[..., 0]
    tokens_SM = block_SM * BLOCK + place_SM
    if bool(greedy_S.any()):
        tokens_SM = torch.where(greedy_S[:, None], logits_SV.argmax(dim=-1)[:, None], tokens_SM)
    tokens_SM = tokens_SM.clamp(max=vocabulary - 1)  # of a row without a distribution
    normaliser_S1 = highest_S[:, None].double() + total_S1.log()
    return tokens_SM, (logits_SV.gather(1, tokens_SM).double() - normaliser_S1).float()


def _passed(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first entry whose cumulative sum lies above the target; rounding never leads beyond the last that counts."""
    below_last = torch.nextafter(cumulative[..., -1:], cumulative.new_zeros(()))
    return torch.searchsorted(cumulative, torch.minimum(target, below_last), right=True).clamp(
        max=cumulative.shape[-1] - 1
    )
