"""The measures of open answers and of BioASQ's question types, each with its 95% interval.

Those of BioASQ are the challenge's own (task B, phase B; BMC Bioinformatics 2015, 16:138):

factoid   strict accuracy: the first answer is right. Lenient accuracy: one of the first five is. MRR: the mean of one
          over the place of the first right one, 0 where none of the five is right.
list      precision, recall and F1 of the entries of a question, averaged over questions
yes/no    accuracy, and macro F1: the mean of the F1 of "yes" and the F1 of "no"

The challenge compares names letter by letter; here `medagent.evaluation.grading.open_answers.same` compares them.
SQuAD's exact match and F1 are for comparison with published numbers: their tokens lose signs ("Rh+" is "Rh-").
"""

import re
import string
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from medagent.answer_forms import without_citations
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.grading.open_answers import contains, first_answer, list_score, overlap_f1, rank_of_right
from medagent.evaluation.statistics import Estimate
from medagent.types import LETTERS, Rollout, StopReason

_PUNCTUATION = str.maketrans("", "", string.punctuation)
MOST_EXTRA = 5  # words that an answer may have beside the right one it contains
YES_NO = ("yes", "no")
MEASURES: dict[str, str] = {  # in the order of a report
    "exact_match": "exact match (SQuAD)",
    "f1": "F1 (SQuAD)",
    "contains_answer": f"contains the answer (at most {MOST_EXTRA} words more)",
    "factoid_strict": "factoid: strict accuracy",
    "factoid_lenient": "factoid: lenient accuracy (of five)",
    "factoid_mrr": "factoid: mean reciprocal rank",
    "list_precision": "list: mean precision",
    "list_recall": "list: mean recall",
    "list_f1": "list: mean F1",
    "yes_no_accuracy": "yes/no: accuracy",
    "yes_no_macro_f1": "yes/no: macro F1",
}


def open_measures(rollouts: Sequence[Rollout]) -> dict[str, Estimate]:
    """The measures of `MEASURES` that these rollouts' questions have; an answer that is missing counts as wrong."""
    asked = [(r.question, (r.answer or "") if r.stop_reason is StopReason.ANSWERED else "") for r in rollouts]
    texts = [(q, answer) for q, answer in asked if q.answer and not q.options and q.form in ("text", "ranked")]
    factoids = [(question, answer) for question, answer in texts if question.form == "ranked"]
    lists = [list_score(answer, question.items) for question, answer in asked if question.form == "list"]
    found: dict[str, Estimate] = {}
    if texts:
        firsts = [(first_answer(question, answer), question.golds) for question, answer in texts]
        found["exact_match"] = Estimate.share([bool(answer) and exact_match(answer, golds) for answer, golds in firsts])
        # SQuAD's F1 of no words with no words is 1, and "A" has none.
        found["f1"] = Estimate.mean([f1(answer, golds) if answer else 0.0 for answer, golds in firsts])
        found["contains_answer"] = Estimate.share([contains(*pair, most_extra_words=MOST_EXTRA) for pair in firsts])
    if factoids:
        ranks = [rank_of_right(without_citations(answer), question.golds) for question, answer in factoids]
        found["factoid_strict"] = Estimate.share([rank == 1 for rank in ranks])
        found["factoid_lenient"] = Estimate.share([rank is not None for rank in ranks])
        found["factoid_mrr"] = Estimate.mean([1 / rank if rank else 0.0 for rank in ranks])
    for name in ("precision", "recall", "f1") if lists else ():
        found[f"list_{name}"] = Estimate.mean([getattr(score, name) for score in lists])
    yes_no = sorted(YES_NO)
    decided = [each for each in rollouts if each.question.form == "text"]
    decisions = [_decision(each) for each in decided if sorted(map(str.lower, each.question.options)) == yes_no]
    if decisions:
        found["yes_no_accuracy"] = Estimate.share([gold == chosen for gold, chosen in decisions])
        found["yes_no_macro_f1"] = macro_f1(decisions)
    return found


def _decision(rollout: Rollout) -> tuple[str, str | None]:
    """The right decision and the one that the answer names, None where it names none."""
    question, letter = rollout.question, grade(rollout).letter
    words = dict(zip(LETTERS, map(str.lower, question.options), strict=False))
    return words[question.answer], words[letter] if letter else None


def macro_f1(decisions: Sequence[tuple[str, str | None]], *, repeats: int = 10_000, seed: int = 0) -> Estimate:
    """The mean of the F1 of "yes" and the F1 of "no" over (right, chosen) pairs, with a bootstrap over questions.

    A missing choice is a false negative of its class. A class that is neither right nor chosen anywhere has F1 0.
    """
    kinds = [(gold, chosen) for gold in YES_NO for chosen in (*YES_NO, None)]
    counts = np.array([[decisions.count(kind) for kind in kinds]], dtype=np.float64)
    drawn = np.random.default_rng(seed).multinomial(len(decisions), counts[0] / len(decisions), size=repeats)
    low, high = np.percentile(_macro(drawn.astype(np.float64)), [2.5, 97.5])
    return Estimate(float(_macro(counts)[0]), float(low), float(high), len(decisions))


def _macro(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] macro F1 of [N, 6] counts of yes-yes, yes-no, yes-none, no-yes, no-no, no-none (right, then chosen)."""
    both, right = counts[:, [0, 4]], np.stack([counts[:, :3].sum(axis=1), counts[:, 3:].sum(axis=1)], axis=1)
    total = right + counts[:, [0, 1]] + counts[:, [3, 4]]  # right, and chosen
    shares: NDArray[np.float64] = np.divide(2 * both, total, out=np.zeros_like(both), where=total > 0)
    return (shares[:, 0] + shares[:, 1]) / 2


def squad_tokens(text: str) -> list[str]:
    """Lower case, without punctuation and articles, split at spaces (SQuAD's evaluation, arXiv 1606.05250)."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the answer equals one of the right ones."""
    return any(squad_tokens(answer) == squad_tokens(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best token F1 with one of the right answers."""
    return max(overlap_f1(squad_tokens(answer), squad_tokens(gold)) for gold in golds)
