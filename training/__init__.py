"""Training: the module and its data, losses, advantages, rewards, callbacks, and `train`, which runs them in a folder.

Names are imported when they are first used, so `import medagent.training` loads no torch.
"""

from typing import TYPE_CHECKING

from medagent.lazy import homes_in, lazy

if TYPE_CHECKING:
    from medagent.environment import AgentSettings as AgentSettings
    from medagent.training.advantages import GAE as GAE
    from medagent.training.advantages import AdvantageEstimator as AdvantageEstimator
    from medagent.training.advantages import BatchBaseline as BatchBaseline
    from medagent.training.advantages import GroupNormalised as GroupNormalised
    from medagent.training.advantages import LeaveOneOut as LeaveOneOut
    from medagent.training.callbacks import AgentExport as AgentExport
    from medagent.training.callbacks import ClippingBiasCorrection as ClippingBiasCorrection
    from medagent.training.callbacks import CollapseMonitor as CollapseMonitor
    from medagent.training.callbacks import ComputeBudget as ComputeBudget
    from medagent.training.callbacks import ProgressLine as ProgressLine
    from medagent.training.callbacks import RolloutRecords as RolloutRecords
    from medagent.training.callbacks import SequenceLevelSampling as SequenceLevelSampling
    from medagent.training.callbacks import TurnLevelSampling as TurnLevelSampling
    from medagent.training.data import RolloutData as RolloutData
    from medagent.training.engines import Engine as Engine
    from medagent.training.engines import InProcessEngine as InProcessEngine
    from medagent.training.engines import ServersEngine as ServersEngine
    from medagent.training.engines import VllmEngine as VllmEngine
    from medagent.training.execution import Execution as Execution
    from medagent.training.lora import LoraSettings as LoraSettings
    from medagent.training.module import AgentModule as AgentModule
    from medagent.training.objectives import ClippedSurrogate as ClippedSurrogate
    from medagent.training.objectives import PolicyLoss as PolicyLoss
    from medagent.training.objectives import PolicyLossResult as PolicyLossResult
    from medagent.training.prepare import OffPolicy as OffPolicy
    from medagent.training.rewards import F1 as F1
    from medagent.training.rewards import ContainsAnswer as ContainsAnswer
    from medagent.training.rewards import ExactMatch as ExactMatch
    from medagent.training.rewards import OutcomeReward as OutcomeReward
    from medagent.training.rewards import Reward as Reward
    from medagent.training.rewards import SupportedCitations as SupportedCitations
    from medagent.training.rewards import TurnRewards as TurnRewards
    from medagent.training.run import TrainingResult as TrainingResult
    from medagent.training.run import train as train
else:
    homes = homes_in(__name__, __file__)
    __all__ = list(homes)
    __getattr__, __dir__ = lazy(__name__, homes)
