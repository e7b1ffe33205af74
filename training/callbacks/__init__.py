"""Callbacks: the algorithm's variants, and what watches and keeps a run."""

from medagent.training.callbacks.collapse_monitor import CollapseMonitor as CollapseMonitor
from medagent.training.callbacks.export import AgentExport as AgentExport
from medagent.training.callbacks.export import ComputeBudget as ComputeBudget
from medagent.training.callbacks.export import ProgressLine as ProgressLine
from medagent.training.callbacks.records import RolloutRecords as RolloutRecords
from medagent.training.callbacks.trackers import TrackioLogger as TrackioLogger
from medagent.training.callbacks.variants import ClippingBiasCorrection as ClippingBiasCorrection
from medagent.training.callbacks.variants import SequenceLevelSampling as SequenceLevelSampling
from medagent.training.callbacks.variants import TurnLevelSampling as TurnLevelSampling
