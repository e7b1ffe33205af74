"""A pass of the base over the rows of a micro-batch, as `Execution` says: padded, packed, or along a prefix tree."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from medagent.models.causal_lm import hidden_states
from medagent.training.execution import Execution, split_by_tokens
from medagent.training.prefixes import PrefixTree, split_by_distinct_tokens
from medagent.training.routing import Routing


@dataclass(frozen=True)
class PredictingStates:
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
    """[A] integer: the state of each marked token; none where it is the one of the same number."""

    def each(self, values_U: Tensor) -> Tensor:
        """[A, ...] the values of the marked tokens."""
        return values_U if self.of_A is None else values_U.index_select(0, self.of_A)

    def placed(self, values_U: Tensor) -> Tensor:
        """[B, T] the values at the marked tokens, 0 elsewhere."""
        values_A = self.each(values_U)
        return values_A.new_zeros(self.mask_BT.shape).masked_scatter(self.mask_BT, values_A)


def predicting_states(
    base: PreTrainedModel,
    execution: Execution,
    token_ids_BT: Tensor,
    attention_BT: Tensor,
    mask_BT: Tensor,
    routing: Routing | None = None,
) -> PredictingStates:
    """Read the rows once, and keep the states that predict the marked tokens.

    Rows are padded on the right, so causal attention alone keeps padding away from every real token. A marked position
    may also be the first after a row's end. The state of the row's last token predicts it. What follows the state that
    predicts a row's last marked token is not read. `routing` replays or records the experts of the tokens.

    Raises:
        ValueError: the first token of a row is marked, which nothing predicts.
    """
    if bool(mask_BT[:, 0].any()):
        raise ValueError("the first token of a rollout cannot be an action: nothing predicts it.")
    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = (mask_BT * places_T).amax(dim=1, keepdim=True).clamp(min=1)  # the first token, where none is marked
    attention_BT = attention_BT & (places_T < last_B1)
    num_read = int(attention_BT.sum())
    if execution.shared_prefixes:
        keys_BT = None if routing is None else routing.keys(token_ids_BT)
        tree = PrefixTree.of(token_ids_BT, attention_BT, keys_BT)
        before_A, tokens_A = tree.nodes_BT[:, :-1][mask_BT[:, 1:]], token_ids_BT[mask_BT]
        vocabulary = int(token_ids_BT.max()) + 1
        keys_U, of_A = torch.unique(before_A * vocabulary + tokens_A, return_inverse=True)
        with _routed(routing, tree.places_N, tree.nodes_BT, attention_BT):
            states_NH = tree.states(base)
        states_UH = states_NH.index_select(0, keys_U // vocabulary)
        return PredictingStates(states_UH, keys_U % vocabulary, mask_BT, len(tree.tokens_N), of_A)
    tokens_A = token_ids_BT[mask_BT]
    if not execution.packed:
        width = int(last_B1.max())
        rows_B1 = torch.arange(len(mask_BT), device=mask_BT.device)[:, None]
        places_BT = rows_B1 * mask_BT.shape[1] + places_T[:width]
        with _routed(routing, places_BT.flatten(), rows_B1 * width + places_T, attention_BT):
            hidden_BTH = hidden_states(base, input_ids=token_ids_BT[:, :width], use_cache=False)
        marked_BT = torch.nn.functional.pad(mask_BT, (0, 1))[:, 1 : width + 1]
        return PredictingStates(hidden_BTH[marked_BT], tokens_A, mask_BT, num_read)
    # One sequence of all real tokens; transformers takes positions that begin anew for the borders of sequences.
    positions_BT = (attention_BT.long().cumsum(1) - 1).clamp(min=0)
    before_BT = attention_BT.flatten().long().cumsum(0).view_as(attention_BT) - attention_BT.long()
    with _routed(routing, attention_BT.flatten().nonzero()[:, 0], before_BT, attention_BT):
        hidden_1NH = hidden_states(
            base,
            input_ids=token_ids_BT[attention_BT][None],
            position_ids=positions_BT[attention_BT][None],
            use_cache=False,
        )
    return PredictingStates(hidden_1NH[0, before_BT[mask_BT] - 1], tokens_A, mask_BT, num_read)


def _routed(
    routing: Routing | None, places_N: Tensor, nodes_BT: Tensor, read_BT: Tensor
) -> AbstractContextManager[None]:
    return nullcontext() if routing is None else routing.reading(places_N, nodes_BT, read_BT)


def rows_of_passes(
    execution: Execution, token_ids_BT: Tensor, attention_BT: Tensor, groups_B: Tensor | None = None
) -> list[list[int]]:
    """The numbers of the rows of each pass, within the limit of tokens.

    With `groups_B` rows of equal numbers stay in one pass, also where they exceed the limit alone.
    """
    if groups_B is not None:
        return _whole_groups(execution, token_ids_BT, attention_BT, groups_B.tolist())
    if execution.shared_prefixes:
        return split_by_distinct_tokens(token_ids_BT, attention_BT, max_tokens=execution.token_limit)
    lengths = attention_BT.sum(dim=1).tolist()
    return split_by_tokens(lengths, max_tokens=execution.token_limit, packed=execution.packed)


def _whole_groups(
    execution: Execution, token_ids_BT: Tensor, attention_BT: Tensor, groups: list[int]
) -> list[list[int]]:
    lengths = attention_BT.sum(dim=1).tolist()

    def size(rows: list[int]) -> int:
        if execution.shared_prefixes:
            return len(PrefixTree.of(token_ids_BT[rows], attention_BT[rows]).tokens_N)
        own = [lengths[row] for row in rows]
        return sum(own) if execution.packed else len(own) * max(own)

    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    passes: list[list[int]] = []
    for rows in sorted(members.values(), key=lambda rows: max(lengths[row] for row in rows)):
        together = [*passes[-1], *rows] if passes else rows
        if passes and (not execution.token_limit or size(together) <= execution.token_limit):
            passes[-1] = together
        else:
            passes.append(rows)
    return passes
