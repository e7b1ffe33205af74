"""Imitation of dialogues, before reinforcement learning. Names are imported when they are first used."""

from medagent.lazy import lazy

_NAMES = {
    "dialogues": ("Demonstrations", "GivenDialogues", "MixedDemonstrations", "Part", "RejectionSampled"),
    "scripted": ("ScriptedDemonstrations",),
    "supervised": ("HeldOutLoss", "SupervisedData", "SupervisedModule", "SupervisedProgress"),
}
__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names})
