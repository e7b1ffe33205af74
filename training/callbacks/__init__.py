"""Callbacks: the algorithm's variants, and what watches and keeps a run."""

from training.callbacks.budget import ComputeBudget
from training.callbacks.collapse_monitor import CollapseMonitor
from training.callbacks.correction import ClippingBiasCorrection
from training.callbacks.export import AgentExport
from training.callbacks.held_out import HeldOutEvaluation
from training.callbacks.importance_level import SequenceLevelSampling, TurnLevelSampling
from training.callbacks.progress import ProgressLine
from training.callbacks.rollout_files import RolloutRecords

__all__ = [
    "AgentExport",
    "ClippingBiasCorrection",
    "CollapseMonitor",
    "ComputeBudget",
    "HeldOutEvaluation",
    "ProgressLine",
    "RolloutRecords",
    "SequenceLevelSampling",
    "TurnLevelSampling",
]
