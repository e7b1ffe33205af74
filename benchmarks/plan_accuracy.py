"""Predicted against measured peak memory of a training iteration.

python -m benchmarks.plan_accuracy                       # sizes that calibrated nothing
    python -m benchmarks.plan_accuracy --sizes calibration   # sizes that the constants come from
    python -m benchmarks.plan_accuracy --sizes smollm2       # SmolLM2-135M, without a critic; make smollm2 first

Each size is a base of random weights, or SmolLM2. It runs in its own process with rollouts as long as the limits allow.
One whole iteration runs: hand-over, sampling, preparation, update. Freed memory goes back to the system at once. With
SmolLM2 the process keeps it, as a run's does.

Prints `medagent plan`'s figure and the measured one, per size and part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import HELD_ALONE, Peaks, describe_machine
from medagent.agent import Limits
from medagent.models.base_models import SMOLLM2
from medagent.models.causal_lm import load_causal_lm
from medagent.protocol import TagProtocol
from medagent.training.advantages import GAE, BatchBaseline
from medagent.training.engines import InProcessEngine
from medagent.training.execution import Execution, keep_freed_memory
from medagent.training.experience import split_by_length
from medagent.training.lora import LoraSettings
from medagent.training.memory import GIB, Load, ModelShape
from medagent.training.module import AgentModule
from medagent.training.objectives import reference_kl, value_loss
from medagent.training.prepare import prepare
from medagent.types import Question, Rollout, StopReason, Turn

# hidden, intermediate, layers, heads, kv heads, rollouts, rows of a micro-batch, tokens, settings of the passes
SIZES = {
    "calibration": {
        "tiny": (256, 1024, 4, 4, 4, 32, 8, 384, Execution()),
        "narrow": (512, 1024, 6, 8, 2, 16, 4, 384, Execution()),
        "checkpointed": (512, 2048, 6, 8, 8, 16, 8, 384, Execution(gradient_checkpointing=True, logits_rows=256)),
    },
    "held-out": {
        "deep": (256, 768, 12, 4, 4, 24, 8, 320, Execution()),
        "wide": (896, 3072, 4, 14, 2, 16, 4, 512, Execution(max_tokens=1024)),
        "large": (1024, 2816, 12, 16, 16, 8, 4, 384, Execution(gradient_checkpointing=True, logits_rows=512)),
    },
}
# Rollouts, rows of a micro-batch, tokens, dtype, settings of the passes.
SMOLLM2_SIZES = {
    "4x480": (4, 4, 480, "float32", Execution()),
    "12x480": (12, 12, 480, "float32", Execution()),
    "24x480": (24, 24, 480, "float32", Execution()),
    "12x480-bf16": (12, 12, 480, "bfloat16", Execution()),
    "4x1024-bf16": (4, 4, 1024, "bfloat16", Execution()),
}
ALL_SIZES = {**{name: list(sizes) for name, sizes in SIZES.items()}, SMOLLM2: list(SMOLLM2_SIZES)}
LIMITS = {"max_turns": 3, "max_turn_tokens": 64, "max_observation_tokens": 128}
LORA = LoraSettings(16, 32)


def make_base(folder: Path, size: str, sizes: str) -> None:
    """A base of random weights, with the starter's tokenizer (its embedding is larger than that needs).

    None for SmolLM2, which is found by its name.
    """
    if sizes == SMOLLM2:
        return
    hidden, intermediate, layers, heads, kv_heads, *_ = SIZES[sizes][size]
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    load_causal_lm("starter")[1].save_pretrained(folder)


def load_for(folder: Path, size: str, sizes: str) -> Load:
    """The work that `medagent plan` would compute for it."""
    if sizes == SMOLLM2:
        rollouts, rows, tokens, dtype, execution = SMOLLM2_SIZES[size]
        limits = Limits(**LIMITS, max_total_tokens=tokens)
        shape = ModelShape.of(SMOLLM2)
        return Load(shape, dtype, LORA, None, execution, limits, rollouts, rows, in_process=True, keeps_blocks=True)
    *_, rollouts, rows, tokens, execution = SIZES[sizes][size]
    limits = Limits(**LIMITS, max_total_tokens=tokens)
    return Load(ModelShape.of(str(folder)), "float32", LORA, LORA, execution, limits, rollouts, rows, in_process=True)


def iteration(load: Load, base: str) -> None:
    """Hand over, sample, prepare, and update: what a training iteration does, on rollouts of full length."""
    if load.keeps_blocks:
        keep_freed_memory()  # as a run does
    note = Peaks()
    module = AgentModule(
        base, dtype=load.dtype, policy_lora=LORA, critic_lora=load.critic_lora, execution=load.execution
    )
    policy = InProcessEngine().hand_over(module, version=0)
    tokens, turn = load.limits.max_total_tokens, load.limits.max_turn_tokens
    generator = torch.Generator().manual_seed(0)
    note("loaded")
    sample_full_turns(policy, load, generator)
    note("rollouts")
    rollouts = []
    for number in range(load.rollouts):
        ids = torch.randint(100, 8000, (tokens,), generator=generator).tolist()
        acting = load.limits.max_turns * turn
        turns = (Turn(tuple(ids[-acting:]), (-9.0,) * acting, ""),)
        question = Question(str(number), "")
        rollouts.append(Rollout(question, tuple(ids[:-acting]), turns, StopReason.ANSWERED, reward=float(number % 2)))
    batch = prepare(
        module,
        rollouts,
        estimator=GAE() if load.critic_lora else BatchBaseline(),
        reduce=lambda tensor: tensor,
        reduction="token-mean",
    )
    note("preparing")
    optimizer = module.configure_optimizers()
    lengths = [tokens] * load.rollouts
    for rows in split_by_length(range(load.rollouts), lengths, parts=load.rollouts // load.micro_batch_rows):
        part = batch.rows(rows)
        limit = load.execution.max_tokens
        step = max(1, limit // tokens) if limit else len(rows)
        for start in range(0, len(rows), step):
            update(module, part.rows(range(start, min(start + step, len(rows)))))
    optimizer.step()
    note("update")
    print(json.dumps(note.peaks))


def sample_full_turns(policy, load: Load, generator: torch.Generator) -> None:  # noqa: ANN001
    """One turn of every rollout after a prompt that leaves room for it alone."""
    import asyncio

    async def run() -> None:
        sessions = [
            policy.open(seed=number, temperature=1.0, blocks=TagProtocol().blocks) for number in range(load.rollouts)
        ]
        width = load.limits.max_total_tokens - load.limits.max_turn_tokens
        for session in sessions:
            session.append(torch.randint(100, 8000, (width,), generator=generator).tolist())
        for _ in range(2):  # the second begins a new batch, as a second turn does
            await asyncio.gather(*(session.sample(max_tokens=load.limits.max_turn_tokens // 2) for session in sessions))
        for session in sessions:
            session.close()

    asyncio.run(run())


def update(module: AgentModule, part) -> None:  # noqa: ANN001
    """Critic, then policy, as a training step propagates them."""
    inputs = (part.token_ids_BT, part.attention_BT, part.mask_BT)
    if module.has_critic:
        values = module.roles.values(*inputs)
        value_loss(
            values, old_values_BT=part.values_BT, returns_BT=part.returns_BT, loss_weights_BT=part.loss_weights_BT
        ).backward()
        del values
    scores = module.roles.policy_scores(*inputs, temperature=1.0)
    result = module.policy_loss(scores.logprobs_BT, part)
    kl = (part.loss_weights_BT * reference_kl(scores.logprobs_BT, part.reference_logprobs_BT, part.mask_BT)).sum()
    (kl - result.objective).backward()


def main() -> None:
    """Measure each size in a fresh process and print both figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=list(ALL_SIZES), default="held-out")
    parser.add_argument("--size", default=None)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    if options.size:
        iteration(
            load_for(Path(options.folder), options.size, options.sizes),
            SMOLLM2 if options.sizes == SMOLLM2 else options.folder,
        )
        return
    print(describe_machine())
    for size in ALL_SIZES[options.sizes]:
        with tempfile.TemporaryDirectory() as folder:
            make_base(Path(folder), size, options.sizes)
            load = load_for(Path(folder), size, options.sizes)
            own = dict(os.environ) if load.keeps_blocks else os.environ | HELD_ALONE
            line = [sys.executable, "-m", "benchmarks.plan_accuracy", "--sizes", options.sizes, "--size", size]
            done = subprocess.run([*line, "--folder", folder], check=True, capture_output=True, text=True, env=own)
        peaks = json.loads(done.stdout.splitlines()[-1])
        measured, predicted = max(peaks.values()), load.peak()
        parts = "  ".join(f"{name.split(':')[0]} {part / GIB:.2f}" for name, part in load.parts().items())
        moments = "  ".join(f"{name} {peak / GIB:.2f}" for name, peak in peaks.items())
        print(
            f"{size:13s} {load.shape.parameters / 1e6:5.0f} M  predicted {predicted / GIB:5.2f} GiB  measured "
            f"{measured / GIB:5.2f} GiB  {predicted / measured - 1:+.1%}\n    predicted: {parts}\n    measured:  "
            f"{moments}",
            flush=True,
        )


if __name__ == "__main__":
    main()
