"""Training: the module and its data, losses, advantages, rewards, callbacks, and `train`, which runs them in a folder.

Names are imported when they are first used, so `import medagent.training` loads no torch.
"""

from typing import TYPE_CHECKING

from medagent.lazy import homes_in, lazy

if TYPE_CHECKING:
    from medagent.environment import AgentSettings
    from medagent.training.advantages import GAE, AdvantageEstimator, BatchBaseline, GroupNormalised, LeaveOneOut
    from medagent.training.callbacks import (
        AgentExport,
        ClippingBiasCorrection,
        CollapseMonitor,
        ComputeBudget,
        ProgressLine,
        RolloutRecords,
        SequenceLevelSampling,
        TurnLevelSampling,
    )
    from medagent.training.data import RolloutData
    from medagent.training.engines import Engine, InProcessEngine, ServersEngine, VllmEngine
    from medagent.training.execution import Execution
    from medagent.training.lora import LoraSettings
    from medagent.training.module import AgentModule
    from medagent.training.objectives import ClippedSurrogate, PolicyLoss, PolicyLossResult
    from medagent.training.prepare import OffPolicy
    from medagent.training.rewards import (
        F1,
        ContainsAnswer,
        ExactMatch,
        OutcomeReward,
        Reward,
        SupportedCitations,
        TurnRewards,
    )
    from medagent.training.run import TrainingResult, train

__all__ = [
    "F1",
    "GAE",
    "AdvantageEstimator",
    "AgentExport",
    "AgentModule",
    "AgentSettings",
    "BatchBaseline",
    "ClippedSurrogate",
    "ClippingBiasCorrection",
    "CollapseMonitor",
    "ComputeBudget",
    "ContainsAnswer",
    "Engine",
    "ExactMatch",
    "Execution",
    "GroupNormalised",
    "InProcessEngine",
    "LeaveOneOut",
    "LoraSettings",
    "OffPolicy",
    "OutcomeReward",
    "PolicyLoss",
    "PolicyLossResult",
    "ProgressLine",
    "Reward",
    "RolloutData",
    "RolloutRecords",
    "SequenceLevelSampling",
    "ServersEngine",
    "SupportedCitations",
    "TrainingResult",
    "TurnLevelSampling",
    "TurnRewards",
    "VllmEngine",
    "train",
]

__getattr__, __dir__ = lazy(__name__, homes_in(__name__, __file__))
