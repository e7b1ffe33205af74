"""Seconds of one turn-level PPO update of AgileRL's LLMPPO, on given rollouts.

    python3 -m venv agilerl-env
    agilerl-env/bin/pip install torch==2.13.0        # a CPU build
    agilerl-env/bin/pip install "agilerl[cpu-llm]==2.58.0" torch==2.13.0
    agilerl-env/bin/python -m benchmarks.rivals.agilerl --model FOLDER --rollouts rollouts.json --updates 2

It times the whole of `learn`: log-probs of reference and old policy, old values, advantages, and one optimizer step
over all rollouts. Policy and critic are LoRA adapters (rank 16 on all linear layers) on one frozen base. The reference
is that base without an adapter.

The file holds {"rollouts": [{"token_ids", "mask", "turn_ids", "rewards"}], "pad_id", "temperature"}. Prints one line of
JSON, with the phases as AgileRL times them: `no_grad_forward` is that of reference, old policy and old values. The
first update warms up. All else goes to stderr.
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
SETTINGS = (
    "Liger's Triton layers are not put into the model: they need a GPU",
    "no packing: it needs FlashAttention 2 or FlexAttention, and neither trains on a CPU",
    "old log-probs are computed by `learn`; the sampler's would only correct for another engine's",
    "the reference is the base without an adapter, which is cheaper than AgileRL's default of a third adapter",
)


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


def padding(given: dict[str, Any], notes: list[str]) -> int:
    """A padding id that ends no rollout: AgileRL takes the last tokens with that id for padding."""
    ends = {rollout["token_ids"][-1] for rollout in given["rollouts"]}
    if given["pad_id"] not in ends:
        return int(given["pad_id"])
    other = min(set(range(len(ends) + 1)) - ends)
    notes.append(f"padded with id {other}: {given['pad_id']} ends rollouts, where AgileRL would take it for padding")
    return other


def make_agent(options: argparse.Namespace, given: dict[str, Any], micro_batch: int, pad_id: int) -> Any:
    """AgileRL's agent with the settings that are fastest on a CPU."""
    import agilerl.algorithms.core.base as base
    from agilerl.algorithms.ppo_llm import PPO
    from peft import LoraConfig

    # AgileRL's LLM classes need liger-kernel. With it, they swap the model's norms, rotary embeddings and
    # MLP for Triton kernels, whatever the device. On a CPU these fail with "0 active drivers". Without the swap the
    # layers stay those of transformers, which compute the same.
    base._apply_liger_kernel_to_instance = lambda **settings: None
    rollouts = given["rollouts"]
    return PPO(
        pad_token_id=pad_id,
        pad_token="",
        model_name=options.model,
        model_config={"torch_dtype": getattr(torch, options.dtype)},
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
        # Else the loss takes log-probs from AgileRL's own chunked head. Liger's runs on a CPU, but is slower: it also
        # computes the gradient of the frozen head.
        use_liger_loss=options.liger_loss,
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
    parser.add_argument("--micro-batch", type=int, default=4, help="rollouts a pass; the update's holds each twice")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--liger-loss", action="store_true")
    parser.add_argument("--compile", default="", help="mode of torch.compile; the first update takes many minutes more")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    given = json.loads(options.rollouts.read_text(encoding="utf-8"))
    rollouts, notes = given["rollouts"], list(SETTINGS)
    micro_batch = max(size for size in range(1, options.micro_batch + 1) if len(rollouts) % size == 0)
    if micro_batch != options.micro_batch:
        notes.append(f"micro-batches of {micro_batch}: AgileRL wants a divisor of {len(rollouts)}")
    seconds: list[float] = []
    phases: dict[str, list[float]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        torch.manual_seed(0)
        agent = make_agent(options, given, micro_batch, padding(given, notes))
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
                "peak_bytes": int(peaks.peaks["whole"]),
                "tokens": sum(len(rollout["token_ids"]) for rollout in rollouts),
                "notes": notes,
            }
        )
    )


if __name__ == "__main__":
    main()
