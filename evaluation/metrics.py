"""Metrics of a set of rollouts, with uncertainty."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import multimode
from typing import Any

from medagent.evaluation import statistics
from medagent.evaluation.grading.citations import NO_PASSAGES, Grounding, claim_of, ground
from medagent.evaluation.grading.grade import Grade, Verdict, grade
from medagent.evaluation.grading.numbers import numbers_in
from medagent.evaluation.grading.open_answers import answer_tokens, first_answer
from medagent.evaluation.modes import Mode, orders
from medagent.evaluation.open_measures import open_measures
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.search_recall import report_recall
from medagent.evaluation.statistics import Accuracy, Calibration, Estimate
from medagent.evaluation.trust.injections import Obeyed, obedience
from medagent.evidence.drugs_and_doses import Named, named_in
from medagent.evidence.rules import LexicalRule
from medagent.evidence.support import SupportJudge
from medagent.types import LETTERS, Question, Rollout, StopReason


@dataclass(frozen=True)
class Trust:
    """Figures over a set of rollouts.

    `coverage` is the share of questions with an answer, parsed or not, that is no abstention. `selective_accuracy` is
    the accuracy among those; one less it is the selective risk (Geifman and El-Yaniv, arXiv 1705.08500).

    `naming` counts the answers that name a drug or a number, with the text of the option they choose.
    `unsupported_drugs`, `unsupported_numbers` and `unsupported_doses` count those of them that name one that no passage
    shown contains. `obeyed` are the injections planted, by family.
    """

    coverage: Accuracy
    selective_accuracy: Accuracy
    naming: int
    unsupported_drugs: int
    unsupported_numbers: int
    unsupported_doses: int
    obeyed: tuple[Obeyed, ...]


@dataclass(frozen=True)
class Summary:
    """The figures of a set of rollouts.

    `macro_average` is over `by_type`, None for one subject. `unparsed` answers name no option or several; `multiple`
    counts the latter. `abstained` decline to choose, `refused` of them to answer at all. `no_answer` wrote none,
    `truncated` ended at a limit, `too_long` of them with a prompt that does not fit. `errors` are questions whose
    endpoint or search failed, or whose endpoint filtered them. `measures` are those of open answers and of BioASQ's
    question types, by their names in `medagent.evaluation.open_measures`.
    """

    overall: Accuracy
    lenient_accuracy: float
    by_type: dict[str, Accuracy]
    macro_average: Estimate | None
    unparsed: int
    multiple: int
    abstained: int
    refused: int
    no_answer: int
    errors: int
    truncated: int
    too_long: int
    searches_per_question: float
    cited_share: float
    measures: dict[str, Estimate]
    grounding: Grounding
    trust: Trust
    stop_reasons: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with the overall accuracy's fields at the top."""
        row = asdict(self)
        return {**row.pop("overall"), **row}


def summarize(rollouts: Sequence[Rollout], judge: SupportJudge = LexicalRule()) -> Summary:
    """Grade and count. `judge` judges whether cited passages state what is said."""
    grades = [grade(rollout) for rollout in rollouts]
    count = max(1, len(rollouts))
    marks: dict[str, list[bool]] = defaultdict(list)
    for rollout, result in zip(rollouts, grades, strict=True):
        marks[rollout.question.kind].append(result.correct)
    verdicts = Counter(result.verdict for result in grades)
    return Summary(
        overall=Accuracy.of(sum(result.correct for result in grades), len(grades)),
        lenient_accuracy=sum(result.lenient_correct for result in grades) / count,
        by_type={kind: Accuracy.of(sum(marks[kind]), len(marks[kind])) for kind in sorted(marks)},
        macro_average=statistics.macro_average([marks[kind] for kind in sorted(marks)]) if len(marks) > 1 else None,
        unparsed=verdicts[Verdict.UNPARSED] + verdicts[Verdict.MULTIPLE],
        multiple=verdicts[Verdict.MULTIPLE],
        abstained=verdicts[Verdict.ABSTAINED],
        refused=sum(result.refused for result in grades),
        no_answer=verdicts[Verdict.NO_ANSWER],
        errors=verdicts[Verdict.ERROR],
        truncated=sum(rollout.stop_reason.truncated for rollout in rollouts),
        too_long=sum(map(prompt_too_long, rollouts)),
        searches_per_question=sum(rollout.num_searches for rollout in rollouts) / count,
        cited_share=sum(bool(result.cited) for result in grades) / count,
        measures=open_measures(rollouts),
        grounding=ground(rollouts, judge),
        trust=_trust(rollouts, grades),
        stop_reasons=dict(Counter(rollout.stop_reason.value for rollout in rollouts)),
    )


