"""Which questions an iteration asks: they follow from the seed and its number, so a resumed run asks the same ones."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, cycle

from medagent.types import Question


@lru_cache(maxsize=4)  # an iteration may end one pass and begin the next, and draw others
def order_of_pass(seed: int, number: int, total: int) -> tuple[int, ...]:
    """The order of all `total` questions in a pass over them, made by one shuffle."""
    order = list(range(total))
    random.Random(f"{seed}:{number}").shuffle(order)
    return tuple(order)


def draws(
    asked: Sequence[Question], questions: Sequence[Question], *, seed: int, iteration: int
) -> Iterator[tuple[Question, int]]:
    """What an iteration asks, then others of `questions` without end, each with how often it came before in it.

    Repeats are other samples, not copies.
    """

    def others() -> Iterator[Question]:
        known = {question.id for question in asked}
        order = [questions[at] for at in order_of_pass(seed, -1 - iteration, len(questions))]
        yield from cycle(sorted(order, key=lambda each: each.id in known))

    seen: Counter[str] = Counter()
    for question in chain(asked, others()):
        yield question, seen[question.id]
        seen[question.id] += 1
