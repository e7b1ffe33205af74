"""The cost of asking: seconds, and an endpoint's requests and tokens, over all runs into one folder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from medagent.agent import Agent
from medagent.files import write_whole
from medagent.policies.chat_endpoint import RemotePolicy

USAGE = "usage.json"
Used = dict[str, float]


@dataclass
class AskedNow:
    """A counter of questions within `counted`, and whether the folder held answers before."""

    asked: int = 0
    goes_on: bool = False


@contextmanager
def counted(agent: Agent, folder: Path) -> Iterator[AskedNow]:
    """Add what is asked within, also before an interruption, to usage.json of a folder that held answers."""
    counter, began = AskedNow(), time.perf_counter()
    try:
        yield counter
    finally:
        before = read_usage(folder) if counter.goes_on else {}
        found: Used = {"questions": counter.asked, "seconds": time.perf_counter() - began}
        if isinstance(agent.policy, RemotePolicy):
            used = agent.policy.usage
            found |= {
                "requests": used.requests,
                "prompt_tokens": used.prompt_tokens,
                "completion_tokens": used.completion_tokens,
            }
        if counter.asked and folder.is_dir():
            total = {name: value + before.get(name, 0) for name, value in found.items()}
            write_whole(folder / USAGE, json.dumps(total) + "\n")


def read_usage(folder: Path) -> Used:
    """The counts so far, empty if there are none."""
    path = folder / USAGE
    if not path.exists():
        return {}
    found: Used = json.loads(path.read_text(encoding="utf-8"))
    return found


def usage_line(used: Mapping[str, float], price: Mapping[str, float], *, answers: int) -> str:
    """The usage as a sentence, with the `answers` not counted. `price` is per million "input" and "output" tokens."""
    if not used.get("questions"):
        return ""
    line = f"Asked {used['questions']:,.0f} times in {used['seconds']:,.0f} s"
    line += f" ({used['seconds'] / used['questions']:.2f} s each)"
    if "requests" in used:
        line += (
            f", {used['requests']:,.0f} requests, {used['prompt_tokens']:,.0f} tokens in and "
            f"{used['completion_tokens']:,.0f} out"
        )
        if price:
            cost = used["prompt_tokens"] * price.get("input", 0) + used["completion_tokens"] * price.get("output", 0)
            line += f", cost {cost / 1e6:.2f}"
    if used["questions"] < answers:
        line += f"; {answers - used['questions']:,.0f} answers of the folder are not counted in this"
    return line + "."
