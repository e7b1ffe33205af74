"""Model FLOPs utilisation by phase, of a step of PPO on a 7 B shape with random weights (`benchmarks.rivals.ours`).

    python -m studies.real.gpu.mfu --model FOLDER --index INDEX --out FILE --arguments="--shape qwen2.5-7b"

A token costs 2 operations per weight of the layers forward, and 2 more backward, as the base is frozen. Attention's own
products are left out. Attention is sdpa: sampling and shared prefixes need masks, which FlashAttention does not take.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli
from transformers import AutoConfig

from benchmarks.common import describe_machine
from benchmarks.step import run
from medagent.files import write_whole
from medagent.models.base_models import model_path

PEAK = 989e12  # FLOP/s in bfloat16 without sparsity, of the data sheets of H100 SXM and H200


def shares(step: dict[str, Any], weights: float, peak: float = PEAK) -> dict[str, dict[str, float]]:
    """Seconds, tokens, and the share of the peak that 2 operations per weight and token make, by phase of a step."""
    seconds, counts = step["phases"], step["counts"]
    phases = {
        "prefill": (seconds["prefill"], counts["prefill"]),
        "decode": (seconds["decode"] + seconds["sample"], counts["decode"]),
        "update, forward": (seconds["policy forward"], step["distinct"]),
        "update, backward": (seconds["backward"], step["distinct"]),
    }
    return {
        name: {"seconds": took, "tokens": tokens, "mfu": 2 * weights * tokens / took / peak}
        for name, (took, tokens) in phases.items()
    }


def main(model: str, index: str, out: Path, arguments: str = "") -> None:
    """Measure with further `arguments` of `benchmarks.rivals.ours`, and write a JSON file."""
    step = run("ours", "--model", model, "--index", index, *arguments.split())["steps"][-1]
    config = AutoConfig.from_pretrained(model_path(model))
    hidden, inner = config.hidden_size, config.intermediate_size
    width = hidden // config.num_attention_heads * config.num_key_value_heads
    found = shares(step, config.num_hidden_layers * (2 * hidden * (hidden + width) + 3 * hidden * inner))
    told = {"machine": describe_machine(), "model": model, "phases": found, "step": step}
    write_whole(out, json.dumps(told, indent=1) + "\n")
    for name, row in found.items():
        print(f"{name:18s}{row['tokens'] / row['seconds']:10,.0f} tokens/s, {row['mfu']:.2%} of the peak")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
