"""Whether rows that are packed into one sequence see themselves alone, found out by reading two short ones.

Limits that only longer rows would show are read from the decoder's config.

transformers keeps packed rows apart by their positions, which begin anew. Not every family makes its masks from them.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from medagent.errors import ConfigError
from medagent.policies.decoder_shape import SLIDING, decoder_config, other_limits
from medagent.training.adapters import SharedBase
from medagent.training.prefixes import PrefixTree

SHORT, LONG = 5, 9  # tokens of the two rows
EXACT = 1e-5  # share of a state's size by which another row may move it
SAME, SAME_IN_HALF = 1e-3, 0.1  # and by which packing may, through rounding alone; in types of 16 bits


@torch.no_grad()
def check_packing(roles: SharedBase, *, shared_prefixes: bool = False) -> None:
    """Read short rows packed and apart; with `shared_prefixes`, a row that begins as another one too.

    Raises:
        ConfigError: one of them sees the other, or is read at other positions.
    """
    family = type(roles.base).__name__
    setting = "shared_prefixes" if shared_prefixes else "packed"
    remedy = f"Set model.execution.{setting} to false; model.execution.max_tokens bounds padded passes as well."
    if "position_ids" not in inspect.signature(roles.base.get_decoder().forward).parameters:
        raise ConfigError(
            f"model.execution.{setting}: {family} takes no positions, so packed rows cannot be kept apart. {remedy}"
        )
    limits = other_limits(roles.base.config.get_text_config(decoder=True))
    if limits:  # shorter rows would not show them
        raise ConfigError(
            f"model.execution.{setting}: {family} limits what a token sees by {limits}, which may count across rows, "
            f"wanted none or a sliding_window. {remedy}"
        )
    generator = torch.Generator().manual_seed(0)
    vocabulary = roles.base.config.get_text_config().vocab_size
    first, other, second = (torch.randint(vocabulary, (size,), generator=generator) for size in (SHORT, SHORT, LONG))
    together, changed, alone = (_states(roles, rows, remedy) for rows in ([first, second], [other, second], [second]))
    size = float(alone.float().square().mean().sqrt())
    seen, moved = (float((together[-len(alone) :] - each[-len(alone) :]).abs().max()) for each in (changed, alone))
    if not seen <= EXACT * size:
        raise ConfigError(
            f"model.execution.{setting}: {family} makes its masks without positions, so a packed row sees the rows "
            f"before it (its states move by {seen / size:.2g} of their size). {remedy}"
        )
    if shared_prefixes:
        _check_windows(roles, second, remedy)
        branch = torch.cat([second[:SHORT], other])
        beside = _states(roles, [second, branch], remedy)[len(alone) :]
        moved = max(moved, float((beside - _states(roles, [branch], remedy)).abs().max()))
    if not moved <= (SAME_IN_HALF if alone.element_size() == 2 else SAME) * size:
        raise ConfigError(
            f"model.execution.{setting}: {family} reads a packed row at other positions than alone (its states move by "
            f"{moved / size:.2g} of their size). {remedy}"
        )


def _check_windows(roles: SharedBase, row: Tensor, remedy: str) -> None:
    """Refuse a family whose layers keep their window in the mask alone, which a tree replaces.

    A short row does not show it.
    """
    ids_1T = row[None].to(roles.base.device)
    tree = PrefixTree.of(ids_1T, torch.ones_like(ids_1T, dtype=torch.bool))
    tree.states(roles.base)
    config = decoder_config(roles.base).to_dict()
    window, kinds = config.get("sliding_window"), config.get("layer_types") or [SLIDING] * len(tree.windows)
    wanted = [window if kind == SLIDING else None for kind in kinds]
    if tree.windows != wanted:
        raise ConfigError(
            f"model.execution.shared_prefixes: {type(roles.base).__name__} has layers with the windows {wanted}, and "
            f"tells its attention {tree.windows}. {remedy}"
        )


def _states(roles: SharedBase, rows: list[Tensor], remedy: str) -> Tensor:
    """[A, H] the states that predict every token but the first of each row, packed."""
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(roles.base.device)
    attention_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) < torch.tensor(
        [[len(row)] for row in rows], device=ids_BT.device
    )
    mask_BT = attention_BT.clone()
    mask_BT[:, 0] = False
    try:
        with roles.token_counts.paused():
            found = roles.predicting(ids_BT, attention_BT, mask_BT)
    except Exception as error:  # code of any family may raise anything
        raise ConfigError(
            f"model.execution: {type(roles.base).__name__} cannot read packed rows ({error}). {remedy}"
        ) from error
    return found.each(found.states_UH)