def _trust(rollouts: Sequence[Rollout], grades: Sequence[Grade]) -> Trust:
    silent = (Verdict.ABSTAINED, Verdict.NO_ANSWER, Verdict.ERROR)
    covered = [found for found in grades if found.verdict not in silent]
    named = [_unsupported_in(*each) for each in zip(rollouts, grades, strict=True) if each[0].answer is not None]
    return Trust(
        coverage=Accuracy.of(len(covered), len(grades)),
        selective_accuracy=Accuracy.of(sum(found.correct for found in covered), len(covered)),
        naming=sum(bool(said) for said, _ in named),
        unsupported_drugs=sum(bool(beyond.drugs) for _, beyond in named),
        unsupported_numbers=sum(bool(beyond.numbers) for _, beyond in named),
        unsupported_doses=sum(bool(beyond.doses) for _, beyond in named),
        obeyed=obedience(rollouts),
    )


def _unsupported_in(rollout: Rollout, found: Grade) -> tuple[Named, Named]:
    """The drugs and numbers of an answer, and those of them that no passage shown contains."""
    answer = rollout.answer or ""
    claim = claim_of(rollout.question, found.letter, answer) or ""
    named = named_in(f"{answer}\n{claim}")
    return named, named.beyond(named_in("\n".join(hit.passage.indexed_text for hit in rollout.hits)))


def prompt_too_long(rollout: Rollout) -> bool:
    """Whether the prompt, with any passages given in it, left no room for an answer."""
    return rollout.stop_reason is StopReason.MAX_TOTAL_TOKENS and not any(turn.text for turn in rollout.turns)


@dataclass(frozen=True)
class Sampling:
    """Figures of several samples per question: the mean, whose interval resamples questions, vote, and pass@k.

    A tied vote counts as the share of its winners that are right, which is what drawing one of them scores on average.
    `tied` is the share of the questions with such a vote.
    """

    samples: int
    mean_accuracy: float
    ci_low: float
    ci_high: float
    majority_vote: float
    tied: float
    pass_at_k: dict[int, float]


@dataclass(frozen=True)
class Rotations:
    """Cyclic rotations of the options: each one's accuracy, and the share of questions whose choice changes.

    They are of the `n` questions with the most frequent number of rotations, so every rotation covers the same ones.
    `in_place` questions have options that speak of others ("Both A and B", "None of the above") and stay in place.
    """

    accuracy: tuple[float, ...]
    changed: float
    n: int
    in_place: int


@dataclass(frozen=True)
class ModeReport:
    """All figures of one mode. `error_reasons` has (question, reason) of each prediction that ended in an error.

    `omitting` is the share of shown answers that leave out a warning or advice on their subject, in what was read, and
    `omitted` the number of such sentences, three per answer at most. What serving would withhold is not shown.
    """

    summary: Summary
    sampling: Sampling | None
    rotations: Rotations | None
    calibration: Calibration | None
    selective: tuple[tuple[float, float], ...]
    search_recall: dict[str, Any] | None
    error_reasons: tuple[tuple[str, str], ...]
    omitting: Accuracy | None = None
    omitted: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        row = asdict(self)
        del row["summary"]
        return {**self.summary.to_json(), **row}


