"""The critic that reads a few numbers about a rollout's evidence, see `medagent.training.critic_evidence`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

CriticSees = Literal["context", "evidence", "evidence_and_group"]

TURNS = 4  # turns with a number of their own; the last also stands for all later ones
EVIDENCE = TURNS + 6
EVIDENCE_WIDTH = 64
NUM_EVIDENCE_FEATURES: dict[CriticSees, int] = {"context": 0, "evidence": EVIDENCE, "evidence_and_group": EVIDENCE + 1}


def evidence_network(num_features: int) -> nn.Sequential:
    """The critic that reads so many numbers instead of the context; its last layer starts at zero."""
    last = nn.Linear(EVIDENCE_WIDTH, 1, dtype=torch.float32)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(num_features, EVIDENCE_WIDTH, dtype=torch.float32), nn.GELU(), last)
