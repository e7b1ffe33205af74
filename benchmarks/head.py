"""The vocabulary projection of an update: at all positions, at action positions, and some rows at a time.

    python -m benchmarks.head --repeats 5

Each variant is a forward and backward pass of the policy over one micro-batch, in a process of its own. Rows are of
uneven length and act on half their tokens. Padded and packed rows are measured.

Prints the median time and the peak memory of each variant.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import HELD_ALONE, Peaks, describe_machine
from medagent.training.adapters import SharedBase
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings

VARIANTS = {
    "all positions": Execution(),
    "action positions": Execution(logits_rows=10**9),
    "action positions, 256 rows at a time": Execution(logits_rows=256),
    "action positions, packed": Execution(logits_rows=10**9, packed=True),
    "action positions, checkpointed layers": Execution(logits_rows=10**9, gradient_checkpointing=True),
}
ROWS, TOKENS, VOCABULARY = 8, 384, 32_000


def make_roles(execution: Execution) -> SharedBase:
    """A Qwen2 of 33 M parameters with random weights, and its adapters."""
    torch.manual_seed(0)
    base = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=384,
            intermediate_size=1536,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=6,
            tie_word_embeddings=True,
        )
    ).eval()
    base.requires_grad_(False)
    return SharedBase(base, policy=LoraSettings(16, 32), critic=None, execution=execution)


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention and actions; the latter half of each row acts.

    Rows have from a third of the width to all of it.
    """
    lengths = torch.linspace(TOKENS / 3, TOKENS, ROWS).long()
    places = torch.arange(TOKENS)[None]
    attention = places < lengths[:, None]
    return torch.randint(VOCABULARY, (ROWS, TOKENS)), attention, attention & (places >= lengths[:, None] // 2)


def all_positions(roles: SharedBase, ids: Tensor, attention: Tensor, mask: Tensor) -> Tensor:
    """The log-probs by a model's own forward pass: scores of every position, then those that count."""
    logprobs = torch.log_softmax(roles.base(input_ids=ids, use_cache=False).logits.float(), -1)
    chosen: Tensor = logprobs[:, :-1].gather(2, ids[:, 1:, None])[..., 0][mask[:, 1:]]
    return chosen.sum()


def run(variant: str, repeats: int) -> dict[str, float]:
    """Median seconds, and the peak in MiB above what was there before."""
    roles, batch = make_roles(VARIANTS[variant]), make_batch()
    peaks = Peaks()
    peaks("before")
    seconds = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        if variant == "all positions":
            total = all_positions(roles, *batch)
        else:
            total = roles.policy_scores(*batch, temperature=1.0).logprobs_BT.sum()
        total.backward()
        if repeat:
            seconds.append(time.perf_counter() - began)
        if not repeat:
            peaks("first")
        del total
    return {"s": statistics.median(seconds), "MiB": (peaks.peaks["first"] - peaks.peaks["before"]) / 2**20}


def main() -> None:
    """Measure each variant twice.

    The time is measured with glibc's defaults, the memory with every freed block given back.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variant", choices=list(VARIANTS), default=None)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(run(options.variant, options.repeats)))
        return
    print(describe_machine())
    figures: dict[str, tuple[float, float]] = {}
    for variant in VARIANTS:
        line = [sys.executable, "-m", "benchmarks.head", "--variant", variant, "--repeats"]
        found = [
            json.loads(
                subprocess.run([*line, str(repeats)], check=True, capture_output=True, text=True, env=env).stdout
            )
            for repeats, env in ((options.repeats, dict(os.environ)), (1, os.environ | HELD_ALONE))
        ]
        figures[variant] = found[0]["s"], found[1]["MiB"]
        first = figures["all positions"]
        print(
            f"{variant:40s} {figures[variant][0]:6.2f} s ({figures[variant][0] / first[0]:.2f})  "
            f"{figures[variant][1]:7,.0f} MiB ({figures[variant][1] / first[1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
