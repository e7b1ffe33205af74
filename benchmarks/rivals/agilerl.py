"""Seconds of one turn-level PPO update of AgileRL's LLMPPO, on given rollouts.

    python3 -m venv agilerl-env
    agilerl-env/bin/pip install torch==2.13.0        # a CPU build
    agilerl-env/bin/pip install "agilerl[cpu-llm]==2.58.0" torch==2.13.0
    agilerl-env/bin/python -m benchmarks.rivals.agilerl --model FOLDER --rollouts rollouts.json --updates 2

It times the whole of `learn`: log-probs of reference and old policy, old values, advantages, and one optimizer step
over all rollouts. Policy and critic are LoRA adapters (rank 16 on all linear layers) on one frozen base, and the
reference is that base without an adapter. AgileRL runs the rows of all three through the base together.

FILE is {"rollouts": [{"token_ids", "mask", "turn_ids", "rewards"}], "pad_id", "temperature"}. Prints one line of JSON.
Whatever else is said goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Peaks

RANK, ALPHA, RATE, KL = 16, 32, 3e-4, 1e-3


def experiences(rollouts: list[dict[str, Any]]) -> tuple[tuple[Any, ...], torch.Tensor]:
    """What `learn` takes: token ids, masks and rewards of turns, then turn ids. A mask tells of the next token."""
    longest = max(len(rollout["token_ids"]) for rollout in rollouts)
    ids, masks, rewards, turns_BT = [], [], [], torch.full((len(rollouts), longest - 1), -1)
    for row, rollout in enumerate(rollouts):
        mask_T, turns_T = torch.tensor(rollout["mask"]), torch.tensor(rollout["turn_ids"])
        found, numbers = turns_T[mask_T].unique(return_inverse=True)  # AgileRL counts turns from 0 without gaps
        turns_T = torch.full_like(turns_T, -1)
        turns_T[mask_T] = numbers
        turns_BT[row, : len(mask_T) - 1] = turns_T[1:]
        ids.append(torch.tensor(rollout["token_ids"])[None])
        masks.append(mask_T[None, 1:])
        rewards_T = torch.tensor(rollout["rewards"], dtype=torch.float32)
        rewards.append(torch.zeros(len(found)).index_add(0, numbers, rewards_T[mask_T]))
    rewards_BK = torch.nn.utils.rnn.pad_sequence(rewards, batch_first=True)
    return (ids, masks, rewards_BK), turns_BT


def make_agent(options: argparse.Namespace, given: dict[str, Any], micro_batch: int, notes: list[str]) -> Any:
    """AgileRL's agent with the settings that are fastest on a CPU."""
    import agilerl.algorithms.core.base as base
    from agilerl.algorithms.ppo_llm import PPO
    from peft import LoraConfig

    # With liger-kernel installed, which `cpu-llm` needs, AgileRL swaps the model's norms, rotary embeddings and MLP for
    # Triton kernels, whatever the device. Triton has no driver for a CPU. The layers stay those of transformers.
    base._apply_liger_kernel_to_instance = lambda **settings: None
    notes.append("Liger's Triton layers are not put into the model: they need a GPU")
    rollouts = given["rollouts"]
    return PPO(
        pad_token_id=given["pad_id"],
        pad_token="",
        model_name=options.model,
        model_config={"dtype": getattr(torch, options.dtype), "torch_dtype": getattr(torch, options.dtype)},
        batch_size=len(rollouts),
        mini_batch_size=len(rollouts),
        micro_batch_size_per_gpu=micro_batch,
        update_epochs=1,
        lora_config=LoraConfig(
            r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        use_separate_reference_adapter=False,
        advantage_granularity="turn",
        gae_lambda=1.0,
        beta=KL,
        lr_actor=RATE,
        lr_critic=RATE,
        temperature=given["temperature"],
        max_model_len=max(len(rollout["token_ids"]) for rollout in rollouts),
        gradient_checkpointing=options.gradient_checkpointing,
        use_liger_loss=options.liger_loss,
        use_sequence_packing=options.packing,
        torch_compiler=options.compile or None,
        device="cpu",
    )


def main() -> None:
    """Update as often as wanted, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rollouts", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--liger-loss", action="store_true")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--compile", default="")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    given = json.loads(options.rollouts.read_text(encoding="utf-8"))
    rollouts, notes = given["rollouts"], []
    micro_batch = max(size for size in range(1, options.micro_batch + 1) if len(rollouts) % size == 0)
    if micro_batch != options.micro_batch:
        notes.append(f"micro-batches of {micro_batch}: AgileRL wants a divisor of {len(rollouts)}")
    seconds: list[float] = []
    phases: dict[str, list[float]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        torch.manual_seed(0)
        agent = make_agent(options, given, micro_batch, notes)
        batch, turns_BT = experiences(rollouts)
        for _ in range(options.updates):
            began = time.perf_counter()
            figures = agent.learn(batch, turn_ids=turns_BT)
            seconds.append(time.perf_counter() - began)
            print(figures)
            for name, value in figures.items():
                if name.startswith("learn_phase_"):
                    phases.setdefault(name.removeprefix("learn_phase_").removesuffix("_s"), []).append(value)
    peaks = Peaks()
    peaks("whole")
    print(
        json.dumps(
            {
                "seconds": seconds,
                "phases": phases,
                "peak_bytes": peaks.peaks["whole"],
                "tokens": sum(len(rollout["token_ids"]) for rollout in rollouts),
                "notes": notes,
            }
        )
    )


if __name__ == "__main__":
    main()
