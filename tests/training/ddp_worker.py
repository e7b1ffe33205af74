"""One optimizer step on stored experience, on as many ranks as `torch.distributed.run` starts; rank 0 writes what it saw.

python -m torch.distributed.run --nproc_per_node 2 -m tests.training.ddp_worker INPUT OUTPUT SPACE MAX_TOKENS
"""

from __future__ import annotations

import os
import sys

import torch
from lightning import Trainer
from torch.utils.data import DataLoader

from tests.training.test_module import OneBatch, Snoop, make_module, perturb
from training.callbacks import ClippingBiasCorrection, TurnLevelSampling
from training.execution import Execution
from training.experience import Experience


class Peek(ClippingBiasCorrection):
    """Keeps the norms."""

    def _norms(self, reduce):
        self.seen = super()._norms(reduce)
        return self.seen


def main(source: str, target: str, space: str, max_tokens: str) -> None:
    """Deal the stored micro-batches to the ranks and make one step."""
    torch.set_num_threads(1)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    stored = torch.load(source, weights_only=True)
    parts = [Experience(**part, metrics={}) for part in stored][rank::ranks]
    module = make_module(execution=Execution(max_tokens=int(max_tokens)))
    perturb(module)
    peek, snoop = Peek(space=space), Snoop()  # type: ignore[arg-type]
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=len(parts),
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TurnLevelSampling(), peek, snoop],
    )
    trainer.fit(module, DataLoader(OneBatch(parts), batch_size=None))
    if rank == 0:
        after = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        seen = {"norms": torch.tensor(peek.seen), "policy": snoop.policy[0], "critic": snoop.critic[0]}
        torch.save({**seen, "after": after}, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
