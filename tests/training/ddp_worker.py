r"""One optimizer step on stored experience, then one of the critic alone; rank 0 writes what it saw.

    python -m torch.distributed.run --nproc_per_node 2 -m tests.training.ddp_worker \
        INPUT OUTPUT SPACE MAX_TOKENS STRATEGY

SPACE is `parameters`, `logits`, `rollouts` (each by its own scale) or `evidence` (`parameters`, and a critic that sees
the evidence).
"""

from __future__ import annotations

import faulthandler
import os
import sys
from dataclasses import replace

import torch
from lightning import Callback, Trainer
from torch.utils.data import DataLoader

from medagent.training.callbacks import ClippingBiasCorrection, TurnLevelSampling
from medagent.training.execution import Execution
from medagent.training.experience import Experience
from medagent.training.run import end_rank
from tests.training.support import OneBatch, Snoop, make_evidence_module, make_module, perturb


class PolicyAfter(Callback):
    """Keeps the policy's weights after each optimizer step, and what was logged of the first."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []
        self.metrics: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.metrics = self.metrics or {name: value.clone() for name, value in trainer.callback_metrics.items()}
        self.steps.append(torch.cat([p.detach().flatten().clone() for p in module.shared_base.policy_parameters()]))


class Peek(ClippingBiasCorrection):
    """Keeps the norms, and the rate of the policy's step."""

    def _norms(self, trainer):
        self.seen = super()._norms(trainer)
        return self.seen

    def on_finite_gradient(self, module, optimizer):
        if self._measured:
            super().on_finite_gradient(module, optimizer)
            self.rate = optimizer.param_groups[0]["lr"]


def main(source: str, target: str, space: str, max_tokens: str) -> None:
    """Deal the stored micro-batches to the ranks and make one step."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(280, exit=True)  # ranks that wait for one another say where
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    stored = torch.load(source, weights_only=True)
    batch = Experience(**stored["batch"], metrics={}).step(stored["parts"][rank::ranks])
    execution = Execution(max_tokens=int(max_tokens))
    module = make_evidence_module(execution=execution) if space == "evidence" else make_module(execution=execution)
    perturb(module)
    correction = {"evidence": {}, "parameters": {"space": "parameters"}, "logits": {"space": "logits"}}.get(
        space, {"applied_to": "rollouts_and_step"}
    )
    peek, snoop, after_steps = Peek(**correction), Snoop(), PolicyAfter()  # type: ignore[arg-type]
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TurnLevelSampling(), peek, snoop, after_steps],
    )
    trainer.fit(module, DataLoader(OneBatch([batch, replace(batch, critic_only=True)]), batch_size=None))
    merged = torch.cat([weight.flatten() for _, weight in module.shared_base.merged_policy()])
    if rank == 0:
        after = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        seen = {"norms": torch.tensor(peek.seen), "policy": snoop.policy[0], "critic": snoop.critic[0]}
        seen["rate"] = torch.tensor(peek.rate)
        seen |= {"policy_steps": torch.stack(after_steps.steps), "merged": merged}
        torch.save({**seen, "after": after, "metrics": after_steps.metrics}, target)
    end_rank()


if __name__ == "__main__":
    main(*sys.argv[1:])
