"""Imitation of dialogues, before reinforcement learning. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medagent.lazy import lazy

if TYPE_CHECKING:
    from medagent.training.sft.dialogues import Demonstrations, MixedDemonstrations, Part, RejectionSampled
    from medagent.training.sft.jsonl_dialogues import GivenDialogues
    from medagent.training.sft.scripted import ScriptedDemonstrations
    from medagent.training.sft.supervised import HeldOutLoss, SupervisedData, SupervisedModule, SupervisedProgress

__all__ = [
    "Demonstrations",
    "GivenDialogues",
    "HeldOutLoss",
    "MixedDemonstrations",
    "Part",
    "RejectionSampled",
    "ScriptedDemonstrations",
    "SupervisedData",
    "SupervisedModule",
    "SupervisedProgress",
]

_NAMES = {
    "dialogues": ("Demonstrations", "MixedDemonstrations", "Part", "RejectionSampled"),
    "jsonl_dialogues": ("GivenDialogues",),
    "scripted": ("ScriptedDemonstrations",),
    "supervised": ("HeldOutLoss", "SupervisedData", "SupervisedModule", "SupervisedProgress"),
}
__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names})
