"""Measures agents: benchmarks, ways to ask, grading, metrics with their uncertainty, comparisons.

>>> from medagent.evaluation import compare, evaluate                       # doctest: +SKIP
>>> before = evaluate("starter", "mine.jsonl", index="indexes/mine")        # doctest: +SKIP
>>> after = evaluate("runs/mine/agent", "mine.jsonl")                       # doctest: +SKIP
>>> after.accuracy.accuracy, compare(before, after).p_mcnemar               # doctest: +SKIP

Names are imported when they are first used, so `import medagent.evaluation` loads no torch.
"""

from typing import TYPE_CHECKING

from medagent.lazy import homes_in, lazy

if TYPE_CHECKING:
    from medagent.evaluation.benchmarks.source import BenchmarkSource
    from medagent.evaluation.comparison import compare, compare_over_seeds
    from medagent.evaluation.evaluator import Evaluation, EvaluationCallback, evaluate
    from medagent.evaluation.grading.grade import Grade, Verdict, grade
    from medagent.evaluation.statistics import Accuracy, PairedComparison, SeedsComparison

__all__ = [
    "Accuracy",
    "BenchmarkSource",
    "Evaluation",
    "EvaluationCallback",
    "Grade",
    "PairedComparison",
    "SeedsComparison",
    "Verdict",
    "compare",
    "compare_over_seeds",
    "evaluate",
    "grade",
]

__getattr__, __dir__ = lazy(__name__, homes_in(__name__, __file__))
