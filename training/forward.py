"""One forward pass of the base over rows, as `Execution` says: padded, packed, or along a prefix tree."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
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
    family, shared_prefixes = type(base).__name__, execution.shared_prefixes
    setting = "shared_prefixes" if shared_prefixes else "packed"
    remedy = f"Set model.execution.{setting} to false; model.execution.max_tokens bounds padded passes as well."
    if "position_ids" not in inspect.signature(base.get_decoder().forward).parameters:
        raise ConfigError(
            f"model.execution.{setting}: {family} takes no positions, so packed rows cannot be kept apart. {remedy}"
        )
    limits = other_limits(base.config.get_text_config(decoder=True))
    if limits:  # shorter rows would not show them
        raise ConfigError(
            f"model.execution.{setting}: {family} limits what a token sees by {limits}, which may count across rows, "
            f"wanted none or a sliding_window. {remedy}"
        )
    generator = torch.Generator().manual_seed(0)
    vocabulary = base.config.get_text_config().vocab_size
    first, other, second = (torch.randint(vocabulary, (size,), generator=generator) for size in (SHORT, SHORT, LONG))
    together, changed, alone = (
        _packed_states(base, execution, rows, remedy) for rows in ([first, second], [other, second], [second])
    )
    size = float(alone.float().square().mean().sqrt())
    seen, moved = (float((together[-len(alone) :] - each[-len(alone) :]).abs().max()) for each in (changed, alone))
    if not seen <= EXACT * size:
        raise ConfigError(
            f"model.execution.{setting}: {family} makes its masks without positions, so a packed row sees the rows "
            f"before it (its states move by {seen / size:.2g} of their size). {remedy}"
        )
    if shared_prefixes:
        _check_windows(base, second, remedy)
        branch = torch.cat([second[:SHORT], other])
        beside = _packed_states(base, execution, [second, branch], remedy)[len(alone) :]
        moved = max(moved, float((beside - _packed_states(base, execution, [branch], remedy)).abs().max()))
    if not moved <= (SAME_IN_HALF if alone.element_size() == 2 else SAME) * size:
        raise ConfigError(
            f"model.execution.{setting}: {family} reads a packed row at other positions than alone (its states move by "
            f"{moved / size:.2g} of their size). {remedy}"
        )


def _check_windows(base: PreTrainedModel, row: Tensor, remedy: str) -> None:
    """Refuse a family whose layers keep their window in the mask alone, which a tree replaces."""
    ids_1T = row[None].to(base.device)
    tree = PrefixTree.of(ids_1T, torch.ones_like(ids_1T, dtype=torch.bool))
    tree.states(base)
    config = decoder_config(base).to_dict()
    window, kinds = config.get("sliding_window"), config.get("layer_types") or [SLIDING] * len(tree.windows)
    wanted = [window if kind == SLIDING else None for kind in kinds]
    if tree.windows != wanted:
        raise ConfigError(
            f"model.execution.shared_prefixes: {type(base).__name__} has layers with the windows {wanted}, and "
            f"tells its attention {tree.windows}. {remedy}"
        )


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
