"""Checksums of weights, to prove that an engine holds what it was sent.

They do not depend on the order of elements within a tensor. So the checksum of a fused or sharded weight is the sum of
those of its parts, and an engine may lay weights out as it likes. vLLM's worker imports this module, so it imports
torch alone.
"""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

Checksum = tuple[int, int]
CHUNK = 1 << 22  # elements at a time, as each takes 8 bytes while it is counted
MODULUS = 1 << 64
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(tensor: Tensor) -> Checksum:
    """The sums, modulo 2^64, of the elements' bit patterns and of their squares."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).flatten()
    total = squares = 0
    for part in bits.split(CHUNK):
        wide = part.long()
        total += int(wide.sum())
        squares += int((wide * wide).sum())
    return total % MODULUS, squares % MODULUS


def combined(checksums: Iterable[Checksum]) -> Checksum:
    """The checksum of several tensors as one."""
    pairs = list(checksums)
    return sum(total for total, _ in pairs) % MODULUS, sum(squares for _, squares in pairs) % MODULUS


def place(name: str, kind: str) -> str:
    """The place of an adapter's matrix: its kind, and the numbers in its name, such as the layer's.

    Engines fuse matrices within a layer and rename layers, but keep their numbers.

    >>> place("model.layers.12.self_attn.q_proj", "lora_A")
    'lora_A 12'
    """
    return " ".join([kind, *re.findall(r"(?<=\.)\d+(?=\.|$)", name)])
