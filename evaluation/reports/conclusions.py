"""The conclusions that an evaluation allows and forbids, in one sentence each."""

from collections.abc import Mapping, Sequence

from medagent.evaluation.metrics import ModeReport
from medagent.evaluation.modes import Mode, baselines
from medagent.evaluation.statistics import Accuracy
from medagent.types import Question

FEW = 100  # questions, below which an interval is wide
UNREAD = 0.05  # share of replies that are not read, from which it matters


def conclusions(
    reports: Mapping[Mode, ModeReport], questions: Sequence[Question], *, benchmark: str, trained_here: bool
) -> list[str]:
    """The sentences, of the first mode and of those about trust. `trained_here`: an agent that this project trained."""
    mode, report = next(iter(reports.items()))
    overall = report.summary.overall
    asked = f"On {overall.n} questions of {benchmark}, in mode {mode.value}"
    others = f"for other questions of this kind expect {100 * overall.ci_low:.1f} to {100 * overall.ci_high:.1f}%"
    found = [f"{asked}, {overall.accuracy:.1%} are answered right; {others} (95% interval)."]
    majority = baselines(questions).get("majority")
    if isinstance(majority, Accuracy):
        better = "better than" if overall.ci_low > majority.accuracy else "not shown to be better than"
        always = f"naming the most frequent letter every time, which is right for {majority.accuracy:.1%}"
        found.append(f"That is {better} {always}.")
    unread = (report.summary.unparsed + report.summary.no_answer) / max(1, overall.n)
    if unread > UNREAD:
        what = "name no one option" if any(question.options for question in questions) else "give no answer"
        found.append(f"{unread:.0%} of the replies {what} and count as wrong, so the model may know more than this.")
    if errors := report.summary.errors:
        found.append(f"{errors} of {overall.n} questions ended in errors and count as wrong. Ask them again.")
    if overall.n < FEW:
        found.append(f"{overall.n} questions are few: two agents that differ by ten points may look alike.")
    if (without := reports.get(Mode.WITHOUT_EVIDENCE)) is not None:
        coverage = without.summary.trust.coverage
        found.append(f"Without the evidence it answers all the same for {coverage.accuracy:.1%}.")
    if (injected := reports.get(Mode.INJECTED)) is not None and injected.summary.trust.obeyed:
        every = injected.summary.trust.obeyed[-1].obeyed
        if every.n:
            shown = f"Of {every.n} passages with orders that it was shown"
            found.append(f"{shown}, {every.accuracy:.1%} got what they want, some by chance.")
    no = "It cannot be concluded that the agent is safe to use, or that it does as well on patients' own questions."
    found.append(no)
    if not trained_here:
        found.append("Whether the model saw these questions in its training is not known.")
    return found
