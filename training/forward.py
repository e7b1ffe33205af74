"""One forward pass of the base over rows, as `Execution` says: padded, packed, or along a prefix tree; and its heads.

Log-prob, concentration and entropy of chosen tokens are made without keeping vocabulary scores for the backward pass.
The gradient of a log-prob by its state, (W[token] - p W) / temperature, is made in the forward pass, while p is there.

Shapes: R rows, H hidden size, V vocabulary.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from medagent.errors import ConfigError
from medagent.models.causal_lm import SLIDING, decoder_config, hidden_states, other_limits
from medagent.training.execution import Execution
from medagent.training.prefixes import PrefixTree
from medagent.types import NEW_CONTEXT

SHORT, LONG = 5, 9  # tokens of the two rows
EXACT = 1e-5  # share of a state's size by which another row may move it
SAME, SAME_IN_HALF = 1e-3, 0.1  # and by which packing may, through rounding alone; in types of 16 bits


@dataclass(frozen=True)
class SelectedHiddenStates:
    """The hidden states that predict the A marked tokens of a micro-batch, each state and token once."""

    states_UH: Tensor
    """[U, H] states at the positions before the tokens; U is A, or less where rows share prefixes."""
    tokens_U: Tensor
    """[U] integer: the tokens that they predict."""
    mask_BT: Tensor
    """[B, T] bool: the marked tokens, in whose order A counts."""
    num_read: int
    """Tokens that the pass read, without padding."""
    of_A: Tensor | None = None
    """[A] integer: the state of each marked token; None if states and marked tokens have one order."""

    def each(self, values_U: Tensor) -> Tensor:
        """[A, ...] the values of the marked tokens."""
        return values_U if self.of_A is None else values_U.index_select(0, self.of_A)

    def placed(self, values_U: Tensor) -> Tensor:
        """[B, T] the values at the marked tokens, 0 elsewhere."""
        values_A = self.each(values_U)
        return values_A.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, values_A)


def selected_hidden_states(
    base: PreTrainedModel, execution: Execution, token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor
) -> SelectedHiddenStates:
    """Read the rows once, and keep the states that predict the marked tokens.

    Rows are padded on the right. Tokens after the state that predicts a row's last marked token are not read. A marked
    position may be the first after a row's end.

    Raises:
        ValueError: the first token of a row is marked, which nothing predicts.
    """
    if bool((token_ids_BT == NEW_CONTEXT).any()):
        parts = _contexts_apart(token_ids_BT, attention_BT, mask_BT)
        return replace(selected_hidden_states(base, execution, *parts), mask_BT=mask_BT)
    if bool(mask_BT[:, 0].any()):
        raise ValueError("the first token of a rollout cannot be an action: nothing predicts it.")
    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = (mask_BT * places_T).amax(dim=1, keepdim=True).clamp(min=1)  # the first token, where none is marked
    attention_BT = attention_BT & (places_T < last_B1)
    num_read = int(attention_BT.sum())
    if execution.shared_prefixes:
        tree = PrefixTree.of(token_ids_BT, attention_BT)
        before_A, tokens_A = tree.nodes_BT[:, :-1][mask_BT[:, 1:]], token_ids_BT[mask_BT]
        vocabulary = int(token_ids_BT.max()) + 1
        keys_U, of_A = torch.unique(before_A * vocabulary + tokens_A, return_inverse=True)
        states_UH = tree.states(base).index_select(0, keys_U // vocabulary)
        return SelectedHiddenStates(states_UH, keys_U % vocabulary, mask_BT, len(tree.tokens_N), of_A)
    tokens_A = token_ids_BT[mask_BT]
    if not execution.packed:
        width = int(last_B1.max())
        hidden_BTH = hidden_states(base, input_ids=token_ids_BT[:, :width], use_cache=False)
        marked_BT = nn.functional.pad(mask_BT, (0, 1))[:, 1 : width + 1]
        return SelectedHiddenStates(hidden_BTH[marked_BT], tokens_A, mask_BT, num_read)
    # One sequence of all real tokens; transformers takes positions that begin anew for the borders of sequences.
    positions_BT = (attention_BT.long().cumsum(1) - 1).clamp(min=0)
    before_BT = attention_BT.flatten().long().cumsum(0).view_as(attention_BT) - attention_BT.long()
    hidden_1NH = hidden_states(
        base, input_ids=token_ids_BT[attention_BT][None], position_ids=positions_BT[attention_BT][None], use_cache=False
    )
    return SelectedHiddenStates(hidden_1NH[0, before_BT[mask_BT] - 1], tokens_A, mask_BT, num_read)


def _contexts_apart(token_ids_BT: Tensor, attention_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each context of each row as a row of its own, in their order, so that the marked tokens keep theirs."""
    pieces: list[list[Tensor]] = []
    for row, length in enumerate(attention_BT.sum(dim=1).tolist()):
        borders = (token_ids_BT[row, :length] == NEW_CONTEXT).nonzero()[:, 0].tolist()
        for start, stop in zip([0, *(border + 1 for border in borders)], [*borders, None], strict=True):
            pieces.append([each[row, start:stop] for each in (token_ids_BT, attention_BT, mask_BT)])
    padded = [nn.utils.rnn.pad_sequence([piece[of] for piece in pieces], batch_first=True) for of in range(3)]
    return padded[0], padded[1], padded[2]


