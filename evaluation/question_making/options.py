"""Options of the same kind: the answer among answers of other questions, so that no option stands out by its form.

None of the others stands in a passage that search finds for the question. None shares more words with the question
than the answer, or fewer. They are drawn from the answers as often as those occur, so a frequent answer is as often a
wrong option as a right one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from medagent.evaluation.question_making.checks import holds
from medagent.evaluation.question_making.drafts import Candidate
from medagent.evaluation.question_making.selection import normal
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.evaluation.question_making.text import words_of

TOO_FEW = "too few options of its kind"
MOST_FREQUENT = "its answer is by far the most frequent option"
DRAWN = 60  # answers looked at for one option
FREQUENT = 3.0  # times the others' largest count from which the answer stands out


def with_options(
    candidates: Sequence[Candidate],
    size: int,
    *,
    statistics: CorpusStatistics,
    texts_of: Callable[[Sequence[str]], str],
    seed: int,
) -> tuple[list[Candidate], Counter[str]]:
    """The candidates that get `size` options, and how many do not for which reason.

    `texts_of` gives the text of passages by their ids.
    """
    pools: dict[str, list[str]] = defaultdict(list)
    for each in candidates:
        pools[each.family].append(each.answers[0])
    often = Counter(normal(each.answers[0]) for each in candidates)
    choices: list[Candidate] = []
    counts: Counter[str] = Counter()
    for each in candidates:
        chance = random.Random(f"{seed}\n{each.question}")
        others = _others(each, pools[each.family], size - 1, statistics, texts_of(each.hit_ids), chance)
        if len(others) < size - 1:
            counts[TOO_FEW] += 1
        elif often[normal(each.answers[0])] > FREQUENT * max(often[normal(other)] for other in others):
            counts[MOST_FREQUENT] += 1
        else:
            options = [each.answers[0], *others]
            chance.shuffle(options)
            choices.append(replace(each, options=tuple(options)))
    return choices, counts


def _others(
    candidate: Candidate,
    pool: Sequence[str],
    number: int,
    statistics: CorpusStatistics,
    found: str,
    chance: random.Random,
) -> list[str]:
    """Wrong options, the nearest in form first among those drawn; fewer than `number` where the pool has none."""
    answer = candidate.answers[0]
    tokens = statistics.analyser.tokens
    asked = set(tokens(candidate.question))
    common = len(asked.intersection(tokens(answer)))
    said = f" {normal(found)} "  # once: it is long
    drawn = list(dict.fromkeys(chance.choices(pool, k=DRAWN)))
    fitting = [
        other
        for other in drawn
        if len(asked.intersection(tokens(other))) == common
        and f" {normal(other)} " not in said
        and not any(holds(other, right) or holds(right, other) for right in candidate.answers)
    ]
    nearest = sorted(fitting, key=lambda other: _distance(other, answer))
    some = nearest[: 2 * number]
    chance.shuffle(some)
    kept: list[str] = []
    for other in some:
        if len(kept) < number and not any(holds(other, one) or holds(one, other) for one in kept):
            kept.append(other)
    return kept


def _distance(one: str, other: str) -> tuple[int, int]:
    """How different two answers look: in capitals and digits first, then in words."""
    looks = [(text[:1].isupper(), text.isupper(), any(char.isdigit() for char in text)) for text in (one, other)]
    differing = sum(a != b for a, b in zip(*looks, strict=True))
    return differing, abs(len(words_of(one)) - len(words_of(other)))
