"""What samples the rollouts of a training run: this process, vLLM beside it, servers, or Ray actors."""

from medagent.training.engines.base import EngineSetup, RolloutEngine
from medagent.training.engines.in_process import InProcessEngine
from medagent.training.engines.ray import RayEngine
from medagent.training.engines.servers import ServersEngine
from medagent.training.engines.vllm import VllmEngine

__all__ = ["EngineSetup", "InProcessEngine", "RayEngine", "RolloutEngine", "ServersEngine", "VllmEngine"]
