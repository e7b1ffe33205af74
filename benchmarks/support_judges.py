"""How a judge of support parts labelled answers: 270 over MedQuAD in two halves, and 40 in words of their own.

Run `python -m benchmarks.support_judges indexes/medquad rules judge:hf:MODEL`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import time
from collections import Counter

from benchmarks.common import ROOT, describe_machine
from medagent.evidence.judges import support_judge
from medagent.evidence.kinds import EvidenceKind
from medagent.evidence.support import Statement
from medagent.evidence.verdict import judge
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question, Rollout, StopReason, Turn


def main() -> None:
    """Print how many answers of each group are stated, by each judge. Thresholds were chosen on half 0."""
    index = HybridRetriever(sys.argv[1])
    own_words = (ROOT / "tests/medagent/evidence/own_words.jsonl").read_text().splitlines()
    with gzip.open(ROOT / "tests/data/verdicts_medquad.jsonl.gz", "rt") as file:
        labelled = [json.loads(line) for line in file]
    print(describe_machine())
    for name in sys.argv[2:]:
        support, start, stated, of = support_judge(name), time.perf_counter(), Counter[str](), Counter[str]()
        for row in labelled:
            half = hashlib.sha256(f"{row['question']}\n{row['said']}".encode()).digest()[0] % 2
            group = f"half {half}, {'right' if row['right'] else 'wrong'}"
            hits = tuple(Hit(passage, 0.0) for id in row["shown"] if (passage := index.passage(id)))
            turns = (Turn((), (), "", query="", hits=hits), Turn((), (), "", answer=row["said"]))
            rollout = Rollout(Question("", row["question"]), (), turns, StopReason.ANSWERED)
            of[group] += 1
            stated[group] += judge(rollout, support).kind is EvidenceKind.STATED
        for row in map(json.loads, own_words):
            group = f"own words, {row['wrong'] or 'supported'}"
            statement = Statement(row["answer"], (1,), row["question"])
            of[group] += 1
            stated[group] += support.judge_all([(statement, [Passage.make(row["title"], row["passage"])])])[0]
        counts = "; ".join(f"{group}: {stated[group]} of {of[group]}" for group in sorted(of))
        print(f"{name}, {time.perf_counter() - start:.0f} s. Stated: {counts}")


if __name__ == "__main__":
    main()
