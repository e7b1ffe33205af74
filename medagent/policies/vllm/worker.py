"""Reports which adapters a vLLM worker holds.

It runs inside vLLM's worker processes, which load it by name. So it imports only what vLLM's process has anyway, and
`medagent.models.checksums`, which needs no more.
"""

from typing import Any

from medagent.models.checksums import Checksum, checksum, combined, place


class AdapterChecksums:
    """Mixed into vLLM's worker."""

    model_runner: Any

    def held_adapters(self) -> dict[str, dict[str, Checksum]]:
        """Number of each loaded adapter -> checksums by place: of its A matrices, and of B times scaling."""
        adapters = self.model_runner.lora_manager._adapter_manager.list_adapters()
        return {str(number): _matrices(adapter) for number, adapter in adapters.items()}


def _matrices(adapter: Any) -> dict[str, Checksum]:
    """The matrices as vLLM keeps them: in its dtype, those of fused layers as lists, and B scaled."""
    found: dict[str, list[Checksum]] = {}
    for name, weights in adapter.loras.items():
        several = isinstance(weights.lora_a, list)
        columns = zip(
            weights.lora_a if several else [weights.lora_a],
            weights.lora_b if several else [weights.lora_b],
            weights.scaling if several else [weights.scaling],
            strict=True,
        )
        for a, b, scaling in columns:
            if a is not None:
                found.setdefault(place(name, "lora_A"), []).append(checksum(a))
                found.setdefault(place(name, "lora_B"), []).append(checksum(b if scaling == 1 else b * scaling))
    return {kind: combined(each) for kind, each in found.items()}
