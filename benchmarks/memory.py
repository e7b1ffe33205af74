"""Peak memory of one base with three roles against three separate models.

python -m benchmarks.memory --hidden 1536 --layers 16

Policy and critic are trained by LoRA (rank 16 on all linear layers), and the reference is frozen. The three separate
models carry the same LoRA each. Every variant runs the same update in its own process: forward and backward passes of
policy and critic, and a forward pass of the reference. Every freed block is given back at once, so that the figures are
what the processes hold.

Prints the peak of each variant above the libraries' own memory, and the ratios. The merged copy that samples has a line
of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import HELD_ALONE, describe_machine
from medagent.training.adapters import SharedBase
from medagent.training.lora import LoraSettings

VARIANTS = ("one base", "three models", "one base and sampling copy")


def make_base(hidden: int, layers: int) -> Qwen2ForCausalLM:
    """A Qwen2 of the given shape with random weights."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=8192,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=16,
            tie_word_embeddings=True,
        )
    )


def update(policy: SharedBase, critic: SharedBase, reference: SharedBase) -> None:
    """One update's passes on a batch of 4 sequences of 128 tokens."""
    ids = torch.randint(8192, (4, 128))
    mask = torch.zeros(4, 128, dtype=torch.bool)
    mask[:, 64:] = True
    with torch.no_grad():
        reference.reference_logprobs(ids, mask, mask, temperature=1.0)
    policy.policy_scores(ids, mask, mask, temperature=1.0).logprobs_BT.sum().backward()
    critic.values(ids, mask, mask).sum().backward()


def run(variant: str, hidden: int, layers: int) -> None:
    """Run one variant and print its peak resident memory in MiB and its base parameters."""
    lora = LoraSettings(16, 32)
    torch.manual_seed(0)
    count = 3 if variant == "three models" else 1
    roles = []
    for _ in range(count):
        base = make_base(hidden, layers)
        base.requires_grad_(False)
        roles.append(SharedBase(base, policy=lora, critic=lora))
    copy = make_base(hidden, layers) if variant.endswith("copy") else None
    policy, critic, reference = roles * 3 if count == 1 else roles
    update(policy, critic, reference)
    parameters = sum(p.numel() for p in roles[0].base.parameters() if not p.requires_grad)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{peak:.0f} {parameters} {copy is not None}")


def main() -> None:
    """Run each variant in a fresh process and print the peaks and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--variant", choices=[*VARIANTS, "nothing"], default=None)
    options = parser.parse_args()
    if options.variant == "nothing":
        print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} 0 False")
        return
    if options.variant:
        run(options.variant, options.hidden, options.layers)
        return
    print(describe_machine())
    peaks = {}
    for variant in ("nothing", *VARIANTS):
        line = [sys.executable, "-m", "benchmarks.memory", "--variant", variant]
        line += ["--hidden", str(options.hidden), "--layers", str(options.layers)]
        peak, parameters, _ = subprocess.run(
            line, check=True, capture_output=True, text=True, env=os.environ | HELD_ALONE
        ).stdout.split()
        peaks[variant] = float(peak) - peaks.get("nothing", 0.0)
        if variant == "nothing":
            print(f"the libraries alone: {float(peak):,.0f} MiB (taken off below)")
        else:
            print(f"{variant:28s} {peaks[variant]:8,.0f} MiB  (base of {int(parameters) / 1e6:.0f} M parameters)")
    whole = peaks["three models"]
    print(f"one base / three models: {peaks['one base'] / whole:.2f}, with the copy {peaks[VARIANTS[2]] / whole:.2f}")


if __name__ == "__main__":
    main()
