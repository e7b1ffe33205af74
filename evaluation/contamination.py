"""Were the test questions in the training data? Near-duplicates by common word 13-grams decide.

A test question's *overlap* with a text is the share of its word 13-grams that occur there. A question of fewer words is
one gram. The question is a near-duplicate where its overlap with one training text reaches `threshold`. It must also
share five grams with that text, or all of its own: questions made from one template share a few.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from medagent.errors import InputError
from medagent.types import Question

NGRAM = 13
THRESHOLD = 0.5
FEWEST = 5
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Duplicate:
    """A test question and the training text that it nearly repeats."""

    test_id: str
    train_id: str
    overlap: float


@dataclass(frozen=True)
class Contamination:
    """Counts over the test questions, and the near-duplicates, closest first."""

    tested: int
    texts: int
    near_duplicates: tuple[Duplicate, ...]

    @property
    def share(self) -> float:
        """Share of the test questions that are near-duplicates."""
        return len(self.near_duplicates) / self.tested if self.tested else 0.0


def contamination(
    tests: Sequence[Question], texts: Iterable[tuple[str, str]], *, threshold: float = THRESHOLD
) -> Contamination:
    """Compare test questions with (id, text) pairs, which may be a stream: memory grows with the tests alone."""
    if not 0 < threshold <= 1:
        raise InputError(f"threshold {threshold}: wanted a share above 0, at most 1.")
    grams_of = [ngrams(question.text) for question in tests]
    owners: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, gram in ((number, gram) for number, grams in enumerate(grams_of) for gram in grams):
        owners[gram].append(number)
    sizes = {len(gram) for gram in owners}
    best: dict[int, Duplicate] = {}
    texts_met = 0
    for name, text in texts:
        texts_met += 1
        words = _WORD.findall(text.lower())
        found: Counter[int] = Counter()
        # A short question is one gram. Inside a long text it would match by chance.
        for size in sizes & {NGRAM, len(words)}:
            for gram in _grams(words, size):
                found.update(owners.get(gram, ()))
        for number, common in found.items():
            overlap = common / len(grams_of[number])
            enough = common >= min(FEWEST, len(grams_of[number]))
            if enough and overlap >= threshold and (number not in best or overlap > best[number].overlap):
                best[number] = Duplicate(tests[number].id, name, overlap)
    ordered = tuple(sorted(best.values(), key=lambda pair: (-pair.overlap, pair.test_id)))
    return Contamination(len(tests), texts_met, ordered)


def ngrams(text: str) -> set[tuple[str, ...]]:
    """The word n-grams of a text in lower case. A shorter text is one gram, and one without words has none."""
    words = _WORD.findall(text.lower())
    return _grams(words, min(NGRAM, len(words))) if words else set()


def _grams(words: Sequence[str], size: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def question_texts(questions: Iterable[Question]) -> Iterable[tuple[str, str]]:
    """(id, text) of questions, as `contamination` takes them."""
    return ((question.id, question.text) for question in questions)


def refuse_contaminated(report: Contamination, *, allowed_share: float, what: str) -> None:
    """Raise `InputError` where more than `allowed_share` of the test questions are near-duplicates."""
    if report.share > allowed_share:
        first = report.near_duplicates[0]
        raise InputError(
            f"{what}: {len(report.near_duplicates)} of {report.tested} test questions ({report.share:.2%}) are "
            f"near-duplicates of training texts (such as {first.test_id} and {first.train_id}: {first.overlap:.0%} "
            f"of its {NGRAM}-grams), allowed {allowed_share:.2%}. Take them out of the training data; medagent "
            "contamination lists them. Or raise allowed_contamination, and say so with your results."
        )
