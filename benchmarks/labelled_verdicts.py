"""How often the verdict of the evidence is wrong, on answers that a person labelled.

    python -m benchmarks.labelled_verdicts ask --agent AGENT --index INDEX --out answers.jsonl
    python -m benchmarks.labelled_verdicts judge answers.jsonl --index INDEX

`ask` answers `benchmarks/questions/verdicts_medquad.jsonl` greedily. It keeps each answer with the ids of the passages
that were shown, and no verdict. Then a person sets `right` of each line to true or false. `judge` counts what is shown
as stated, by label. Kinds of question are those of `benchmarks.verdicts`; here a line of kind *removed* hides the
passages that contain one of its `without_text`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import describe_machine
from medagent.agent import Job
from medagent.evidence.names import Names
from medagent.evidence.support import Entailment, LexicalRule, NLIModel
from medagent.evidence.verdict import EvidenceKind, EvidenceVerdict, judge
from medagent.loading import open_agent
from medagent.retrieval.passages import Hit
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question, Rollout, StopReason, Turn

QUESTIONS = Path("benchmarks/questions/verdicts_medquad.jsonl")
KINDS = ("right", "misspelt", "made_up", "removed")


def main() -> None:
    """Ask, or judge what was asked and labelled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("--agent", required=True)
    asking.add_argument("--index", required=True)
    asking.add_argument("--questions", type=Path, default=QUESTIONS)
    asking.add_argument("--out", type=Path, required=True)
    judging = commands.add_parser("judge")
    judging.add_argument("answers", type=Path)
    judging.add_argument("--index", required=True)
    judging.add_argument("--entailment", help="a model for natural language inference; by default words decide")
    judging.add_argument("--show", action="store_true", help="print the lines that count as errors")
    options = parser.parse_args()
    print(describe_machine())
    if options.command == "ask":
        ask(options.agent, options.index, options.questions, options.out)
    else:
        entails: Entailment = NLIModel(options.entailment) if options.entailment else LexicalRule()
        report(options.answers, HybridRetriever(options.index), entails, show=options.show)


def ask(agent_name: str, index: str, questions: Path, out: Path) -> None:
    """Write the agent's answers, unlabelled."""
    rows = _lines(questions)
    agent = open_agent(agent_name, index=index)
    assert isinstance(agent.retriever, HybridRetriever)
    hidden = _hidden(rows, agent.retriever)
    jobs = [
        Job(Question(str(at), row["question"]), temperature=0.0, withheld=hidden[at]) for at, row in enumerate(rows)
    ]
    with out.open("w", encoding="utf-8") as file:
        for row, rollout in zip(rows, agent.run_all(jobs), strict=True):
            kept = {
                **row,
                "said": rollout.answer,
                "stopped": rollout.stop_reason.value,
                "queries": [turn.query for turn in rollout.turns if turn.query is not None],
                "shown": [hit.passage.id for hit in rollout.hits],
                "right": None,
            }
            file.write(json.dumps(kept, ensure_ascii=False) + "\n")


def _hidden(rows: list[dict[str, Any]], retriever: HybridRetriever) -> list[frozenset[str]]:
    """For each row the passages that it hides."""
    folded = [(passage.id, passage.indexed_text.lower()) for passage in retriever.passages]
    return [
        frozenset(id for id, text in folded if any(word in text for word in row.get("without_text", ())))
        for row in rows
    ]


def report(answers: Path, retriever: HybridRetriever, entails: Entailment, *, show: bool) -> None:
    """Print, by kind of question, what is stated of right and of wrong answers."""
    rows = _lines(answers)
    unlabelled = sum(row["right"] is None for row in rows)
    if unlabelled:
        raise SystemExit(f"{answers}: {unlabelled} of {len(rows)} lines have no label. Set `right` to true or false.")
    names = Names(passage.title for passage in retriever.passages)
    judged = [(row, judge(_rollout(row, retriever), entails, names)) for row in rows]
    for kind in KINDS:
        _print(kind, [each for each in judged if each[0]["kind"] == kind])
    _print("all", judged)
    misspelt = [(row, verdict) for row, verdict in judged if row["kind"] == "misspelt"]
    asked = [(row, verdict) for row, verdict in misspelt if verdict.kind is not EvidenceKind.STATED]
    first = sum(row["meant"].lower() in map(str.lower, verdict.did_you_mean[:1]) for row, verdict in asked)
    any_ = sum(row["meant"].lower() in map(str.lower, verdict.did_you_mean) for row, verdict in asked)
    print(f"  of {len(asked)} misspelt ones not stated the name meant is offered first {first}, at all {any_} times")
    if show:
        for row, verdict in judged:
            if (verdict.kind is EvidenceKind.STATED) != row["right"]:
                print(f"{row['kind']}: {row['question']} | {row['said']} | {'right' if row['right'] else 'wrong'}")
                print(f"    {verdict.kind}: {verdict.told}")


def _rollout(row: dict[str, Any], retriever: HybridRetriever) -> Rollout:
    """The rollout as the verdict reads it: question, answer and the passages shown."""
    passages = [retriever.passage(id) for id in row["shown"]]
    if None in passages:
        raise SystemExit(f"{row['question']}: a passage shown is not in this index. Build it from the same corpus.")
    hits = tuple(Hit(passage, 0.0) for passage in passages if passage)
    searched = Turn((), (), "", query=" ".join(row["queries"]), hits=hits)
    answered = Turn((), (), "", answer=row["said"])
    return Rollout(Question(row["question"], row["question"]), (), (searched, answered), StopReason(row["stopped"]))


def _print(kind: str, judged: list[tuple[dict[str, Any], EvidenceVerdict]]) -> None:
    stated = Counter(row["right"] for row, verdict in judged if verdict.kind is EvidenceKind.STATED)
    right = sum(row["right"] for row, _ in judged)
    kinds = Counter(str(verdict.kind) for _, verdict in judged)
    print(
        f"  {kind:9s} {len(judged):3d}: {stated[False]} of {len(judged) - right} wrong answers stated; "
        f"{stated[True]} of {right} right ones stated; {dict(kinds.most_common())}"
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
