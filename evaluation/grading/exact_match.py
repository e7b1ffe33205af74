"""Exact match and F1 of open answers under SQuAD's normalisation, the best of several right answers.

These two are for comparison with published numbers. The rewards and the verdict use `open_answers.answer_tokens`,
which keeps the signs that decide in medicine ("Rh+" is not "Rh-").
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_tokens(text: str) -> list[str]:
    """Lower case, without punctuation and articles, split at spaces (SQuAD's evaluation, arXiv 1606.05250)."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Whether the answer equals one of the right ones."""
    return any(squad_tokens(answer) == squad_tokens(gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best token F1 with one of the right answers."""
    return max(overlap_f1(squad_tokens(answer), squad_tokens(gold)) for gold in golds)


def overlap_f1(said: list[str], gold: list[str]) -> float:
    """The F1 of words as multisets; no words are equal to no words."""
    if not said or not gold:
        return float(said == gold)
    return 2 * sum((Counter(said) & Counter(gold)).values()) / (len(said) + len(gold))
