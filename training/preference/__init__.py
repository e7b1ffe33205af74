"""Learning from pairs of a right and a wrong rollout. Names are imported when they are first used."""

from medagent.lazy import lazy

_NAMES = {
    "data": ("HeldOutPairs", "PreferenceData", "PreferenceProgress"),
    "losses": ("DPO", "TDPO1", "TDPO2"),
    "module": ("PreferenceModule",),
    "pairs": ("GivenPairs", "SampledPairs"),
}
__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names})
