"""Learning from pairs of a right and a wrong rollout. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medagent.lazy import lazy

if TYPE_CHECKING:
    from medagent.training.preference.data import HeldOutPairs, PreferenceData, PreferenceProgress
    from medagent.training.preference.losses import DPO, TDPO1, TDPO2
    from medagent.training.preference.module import PreferenceModule
    from medagent.training.preference.pairs import GivenPairs, SampledPairs

__all__ = [
    "DPO",
    "TDPO1",
    "TDPO2",
    "GivenPairs",
    "HeldOutPairs",
    "PreferenceData",
    "PreferenceModule",
    "PreferenceProgress",
    "SampledPairs",
]

_NAMES = {
    "data": ("HeldOutPairs", "PreferenceData", "PreferenceProgress"),
    "losses": ("DPO", "TDPO1", "TDPO2"),
    "module": ("PreferenceModule",),
    "pairs": ("GivenPairs", "SampledPairs"),
}
__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names})
