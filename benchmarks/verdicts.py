"""How often the verdict of the evidence is wrong, on labelled questions.

    python -m benchmarks.verdicts --agent runs/demo/agent
    python -m benchmarks.verdicts --agent AGENT --questions FILE.jsonl

A line of the file has `kind`, `question` and, by kind, more. *right*: its `answer` stands in the corpus. *misspelt*:
`meant` is the name meant, `answer` its answer. *made_up*: the subject does not exist. *removed*: the passages `without`
are hidden from every search, so the corpus does not say. Thresholds are set on the odd lines. The table shows both
halves apart.

An answer counts as right where it equals the line's answer but for case, articles and citations. Prints, by kind:
how many answers are shown as stated, how many of those are wrong, and of misspelt names for how many the first name
offered, or any, is the one meant. `--show` prints the lines that count as errors.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import describe_machine
from medagent.agent import Job
from medagent.evaluation.grading.grade import grade
from medagent.evidence.names import Names
from medagent.evidence.verdict import EvidenceKind, EvidenceVerdict, judge
from medagent.loading import open_agent
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question, Rollout

KINDS = ("right", "misspelt", "made_up", "removed")


def main() -> None:
    """Ask, judge and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="runs/demo/agent")
    parser.add_argument("--index", help="by default the agent's own")
    parser.add_argument("--questions", type=Path, default=Path("benchmarks/questions/verdicts_starter.jsonl"))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    print(describe_machine())
    rows = [json.loads(line) for line in options.questions.read_text(encoding="utf-8").splitlines()]
    agent = open_agent(options.agent, index=options.index)
    assert isinstance(agent.retriever, HybridRetriever)
    names = Names(passage.title for passage in agent.retriever.passages)
    jobs = [
        Job(
            Question(str(number), row["question"], answer=row.get("answer", "")),
            temperature=0.0,
            withheld=frozenset(row.get("without", ())),
        )
        for number, row in enumerate(rows)
    ]
    judged = [
        (row, rollout, judge(rollout, names=names)) for row, rollout in zip(rows, agent.run_all(jobs), strict=True)
    ]
    for half, name in enumerate(("odd lines", "even lines")):
        print(name)
        for kind in KINDS:
            _print(kind, [each for at, each in enumerate(judged) if at % 2 == half and each[0]["kind"] == kind])
    if options.show:
        for row, rollout, verdict in judged:
            if _error(row, rollout, verdict):
                wanted = row.get("answer") or row.get("meant")
                print(f"{row['kind']}: {row['question']} | {rollout.answer} | wanted {wanted}")
                print(f"    {verdict.kind}: {verdict.text}")


def _wrong(row: dict[str, Any], rollout: Rollout) -> bool:
    return row["kind"] in ("made_up", "removed") or not grade(rollout).correct


def _error(row: dict[str, Any], rollout: Rollout, verdict: EvidenceVerdict) -> bool:
    stated, wrong = verdict.kind is EvidenceKind.STATED, _wrong(row, rollout)
    if row["kind"] == "misspelt":
        return (stated and wrong) or row["meant"] not in verdict.did_you_mean[:1]
    return stated if wrong else not stated


def _print(kind: str, judged: list[tuple[dict[str, Any], Rollout, EvidenceVerdict]]) -> None:
    wrong = [_wrong(row, rollout) for row, rollout, _ in judged]
    stated = [verdict.kind is EvidenceKind.STATED for _, _, verdict in judged]
    bad = sum(one and other for one, other in zip(stated, wrong, strict=True))
    right = len(judged) - sum(wrong)
    kinds = Counter(str(verdict.kind) for _, _, verdict in judged)
    line = f"  {kind:9s} {len(judged):3d}: {bad} shown as stated and wrong; "
    line += f"{sum(stated) - bad} of {right} right answers stated; {dict(kinds.most_common())}"
    if kind == "misspelt":
        first, any_ = (
            sum(row["meant"] in verdict.did_you_mean[:most] for row, _, verdict in judged) for most in (1, 3)
        )
        line += f"; meant name first {first}, among three {any_}"
    print(line)


if __name__ == "__main__":
    main()
