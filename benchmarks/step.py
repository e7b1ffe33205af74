"""Rollouts per second of a whole training step on a real model, beside TRL and AgileRL.

    python -m benchmarks.step --base smollm2 --rival trl --repeats 5             # needs the extra `bench`
    python -m benchmarks.step --job real --agent runs/smollm2/examples/agent --rival trl
    python -m benchmarks.step --job real --agent runs/smollm2/examples/agent --rival ours

The jobs stand in `benchmarks.rivals.job`: LoRA of rank 16 on all linear layers, float32 or bfloat16, one optimizer
step. `--job real` needs an agent that was taught the protocol, such as `medagent sft --config
configs/sft/starter-smollm2.yaml` exports. Ours is PPO with the evidence critic, and with an adapter as critic and a
reference pass. TRL's GRPO has neither. AgileRL's turn-level PPO updates on rollouts that ours wrote; it runs in a
Python of its own, named by `--agilerl-python`.

Rivals run in processes of their own, in alternation. The last step of each process counts. `--warm-up 0` leaves out
the step before it, where a step takes minutes and its first allocations do not matter. Prints seconds a step, rollouts
per second, peak memory, and each ratio to ours; then seconds by phase, and the update's share of the machine's matrix
rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from benchmarks.common import describe_machine
from medagent.export import export_merged
from medagent.models.base_models import model_path
from medagent.starter.index import build_starter_index
from medagent.starter.world import World

OURS = {"ours, evidence critic": "evidence", "ours, adapter critic and reference": "adapter"}
SAMPLING = ("prefill", "decode", "sample")


def matrix_rate(model: str, dtype: torch.dtype, tokens: int = 4096, seconds: float = 2.0) -> float:
    """Floating-point operations per second of the products of one of the model's layers with `tokens` rows."""
    config = AutoConfig.from_pretrained(model_path(model))
    hidden, inner = config.hidden_size, config.intermediate_size
    states, weight = torch.randn(tokens, hidden, dtype=dtype), torch.randn(inner, hidden, dtype=dtype)
    torch.nn.functional.linear(states, weight)
    began, times = time.perf_counter(), []
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        torch.nn.functional.linear(states, weight)
        times.append(time.perf_counter() - start)
    return 2 * tokens * hidden * inner / statistics.median(times)


