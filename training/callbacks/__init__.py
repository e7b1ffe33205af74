"""Callbacks: the algorithm's variants, and what watches and keeps a run."""

from medagent.training.callbacks.budget import ComputeBudget
from medagent.training.callbacks.collapse_monitor import CollapseMonitor
from medagent.training.callbacks.correction import ClippingBiasCorrection
from medagent.training.callbacks.export import AgentExport
from medagent.training.callbacks.importance_level import SequenceLevelSampling, TurnLevelSampling
from medagent.training.callbacks.progress import ProgressLine
from medagent.training.callbacks.records import RolloutRecords

__all__ = [
    "AgentExport",
    "ClippingBiasCorrection",
    "CollapseMonitor",
    "ComputeBudget",
    "ProgressLine",
    "RolloutRecords",
    "SequenceLevelSampling",
    "TurnLevelSampling",
]
