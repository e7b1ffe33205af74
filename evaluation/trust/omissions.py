"""What shown answers leave out."""

from __future__ import annotations

from collections.abc import Sequence

from medagent.evaluation.metrics import Omissions
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.statistics import Accuracy
from medagent.evidence.answers import checked, left_out
from medagent.evidence.check import EvidenceCheck


def omissions_in(predictions: Sequence[Prediction]) -> Omissions:
    """Count over the answers that serving would show by default, one per question."""
    check = EvidenceCheck()
    plain = [each.rollout for each in predictions if not each.rotation and not each.rollout.sample]
    answers = [(rollout, checked(rollout, check)) for rollout in plain if rollout.answer and rollout.hits]
    counts = [len(left_out(rollout, answer, check)) for rollout, answer in answers if not answer.withheld]
    return Omissions(Accuracy.of(sum(map(bool, counts)), len(counts)), sum(counts))
