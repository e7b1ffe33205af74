"""What samples the rollouts of a training run.

In this process, or vLLM in one of its own, or servers, or Ray actors.
"""

from training.engines.base import EngineSetup, RolloutEngine
from training.engines.in_process import InProcess
from training.engines.servers import Servers
from training.engines.vllm import Vllm

__all__ = ["EngineSetup", "InProcess", "RolloutEngine", "Servers", "Vllm"]