class TokenCounts:
    """Tokens read on this rank since they were last taken."""

    def __init__(self) -> None:
        self.forward = self.backward = 0
        self._counting = True

    def read(self, tokens: int, states: Tensor | None = None) -> None:
        """Count a forward pass over `tokens` tokens, and every backward pass that reaches its `states`."""
        if not self._counting:
            return
        self.forward += tokens
        if states is not None and states.requires_grad:

            def went_back(_: Tensor) -> None:
                self.backward += tokens

            states.register_hook(went_back)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Passes in here only measure."""
        before, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = before

    def take(self) -> tuple[int, int]:
        """(forward, backward) so far; the count begins anew."""
        found = self.forward, self.backward
        self.forward = self.backward = 0
        return found


@torch.no_grad()
def check_packing(base: PreTrainedModel, execution: Execution) -> None:
    """Read short rows packed and apart; ConfigError if one sees the other, or is read at other positions.

    transformers keeps packed rows apart by positions, but not every family makes its masks from them.
    """
    setting = "shared_prefixes" if execution.shared_prefixes else "packed"
    remedy = f"Set model.execution.{setting} to false; model.execution.max_tokens bounds padded passes as well."

    def check(holds: bool, found: str) -> None:
        if not holds:
            raise ConfigError(f"model.execution.{setting}: {type(base).__name__} {found}. {remedy}")

    positions = "position_ids" in inspect.signature(base.get_decoder().forward).parameters
    check(positions, "takes no positions, so packed rows cannot be kept apart")
    limits = other_limits(base.config.get_text_config(decoder=True))  # which short rows would not show
    across = "which may count across rows, wanted none or a sliding_window"
    check(not limits, f"limits what a token sees by {limits}, {across}")
    generator = torch.Generator().manual_seed(0)
    vocabulary = base.config.get_text_config().vocab_size
    first, other, second = (torch.randint(vocabulary, (size,), generator=generator) for size in (SHORT, SHORT, LONG))
    together, changed, alone = (
        _packed_states(base, execution, rows, remedy) for rows in ([first, second], [other, second], [second])
    )
    size = float(alone.float().square().mean().sqrt())
    seen, moved = (float((together[-len(alone) :] - each[-len(alone) :]).abs().max()) for each in (changed, alone))
    blind = "makes its masks without positions, so a packed row sees the rows before it"
    check(seen <= EXACT * size, f"{blind} (its states move by {seen / size:.2g} of their size)")
    if execution.shared_prefixes:
        tree, wanted = _windows(base, second)
        check(tree == wanted, f"has layers with the windows {wanted}, and tells its attention {tree}")
        branch = torch.cat([second[:SHORT], other])
        beside = _packed_states(base, execution, [second, branch], remedy)[len(alone) :]
        moved = max(moved, float((beside - _packed_states(base, execution, [branch], remedy)).abs().max()))
    most = (SAME_IN_HALF if alone.element_size() == 2 else SAME) * size
    astray = "reads a packed row at other positions than alone"
    check(moved <= most, f"{astray} (its states move by {moved / size:.2g} of their size)")


def _windows(base: PreTrainedModel, row: Tensor) -> tuple[list[int | None], list[int | None]]:
    """The window that each layer tells its attention, and its own; a mask would keep it, and a tree replaces masks."""
    ids_1T = row[None].to(base.device)
    tree = PrefixTree.of(ids_1T, torch.ones_like(ids_1T, dtype=torch.bool))
    tree.states(base)
    config = decoder_config(base).to_dict()
    window, kinds = config.get("sliding_window"), config.get("layer_types") or [SLIDING] * len(tree.windows)
    return tree.windows, [window if kind == SLIDING else None for kind in kinds]


def _packed_states(base: PreTrainedModel, execution: Execution, rows: list[Tensor], remedy: str) -> Tensor:
    """[A, H] the states that predict every token but the first of each row, packed."""
    ids_BT = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(base.device)
    attention_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) < torch.tensor(
        [[len(row)] for row in rows], device=ids_BT.device
    )
    mask_BT = attention_BT.clone()
    mask_BT[:, 0] = False
    try:
        found = selected_hidden_states(base, execution, ids_BT, attention_BT, mask_BT)
    except Exception as error:  # code of any family may raise anything
        raise ConfigError(
            f"model.execution: {type(base).__name__} cannot read packed rows ({error}). {remedy}"
        ) from error
    return found.each(found.states_UH)


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
