"""Engines sample a policy's turns for the trainer, the server and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medagent.lazy import lazy

if TYPE_CHECKING:
    from medagent.engines.base import Engine, EngineSetup, PolicyWeights
    from medagent.engines.in_process import InProcessEngine
    from medagent.engines.ray import RayEngine
    from medagent.engines.servers import ServersEngine
    from medagent.engines.vllm import VllmEngine

_HOMES = {
    "Engine": "medagent.engines.base",
    "EngineSetup": "medagent.engines.base",
    "PolicyWeights": "medagent.engines.base",
    "InProcessEngine": "medagent.engines.in_process",
    "RayEngine": "medagent.engines.ray",
    "ServersEngine": "medagent.engines.servers",
    "VllmEngine": "medagent.engines.vllm",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)

__all__ = [
    "Engine",
    "EngineSetup",
    "InProcessEngine",
    "PolicyWeights",
    "RayEngine",
    "ServersEngine",
    "VllmEngine",
]
