"""Tokens per second of the ways to sample: the in-process policy, `model.generate` and vLLM.

python -m benchmarks.sampling                            # vLLM too, where it is installed
    python -m benchmarks.sampling --hidden 512 --layers 12

The model is a Qwen2 of random weights with 64 prompts and no stops. A dialogue of several turns is measured with its KV
cache kept, and with everything read again. Rounds alternate, so that a slow moment of the machine affects all.

Prints the median and range of sampled tokens per second of each way.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import describe_machine
from medagent.models.causal_lm import load_causal_lm
from medagent.policies.completions import CompletionPolicy, HttpCompletions
from medagent.policies.huggingface import HFPolicy
from medagent.policies.vllm.server import MODEL, VllmServer
from medagent.policy import Policy
from medagent.protocol import TagProtocol

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 64, 128, 48
TURNS, TURN_TOKENS, OBSERVATION_TOKENS = 4, 16, 128


def make_model(folder: Path, hidden: int, layers: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Random weights with the starter's tokenizer, whose tags and end token they (nearly) never write."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=8192,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=8,
            tie_word_embeddings=True,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    load_causal_lm("starter")[1].save_pretrained(folder)
    return load_causal_lm(str(folder))


def by_policy(policy: Policy, prompts: list[list[int]]) -> int:
    """One turn of every prompt; the number of tokens sampled."""

    async def run() -> int:
        sessions = [
            policy.open(seed=number, temperature=1.0, blocks=TagProtocol().blocks) for number in range(len(prompts))
        ]
        for session, prompt in zip(sessions, prompts, strict=True):
            session.append(list(prompt))
        turns = await asyncio.gather(*(session.sample(max_tokens=NEW_TOKENS) for session in sessions))
        for session in sessions:
            session.close()
        await policy.disconnect()
        return sum(len(turn.token_ids) for turn in turns)

    return asyncio.run(run())


@torch.no_grad()
def by_generate(model: PreTrainedModel, prompts: list[list[int]]) -> int:
    """The same with transformers' own loop."""
    ids = torch.tensor(prompts)
    whole = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    return int(whole[:, ids.shape[1] :].numel())


def dialogues(policy: Policy, prompts: list[list[int]], *, keep: bool) -> int:
    """Several turns with observations in between.

    Without `keep` every turn opens a session and reads everything again.
    """

    async def one(number: int, prompt: list[int]) -> int:
        said, sampled = list(prompt), 0
        session = policy.open(seed=number, temperature=1.0, blocks=TagProtocol().blocks)
        session.append(list(prompt))
        for _ in range(TURNS):
            turn = await session.sample(max_tokens=TURN_TOKENS)
            sampled += len(turn.token_ids)
            observation = prompt[:OBSERVATION_TOKENS]
            said += [*turn.token_ids, *observation]
            if keep:
                session.append(list(observation))
            else:
                session.close()
                session = policy.open(seed=number, temperature=1.0, blocks=TagProtocol().blocks)
                session.append(list(said))
        session.close()
        return sampled

    async def run() -> int:
        counts = await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
        await policy.disconnect()
        return sum(counts)

    return asyncio.run(run())


def main() -> None:
    """Time all ways in alternating rounds and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model, tokenizer = make_model(Path(folder), options.hidden, options.layers)
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, float32")
        generator = torch.Generator().manual_seed(0)
        prompts = torch.randint(100, 8000, (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()
        policy = HFPolicy(model, tokenizer, lockstep=False)
        ways: dict[str, Callable[[], int]] = {
            "in-process policy": lambda: by_policy(policy, prompts),
            "model.generate": lambda: by_generate(model, prompts),
        }
        if importlib.util.find_spec("vllm"):
            server = stack.enter_context(closing(VllmServer(folder, dtype="float32", max_model_len=1024))).wait()
            vllm = CompletionPolicy([HttpCompletions(server.endpoint())], MODEL, tokenizer, end_ids=policy.end_ids)

            def fresh_vllm() -> int:
                server.forget_prefixes()
                return by_policy(vllm, prompts)

            ways["vLLM"] = fresh_vllm
        ways |= {
            "dialogues, KV cache kept": lambda: dialogues(policy, prompts, keep=True),
            "dialogues, read again at each turn": lambda: dialogues(policy, prompts, keep=False),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.rounds + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                tokens = way()
                if number:  # the first warms up
                    rates[name].append(tokens / (time.perf_counter() - began))
        for name, values in rates.items():
            print(
                f"{name:38s} {statistics.median(values):9,.0f} sampled tokens/s  ({min(values):,.0f} to "
                f"{max(values):,.0f})"
            )


if __name__ == "__main__":
    main()
