"""What samples the rollouts of a training run: this process, vLLM beside it, servers, or Ray actors."""

from training.engines.base import EngineSetup, RolloutEngine
from training.engines.in_process import InProcessEngine
from training.engines.ray import RayEngine
from training.engines.servers import ServersEngine
from training.engines.vllm import VllmEngine

__all__ = ["EngineSetup", "InProcessEngine", "RayEngine", "RolloutEngine", "ServersEngine", "VllmEngine"]
