"""Callbacks: the algorithm's variants, and what watches and keeps a run."""

from training.callbacks.collapse import CollapseMonitor
from training.callbacks.correction import ClippingBiasCorrection
from training.callbacks.evaluation import HeldOutEvaluation
from training.callbacks.export import AgentExport
from training.callbacks.progress import ProgressLine
from training.callbacks.records import RolloutRecords
from training.callbacks.sampling import SequenceLevelSampling, TurnLevelSampling

__all__ = [
    "AgentExport",
    "ClippingBiasCorrection",
    "CollapseMonitor",
    "HeldOutEvaluation",
    "ProgressLine",
    "RolloutRecords",
    "SequenceLevelSampling",
    "TurnLevelSampling",
]
