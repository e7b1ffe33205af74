"""Runs vLLM's API server, and ends it when the process that started it is gone.

`python -m medagent.policies.vllm.launch FLAGS`.

Standard input is a pipe that nothing is written to. It closes when the owner ends, in whatever way.
"""

from __future__ import annotations

import os
import runpy
import signal
from threading import Thread


def _end_with_owner() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock a thread must not hold when Python ends
    os.killpg(0, signal.SIGKILL)  # vLLM's engine outlives the SIGTERM that ends its API server


if __name__ == "__main__":
    Thread(target=_end_with_owner, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
