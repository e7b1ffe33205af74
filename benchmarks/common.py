"""What every benchmark prints first, and the model and questions that they share."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent


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
