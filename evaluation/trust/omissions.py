"""What shown answers leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from medagent.evaluation.metrics import ModeReport
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.statistics import Accuracy
from medagent.evidence.answers import checked, left_out
from medagent.evidence.check import EvidenceCheck


def with_omissions(report: ModeReport, predictions: Sequence[Prediction]) -> ModeReport:
    """The report with what those answers leave out that serving would show by default, one answer per question."""
    check, counts = EvidenceCheck(), list[int]()
    for rollout in (each.rollout for each in predictions if not each.rotation and not each.rollout.sample):
        if rollout.answer and rollout.hits and not (answer := checked(rollout, check)).withheld:
            counts.append(len(left_out(rollout, answer, check)))
    return replace(report, omitting=Accuracy.of(sum(map(bool, counts)), len(counts)), omitted=sum(counts))
