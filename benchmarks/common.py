"""Shared by the benchmarks: the machine's description, which each prints first, and peaks of memory."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
# glibc keeps freed blocks, so that resident memory may be twice what is held; with these every tensor goes back to
# the system at once.
HELD_ALONE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}


def describe_machine() -> str:
    """Processor, cores, memory, Python, torch and its threads."""
    model = platform.processor() or "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{model}, {os.cpu_count()} cores, {pages:.0f} GiB, {gpu}; Python {sys.version.split()[0]}, "
        f"torch {torch.__version__} with {torch.get_num_threads()} threads"
    )


class Peaks:
    """The resident memory's peak between one call and the next, in bytes (Linux)."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}

    def __call__(self, name: str) -> None:
        """Note the peak since the last call under `name`."""
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        self.peaks[name] = 1024.0 * int(status.split("VmHWM:")[1].split()[0])
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