def run(module: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """The output of a rival, after a run in a process of its own."""
    found = subprocess.run([python, "-m", f"benchmarks.rivals.{module}", *arguments], stdout=subprocess.PIPE)
    if found.returncode:
        raise SystemExit(f"benchmarks.rivals.{module} failed with {found.returncode}; see above.")
    figures: dict[str, Any] = json.loads(found.stdout.decode().strip().splitlines()[-1])
    return figures


def main() -> None:
    """Alternate the rivals, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=["forced", "real"], default="forced")
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--agent", type=Path, help="of the job real: a taught agent on the base")
    parser.add_argument("--bioasq", default="", help="BioASQ files to ask, with --index; else the starter world")
    parser.add_argument("--index", default="", help="where --bioasq is given")
    parser.add_argument("--rival", choices=["trl", "agilerl", "ours"], default="trl")
    parser.add_argument("--agilerl-python", default=sys.executable)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--questions", type=int, default=0, help="of a step, 8 samples each; 0: as the job says")
    parser.add_argument("--warm-up", type=int, default=1, help="steps of a process before the one that counts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--keep", type=Path, help="write every figure to this file")
    options = parser.parse_args()
    if options.job == "real" and options.agent is None:
        parser.error("--job real needs --agent: one that was taught the protocol, see medagent sft")
    torch.set_num_threads(options.threads)
    print(describe_machine())
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        index, model = options.index or str(Path(folder) / "index"), options.base
        if not options.index:
            build_starter_index(Path(index), World.load().passages())
        if options.agent is not None:
            model = str(Path(folder) / "merged")
            export_merged(options.agent, Path(model))
        common = ["--job", options.job, "--model", model, "--index", index, "--dtype", options.dtype]
        common += ["--questions", str(options.questions), "--warm-up", str(options.warm_up)]
        common += ["--threads", str(options.threads), *(["--bioasq", options.bioasq] if options.bioasq else [])]
        for repeat in range(options.repeats):
            rivals: list[str] = [*OURS, *([] if options.rival == "ours" else [options.rival])]
            for name in rivals[:: -1 if repeat % 2 else 1]:  # none is always the first
                if name == "agilerl":
                    rollouts = str(Path(folder) / "rollouts.json")
                    run("ours", *common, "--seed", str(repeat), "--rollouts", rollouts)
                    arguments = ["--model", model_path(model), "--rollouts", rollouts, "--dtype", options.dtype]
                    arguments += ["--threads", str(options.threads), "--updates", str(options.warm_up + 1)]
                    figures = run("agilerl", *arguments, python=options.agilerl_python)
                    figures["steps"] = [{"seconds": each, "phases": {}} for each in figures["seconds"]]
                    figures["rollouts"] = 0  # it samples none
                elif name == "trl":
                    figures = run("trl", *common, "--seed", str(repeat))
                else:
                    figures = run("ours", *common, "--critic", OURS[name], "--seed", str(repeat))
                results.setdefault(name, []).append(figures)
                print(f"{repeat} {name}: {figures}", file=sys.stderr)
        rate = matrix_rate(model, getattr(torch, options.dtype))
        if options.keep:
            options.keep.write_text(json.dumps({"rate": rate, "results": results}), encoding="utf-8")
        _print(results, rate, model)


def _print(results: dict[str, list[dict[str, Any]]], rate: float, model: str) -> None:
    """The tables."""
    seconds, memory = {}, {}
    for name, runs in results.items():
        times = [step["seconds"] for each in runs for step in each["steps"][-1:]]
        seconds[name] = statistics.median(times)
        memory[name] = statistics.median(each["peak_bytes"] for each in runs)
        print(
            f"{name:36s} {seconds[name]:7.2f} s a step (of {len(times)}: {min(times):.2f} to {max(times):.2f}), "
            f"{runs[0]['rollouts'] / seconds[name]:6.2f} rollouts/s, peak {memory[name] / 2**30:.2f} GiB"
        )
    if "agilerl" in results:
        name = list(OURS)[1]
        updates = [_update_seconds(step) for each in results[name] for step in each["steps"][-1:]]
        middle = statistics.median(updates)
        print(f"update alone, {name}: {middle:.2f} s, AgileRL takes {seconds['agilerl'] / middle:.2f} times as long")
    for name in OURS:
        for rival in results:
            if rival not in (*OURS, "agilerl"):
                print(
                    f"{name} / {rival}: {seconds[rival] / seconds[name]:.2f} times the rollouts per second, "
                    f"{memory[name] / memory[rival]:.2f} of the memory"
                )
    config = AutoConfig.from_pretrained(model_path(model))
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    width = hidden // config.num_attention_heads * config.num_key_value_heads
    weights = layers * (2 * hidden * hidden + 2 * hidden * width + 3 * hidden * inner)
    print(f"matrix rate {rate / 1e9:,.0f} GFLOP/s; {weights / 1e6:.0f} M weights in the layers")
    for name, runs in results.items():
        steps = [step for each in runs for step in each["steps"][-1:]]
        phases = {phase: statistics.median(s["phases"].get(phase, 0.0) for s in steps) for phase in steps[0]["phases"]}
        print(name)
        for phase, took in sorted(phases.items(), key=lambda item: -item[1]):
            print(f"  {phase:18s} {took:7.2f} s")
        if "distinct" in steps[0]:
            tokens, distinct = (statistics.median(step[kind] for step in steps) for kind in ("tokens", "distinct"))
            forward, backward = phases.get("policy forward", 0.0), phases.get("backward", 0.0)
            share = 4 * weights * distinct / (forward + backward) / rate if name.endswith("evidence critic") else None
            print(
                f"  {tokens:,.0f} tokens, {distinct / tokens:.0%} of them distinct"
                + (f"; update at {share:.0%} of the matrix rate (layers alone)" if share else "")
            )


def _update_seconds(step: dict[str, Any]) -> float:
    """The time of a step outside sampling: reference, values, and the update."""
    phases: dict[str, float] = step["phases"]
    return sum(took for phase, took in phases.items() if phase not in SAMPLING)


if __name__ == "__main__":
    main()
