"""How far the sampler's routing lies from the trainer's, measured before an update by two passes over some rollouts."""

from __future__ import annotations

import torch

from medagent.errors import PolicyError
from medagent.routing import no_record
from medagent.training.advantages import Reduce
from medagent.training.experience import RolloutTensors
from medagent.training.module import AgentModule
from medagent.training.routing import refuse_shifted, same_share


def require_records(tensors: RolloutTensors) -> None:
    """Raise PolicyError for action tokens whose sampler recorded no experts."""
    if tensors.experts_BTLK is None and bool(tensors.mask_BT.any()):
        raise PolicyError(
            "model.routing_replay r3: found rollouts without the sampler's experts, wanted those of each token that it "
            "read. Take an engine that records them, such as InProcessEngine or VllmEngine, or set it to r2 or none."
        )


@torch.no_grad()
def routing_metrics(module: AgentModule, part: RolloutTensors, reduce: Reduce) -> dict[str, float]:
    """Means over the action tokens of `part` over all ranks; PolicyError if its records are shifted."""
    assert part.experts_BTLK is not None, "the sampler recorded"
    inputs, sampler_BTLK = (part.token_ids_BT, part.attention_BT, part.mask_BT), part.experts_BTLK
    own = module.shared_base.routing(records=True)
    live = module.shared_base.policy_scores(*inputs, temperature=module.temperature, routing=own)
    replayed = module.shared_base.policy_scores(
        *inputs, temperature=module.temperature, routing=module.shared_base.routing(sampler_BTLK)
    )
    assert own is not None
    assert own.chosen_BTLK is not None
    none = no_record(sampler_BTLK.dtype)
    both_BT = (sampler_BTLK[:, :, 0, 0] != none) & (own.chosen_BTLK[:, :, 0, 0] != none)
    refuse_shifted(sampler_BTLK, own.chosen_BTLK, both_BT)
    read_BT = both_BT & part.mask_BT
    differs_A = same_share(sampler_BTLK, own.chosen_BTLK, read_BT) < 1
    gaps = [(scores.logprobs_BT - part.rollout_logprobs_BT)[part.mask_BT].abs() for scores in (replayed, live)]
    sums = [differs_A.sum(), read_BT.sum(), *(gap.sum() for gap in gaps), part.mask_BT.sum()]
    differs, read, gap, gap_live, tokens = reduce(torch.tensor([float(each) for each in sums])).tolist()
    return {
        "routing/differs": differs / max(1.0, read),
        "routing/logprob_gap": gap / max(1.0, tokens),
        "routing/logprob_gap_live": gap_live / max(1.0, tokens),
    }
