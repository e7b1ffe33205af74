"""Makes questions from an index: a model writes drafts about its passages, and checks keep the good ones."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.contamination import contamination
from medagent.evaluation.question_making.checks import Checks, Draft, words_of
from medagent.evaluation.question_making.writer import Writer
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question

BATCH = 64  # passages whose drafts are made and searched together
REPEATED = "the same question was made before"
CONTAMINATED = "near-duplicate of a test question"
CONFLICT = "the same question has another answer elsewhere"
ALIKE_ANOTHER = "near-duplicate of another question"
TOO_OFTEN = "its answer has enough questions"
OVER_LIMIT = "left out by --limit"
ALIKE = 0.8  # Jaccard similarity of the questions' tokens from which two are alike
Progress = Callable[[str, int, int], None]  # stage, done, total (passages)


@dataclass(frozen=True)
class Making:
    """Settings of question making; see `medagent questions make`."""

    top_k: int = 10
    per_answer: int = 50
    limit: int = 0
    seed: int = 0
    passages: int = 0

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.per_answer < 1 or min(self.limit, self.passages) < 0:
            raise InputError(
                f"questions: found --top_k {self.top_k}, --per_answer {self.per_answer}, --limit {self.limit} and "
                f"--passages {self.passages}, wanted at least 1 for the first two and at least 0 for the others."
            )


@dataclass
class Found:
    """Questions that passed the checks, the number of drafts, and how many were dropped for each reason."""

    questions: list[Draft] = field(default_factory=list)
    drafts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def make_questions(
    index: HybridRetriever, writer: Writer, making: Making, progress: Progress, *, tests: Sequence[Question] = ()
) -> Found:
    """Make questions of an index's passages. None nearly repeats a question of `tests`."""
    analyser = index.lexical.analyser
    checks = Checks(analyser, len(index), index.lexical.num_passages_with)
    passages = index.passages.drawn(making.passages, making.seed) if making.passages else index.passages
    found = find_questions(index, writer, checks, passages, top_k=making.top_k, progress=progress)
    clean = uncontaminated(found.questions, tests)
    repeated = Counter({CONTAMINATED: len(found.questions) - len(clean)})
    bounds = {"seed": making.seed, "per_answer": making.per_answer, "limit": making.limit}
    chosen, dropped = select(clean, **bounds, analyser=analyser)
    return Found(chosen, found.drafts, dropped + repeated + found.dropped)


def uncontaminated(drafts: Sequence[Draft], tests: Sequence[Question]) -> list[Draft]:
    """The drafts without those that a test question nearly repeats."""
    left = {str(at): each for at, each in enumerate(drafts)}
    # A test question names the closest text alone: the next one comes to light without that.
    while named := contamination(tests, ((at, each.question) for at, each in left.items())).near_duplicates:
        left = {at: each for at, each in left.items() if at not in {pair.train_id for pair in named}}
    return list(left.values())


def find_questions(
    index: Retriever,
    writer: Writer,
    checks: Checks,
    passages: Sequence[Passage],
    *,
    top_k: int,
    progress: Progress = lambda stage, done, total: None,
) -> Found:
    """Make and check the questions of passages. Search must find a question's passage among `top_k`."""
    found, asked, total = Found(), set[str](), len(passages)
    for start in range(0, total, BATCH):
        drafts: list[Draft] = []
        for draft in writer.drafts(passages[start : start + BATCH]):
            found.drafts += 1
            if isinstance(draft, str):
                found.dropped[draft] += 1
            elif reason := checks.before_search(draft) or (REPEATED if draft.question in asked else ""):
                found.dropped[reason] += 1
            else:
                asked.add(draft.question)
                drafts.append(draft)
        results = index.search([draft.question for draft in drafts], top_k=top_k) if drafts else []
        checked = [checks.after_search(draft, hits) for draft, hits in zip(drafts, results, strict=True)]
        found.dropped.update(each for each in checked if isinstance(each, str))
        drafts = [each for each in checked if isinstance(each, Draft)]
        reasons = writer.reasons(drafts)
        found.questions += [each for each, reason in zip(drafts, reasons, strict=True) if not reason]
        found.dropped.update(filter(None, reasons))
        progress("questions", min(start + BATCH, total), total)
    return found


def normal(text: str) -> str:
    """A text as answers are compared: its words in lower case."""
    return " ".join(words_of(text))


def select(
    candidates: Sequence[Draft], *, seed: int, per_answer: int, limit: int = 0, analyser: Analyser
) -> tuple[list[Draft], Counter[str]]:
    """The candidates taken, in the order of the seed, and how many were left out for which reason.

    `per_answer` bounds the questions of one answer, and `limit` all of them; 0 takes all. The order depends on the seed
    and the questions alone, so it is the same on any machine.
    """
    counts: Counter[str] = Counter()
    shuffled = sorted(candidates, key=lambda each: _digest(f"{seed}\n{each.question}\n{each.answer}"))
    tokens = {each.question: frozenset(analyser.tokens(each.question)) for each in shuffled}
    answers_of = defaultdict(set)
    for each in shuffled:
        answers_of[tokens[each.question]].add(normal(each.answer))
    taken: list[Draft] = []
    by_answer: dict[str, list[frozenset[str]]] = defaultdict(list)
    for each in shuffled:
        asked, answer = tokens[each.question], normal(each.answer)
        reasons = {
            CONFLICT: len(answers_of[asked]) > 1 and not _one_in_all(answers_of[asked]),
            ALIKE_ANOTHER: any(_similar(asked, other) for other in by_answer[answer]),
            TOO_OFTEN: len(by_answer[answer]) >= per_answer,
            OVER_LIMIT: limit and len(taken) >= limit,
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), ""):
            counts[reason] += 1
        else:
            taken.append(each)
            by_answer[answer].append(asked)
    return taken, counts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    common = len(one & other)
    return common >= ALIKE * (len(one) + len(other) - common)


def _one_in_all(answers: set[str]) -> bool:
    """Whether the shortest answer stands in all the others, as "astrocytoma" in "an astrocytoma tumor"."""
    shortest = f" {min(answers, key=len)} "
    return all(shortest in f" {answer} " for answer in answers)


def question_row(draft: Draft) -> dict[str, Any]:
    """A line of `JsonlBenchmark`.

    The id depends on question and answer alone. `meta` keeps the source, its licence where it is known, the passage's
    title and the sentence.
    """
    made = _digest(f"{draft.question}\n{draft.answer}")[:12]
    meta = {name: getattr(draft.passage, name) for name in ("source", "licence", "title")}
    return {
        "id": f"made:{made}",
        "question": draft.question,
        "answer": draft.answer,
        "gold_passage_ids": list(draft.gold_ids),
        "meta": {name: text for name, text in {**meta, "sentence": draft.sentence}.items() if text},
    }
