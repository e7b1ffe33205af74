"""Environments that bring their questions, their agent and its rewards: `data.environment` of a run."""

from medagent.training.environments.harness import Harness
from medagent.training.environments.messages import MessageEnvironment
from medagent.training.environments.openenv import OpenEnv
from medagent.training.environments.verifiers import Verifiers

__all__ = ["Harness", "MessageEnvironment", "OpenEnv", "Verifiers"]
