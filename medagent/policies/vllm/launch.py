"""Runs vLLM's API server, and ends it when the process that started it is gone.

`python -m medagent.policies.vllm.launch FLAGS`.

Standard input is a pipe that nothing is written to. It closes when the owner ends, in whatever way. A process of its
own waits for that, as vLLM's engine outlives an API server that is killed.
"""

import os
import runpy
import signal


def _end_with_owner() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # vLLM's engine outlives the SIGTERM that ends its API server


if __name__ == "__main__":
    if os.fork() == 0:
        _end_with_owner()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
