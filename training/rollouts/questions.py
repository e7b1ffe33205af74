"""What an iteration asks, and noise in its searches. All follows from the seed and the iteration's number."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import chain, cycle

from medagent.agent import Job
from medagent.errors import ConfigError, require
from medagent.evaluation.modes import evidence_named, gold_passages
from medagent.evaluation.trust.injections import injections, with_injection
from medagent.retrieval.retriever import Retriever
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


@dataclass(frozen=True)
class NoisyRetrieval:
    """Shares of an iteration's questions, drawn anew in each iteration; a question's samples have the same.

    `withheld`: no search shows the documents with the evidence. An agent that may abstain learns to, where a wrong
    answer costs more than none. `injected`: the first search shows a passage that gives orders. Those with an odd
    number are never planted, so that a report can tell whether an agent resists what it was not trained on.
    """

    withheld: float = 0.0
    injected: float = 0.0

    def __post_init__(self) -> None:
        for name, share in (("withheld", self.withheld), ("injected", self.injected)):
            require(0 <= share <= 1, f"data.noisy_retrieval.{name}", share, "a share from 0 to 1")

    def check(self, questions: list[Question]) -> None:
        """Raise ConfigError if evidence is to be withheld and no question names any."""
        if self.withheld and not any(question.gold_passage_ids for question in questions):
            raise ConfigError(
                f"data.noisy_retrieval.withheld: found {self.withheld}, and no question names a gold passage to "
                "withhold. Set it to 0, or give questions with gold_passage_ids."
            )

    def with_noise(self, job: Job, *, seed: int, iteration: int, retriever: Retriever) -> Job:
        """The job of an iteration as it is asked."""
        name = f"{seed}|{iteration}"
        withheld = withheld_from(job.question, self.withheld, name, retriever)
        drawn = _draw(f"injected|{name}|{job.question.id}")
        job = replace(job, withheld=withheld) if withheld else job
        return with_injection(job, 2 * int(drawn * 2**32) % len(injections())) if drawn < self.injected else job


def withheld_from(question: Question, share: float, seed: int | str, retriever: Retriever) -> frozenset[str]:
    """Gold passages, with their indexed documents, of a question that `seed` draws; else nothing."""
    if not share or _draw(f"withheld|{seed}|{question.id}") >= share:
        return frozenset()
    return evidence_named(question, gold_passages(retriever, [question], ()))


def _draw(name: str) -> float:
    """A number in [0, 1) that follows from the name."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big") / 2**64
