"""Several ranks, which make the same calls in the same order: a base sharded by FSDP2, and reductions over them."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeVar

from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from medagent.errors import ConfigError
from medagent.training.adapters import REFERENCE, SharedBase

Item = TypeVar("Item")


class ShardedBase(DDPStrategy):
    """DDP, but the ranks share out the decoder layers of the frozen base (FSDP2, arXiv 2304.11277).

    Each rank holds an equal part of each layer. A layer is gathered for as long as one pass computes it.

    The trained parameters are few and stay whole on every rank. So optimizer, clipping, checkpoints and syncs are those
    of DDP. Embeddings and head stay whole too. All ranks must make every pass together. `timeout_s`: how long a rank
    waits for the others.
    """

    def __init__(self, timeout_s: float = 1800.0) -> None:
        super().__init__(timeout=timedelta(seconds=timeout_s))

    def model_to_device(self) -> None:
        """Shard layer by layer before the rest is moved: the whole base is never on one GPU."""
        module = self.lightning_module
        assert module is not None
        shared_base = module.get_submodule("shared_base")
        assert isinstance(shared_base, SharedBase)
        quantise = shared_base.execution.quantise
        if quantise != "none":
            raise ConfigError(
                f"ShardedBase with model.execution.quantise {quantise}: weights in 4 bits cannot be sharded. Leave one "
                "of them out."
            )
        shard(shared_base, self.root_device.type, self.world_size)
        super().model_to_device()

    def configure_ddp(self) -> None:
        """DDP for what is trained; it must not touch the shards."""
        module = self.lightning_module
        assert module is not None
        sharded = [name for name, parameter in module.named_parameters() if isinstance(parameter, DTensor)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, sharded)
        super().configure_ddp()


def shard(shared_base: SharedBase, device: str, world_size: int) -> None:
    """Shard the frozen weights of every decoder layer over all ranks."""
    decoder = shared_base.base.get_decoder()
    mesh = init_device_mesh(device, (world_size,))
    # Adapters stay whole, a frozen reference as well: checkpoints hold it, and the first rank alone writes them.
    whole = {each for name, each in shared_base.named_parameters() if each.requires_grad or f".{REFERENCE}." in name}
    for layer in decoder.layers:
        fully_shard(layer, mesh=mesh, ignored_params=whole, reshard_after_forward=True)
    # The root holds no shards. It orders the layers, so that the next one is gathered while one computes.
    fully_shard(decoder, mesh=mesh, ignored_params=set(shared_base.parameters()))
    shared_base.sharded = True


def over_ranks(trainer: Trainer, tensor: Tensor, op: Literal["sum", "mean", "max"]) -> Tensor:
    """The tensor summed, averaged or maximised over ranks, on the CPU; with one rank it is returned."""
    if trainer.world_size == 1:
        return tensor
    total = trainer.strategy.reduce(tensor.detach().clone().to(trainer.strategy.root_device), reduce_op=op)
    assert isinstance(total, Tensor)
    return total.cpu()


def gathered(trainer: Trainer, own: list[Item]) -> list[Item]:
    """The items of all ranks, on each of them."""
    if trainer.world_size == 1:
        return own
    parts: list[list[Item]] = [[]] * trainer.world_size
    distributed.all_gather_object(parts, own)
    return [each for part in parts for each in part]
