"""What torch.compile, 8-bit weights and bfloat16 would win on this machine, phase by phase.

    python -m benchmarks.compiled --base smollm2 --steps 20

*Compile*: every decoder layer is compiled with dynamic shapes. A phase runs so many micro-batches of differing sizes,
first plain, then compiled; the seconds of compilation count. *int8*: weights of linear layers and their inputs in 8
bits (torch's dynamic quantisation), for the copy that samples. The gap is that of the log-probs of given tokens.
*Rates* are those of one layer's widest product. Prints a line for each.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic
from transformers import DynamicCache, PreTrainedModel

from benchmarks.common import describe_machine
from medagent.models.causal_lm import hidden_states, load_causal_lm, project
from medagent.training.adapters import SharedBase
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings

ROWS, PROMPT = 8, 96
Batch = tuple[Tensor, Tensor, Tensor]


def micro_batches(steps: int, vocabulary: int) -> list[Batch]:
    """Token ids, what is there, and what is sampled: eight rows with a common prompt, and 64 to 256 tokens of each."""
    made = []
    for step in range(steps):
        draw = torch.Generator().manual_seed(step)
        length = PROMPT + int(torch.randint(64, 257, (), generator=draw))
        ids_BT = torch.randint(1000, vocabulary, (ROWS, length), generator=draw)
        ids_BT[:, :PROMPT] = ids_BT[:1, :PROMPT]
        sampled_BT = torch.zeros(ROWS, length, dtype=torch.bool)
        sampled_BT[:, PROMPT:] = True
        made.append((ids_BT, torch.ones_like(sampled_BT), sampled_BT))
    return made


def update(roles: SharedBase, batch: Batch) -> None:
    """Forward and backward of the policy."""
    roles.policy_scores(*batch, temperature=1.0).logprobs_BT.sum().backward()


def read(roles: SharedBase, batch: Batch) -> None:
    """A pass without gradients, as that of the reference."""
    with torch.no_grad():
        roles.base_logprobs(*batch, temperature=1.0)


@torch.no_grad()
def decode(model: PreTrainedModel, steps: int, rows: int = 32) -> float:
    """Median seconds of a step of so many rows, after the first."""
    cache = DynamicCache()
    hidden_states(model, input_ids=torch.full((rows, PROMPT), 1000), past_key_values=cache, use_cache=True)
    took = []
    for step in range(steps):
        began = time.perf_counter()
        hidden_NH = hidden_states(
            model, input_ids=torch.full((rows, 1), 1000 + step), past_key_values=cache, use_cache=True
        )
        project(model, hidden_NH[:, -1])
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def seconds_of(work: Callable[[Batch], None], batches: list[Batch]) -> list[float]:
    """Seconds of each."""
    found = []
    for batch in batches:
        began = time.perf_counter()
        work(batch)
        found.append(time.perf_counter() - began)
    return found


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers."""
    return [each for each in model.modules() if type(each).__name__.endswith("DecoderLayer")]


def compare_compiled(base: str, steps: int) -> None:
    """Print each phase's seconds, plain and compiled."""
    for name, work, shared in (
        ("update, shared prefixes", update, True),
        ("update, plain rows", update, False),
        ("reading, shared prefixes", read, True),
        ("reading, plain rows", read, False),
    ):
        model, _ = load_causal_lm(base)
        model.requires_grad_(False)
        batches = micro_batches(steps, model.config.vocab_size)
        roles = SharedBase(model, policy=LoraSettings(16, 32), critic=None, execution=Execution(shared_prefixes=shared))
        work(roles, batches[0])
        plain = seconds_of(lambda batch, roles=roles, work=work: work(roles, batch), batches)
        for layer in layers_of(roles):
            layer.compile(dynamic=True)
        try:
            compiled = seconds_of(lambda batch, roles=roles, work=work: work(roles, batch), batches)
        except Exception as error:  # what torch.compile raises on a phase is the finding
            print(f"{name}: plain {sum(plain):.1f} s; not compiled: {type(error).__name__}: {str(error)[:200]}")
            continue
        print(
            f"{name}: {steps} steps plain {sum(plain):.1f} s, compiled {sum(compiled):.1f} s with compilation; "
            f"median step {statistics.median(plain):.2f} and {statistics.median(compiled):.2f} s",
            flush=True,
        )


def compare_decoding(base: str, steps: int) -> None:
    """Print a sampling step's seconds: plain, compiled, and with 8-bit weights, whose log-prob gap is printed too."""
    model, _ = load_causal_lm(base)
    small = quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    compiled = copy.deepcopy(model)
    for layer in layers_of(compiled):
        layer.compile(dynamic=True)
    began = time.perf_counter()
    decode(compiled, 2)
    compiling = time.perf_counter() - began
    for rows in (1, 32, 128):
        plain, eight, fast = (decode(each, steps, rows) for each in (model, small, compiled))
        print(
            f"a sampling step of {rows} rows: {plain * 1000:.0f} ms; 8-bit {eight * 1000:.0f} ms; compiled "
            f"{fast * 1000:.0f} ms after {compiling:.0f} s of compilation",
            flush=True,
        )
    ids_BT = micro_batches(1, model.config.vocab_size)[0][0]
    with torch.no_grad():
        ids_BT = model.generate(  # type: ignore[operator]
            ids_BT[:, :8], max_new_tokens=64, min_new_tokens=64, do_sample=True, pad_token_id=0
        )
        found = []
        for each in (model, small):
            hidden_BTH = hidden_states(each, input_ids=ids_BT, use_cache=False)
            scores_BTV = project(each, hidden_BTH[:, :-1]).log_softmax(-1)
            found.append(scores_BTV.gather(2, ids_BT[:, 1:, None]).squeeze(2))
    gap_BT = (found[0] - found[1]).abs()[:, 7:]
    print(f"8-bit: log-prob gap mean {gap_BT.mean():.3f}, 99th {gap_BT.flatten().quantile(0.99):.2f}, sampled tokens")


def print_rates(base: str) -> None:
    """Print products per second in each type, and of the 8-bit product."""
    config = load_causal_lm(base)[0].config
    hidden, inner = config.hidden_size, config.intermediate_size
    for rows in (1, 32, 128, 4096):
        cells = []
        for dtype in (torch.float32, torch.bfloat16, torch.qint8):
            layer: nn.Module = nn.Sequential(nn.Linear(hidden, inner, bias=False))
            states = torch.randn(rows, hidden)
            if dtype == torch.qint8:
                layer = quantize_dynamic(layer, {nn.Linear}, dtype=dtype)
            else:
                layer, states = layer.to(dtype), states.to(dtype)
            with torch.no_grad():
                layer(states)
                took, began = [], time.perf_counter()
                while time.perf_counter() - began < 1:
                    start = time.perf_counter()
                    layer(states)
                    took.append(time.perf_counter() - start)
            cells.append(f"{str(dtype)[6:]} {2 * rows * hidden * inner / statistics.median(took) / 1e9:.1f}")
        print(f"{rows} rows, GFLOP/s: " + ", ".join(cells), flush=True)


def main() -> None:
    """Print every comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    print(describe_machine())
    print_rates(options.base)
    compare_decoding(options.base, options.steps)
    compare_compiled(options.base, options.steps)


if __name__ == "__main__":
    main()