def report_mode(predictions: Sequence[Prediction], judge: SupportJudge = LexicalRule()) -> ModeReport:
    """The report of one mode's predictions. The summary uses one answer per question: rotation 0, sample 0."""
    plain = [prediction for prediction in predictions if prediction.rotation == 0]
    sure = [p for p in plain if p.confidence is not None]
    confidences = [p.confidence or 0.0 for p in sure]
    right = [grade(p.rollout).correct for p in sure]
    summary = summarize([each.rollout for each in plain if each.rollout.sample == 0], judge)
    if all(p.mode == Mode.CLOSED_BOOK for p in predictions):
        summary = replace(summary, grounding=NO_PASSAGES)
    return ModeReport(
        summary=summary,
        sampling=_sampling(plain),
        rotations=_rotations(predictions),
        calibration=statistics.calibration(confidences, right) if sure else None,
        selective=tuple(statistics.selective_accuracy(confidences, right, asked=len(plain))),
        search_recall=report_recall([p.recall for p in plain if p.rollout.sample == 0 and p.recall is not None]),
        error_reasons=tuple((p.rollout.question.id, p.rollout.error) for p in predictions if p.rollout.error),
    )


def _sampling(predictions: Sequence[Prediction]) -> Sampling | None:
    groups: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in sorted((prediction.rollout for prediction in predictions), key=lambda rollout: rollout.sample):
        groups[rollout.question.id].append(rollout)
    samples = min(map(len, groups.values()), default=0)
    if samples < 2:
        return None
    grades = [[grade(rollout) for rollout in group] for group in groups.values()]
    right = [sum(result.correct for result in group) for group in grades]
    means = [count / len(group) for count, group in zip(right, grades, strict=True)]
    winners = [_elected(rollouts, read) for rollouts, read in zip(groups.values(), grades, strict=True)]
    low, high = statistics.bootstrap_mean(means)
    return Sampling(
        samples=samples,
        mean_accuracy=sum(means) / len(means),
        ci_low=low,
        ci_high=high,
        majority_vote=sum(sum(marks) / len(marks) for marks in winners if marks) / len(grades),
        tied=sum(len(marks) > 1 for marks in winners) / len(grades),
        pass_at_k={
            k: sum(statistics.pass_at_k(count, len(group), k) for count, group in zip(right, grades, strict=True))
            / len(grades)
            for k in range(1, samples + 1)
        },
    )


def _elected(rollouts: Sequence[Rollout], grades: Sequence[Grade]) -> list[bool]:
    """Whether each most frequent answer is right. Letters are counted, or the first open answers by their words."""
    question = rollouts[0].question
    votes = [result.letter for result in grades]
    if not question.options:
        votes = [_vote(question, r.answer or "") for r in rollouts]
    return [grades[votes.index(elected)].correct for elected in multimode(filter(None, votes))]


def _vote(question: Question, answer: str) -> str | None:
    """What equal open answers have in common: their words, or their number in its base unit."""
    if question.form == "number":
        return next((quantity.base for quantity in numbers_in(answer)), None)
    return " ".join(answer_tokens(first_answer(question, answer))) or None


def _rotations(predictions: Sequence[Prediction]) -> Rotations | None:
    by_question: dict[str, dict[int, frozenset[str] | None]] = defaultdict(dict)
    by_rotation: dict[int, list[bool]] = defaultdict(list)
    asked = {p.rollout.question.id: p.rollout.question for p in predictions if not p.rotation}
    sizes = Counter(size for question in asked.values() if (size := orders(question)) > 1)
    usual = max(sizes, key=lambda size: sizes[size], default=0)
    for prediction in predictions:
        question = prediction.rollout.question
        if prediction.rollout.sample or orders(question) != usual:
            continue
        result = grade(prediction.rollout)
        letters = result.letter.split(", ") if result.letter else ()
        chosen = frozenset(question.options[LETTERS.index(letter)] for letter in letters) or None
        by_question[question.id][prediction.rotation] = chosen
        by_rotation[prediction.rotation].append(result.correct)
    if len(by_rotation) < 2:
        return None
    rotated = [chosen for chosen in by_question.values() if len(chosen) > 1]
    return Rotations(
        accuracy=tuple(sum(marks) / len(marks) for _, marks in sorted(by_rotation.items())),
        changed=sum(len(set(chosen.values())) > 1 for chosen in rotated) / len(rotated),
        n=len(rotated),
        in_place=sum(orders(question) < len(question.options) for question in asked.values()),
    )
