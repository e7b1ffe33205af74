"""Environments that bring their questions, their agent and its rewards: `data.environment` of a run."""

from medagent.training.environments.harness import Harness
from medagent.training.environments.verifiers import Verifiers

__all__ = ["Harness", "Verifiers"]
