"""What preferring stronger types of publication costs in finding the passages that experts named.

    python -m benchmarks.evidence_weight [--bioasq FOLDER] [--pubmedqa FILE] [--embedder NAME] [--json OUT]

The files tell no publication types, so a passage gets one where its words name it, as "meta-analysis" or "randomized".
For each weight (`SearchSettings.evidence_weight`) it prints hit@10 and MRR over 500 questions, the mean level of the
first hit (`medagent.retrieval.evidence_types`), and that of the passages the experts named.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.common import describe_machine
from benchmarks.retrieval import SHOWN, Task, bioasq, pubmedqa, scores
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.chunking import Chunking
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.evidence_types import evidence_level
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings

WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0)
ASKED = 500
TOLD_BY = {
    "guideline": "Guideline",
    "consensus statement": "Consensus Statement",
    "systematic review": "Systematic Review",
    "meta-analysis": "Meta-Analysis",
    "randomized": "Randomized Controlled Trial",
    "randomised": "Randomized Controlled Trial",
    "clinical trial": "Clinical Trial",
    "cohort": "Observational Study",
    "case report": "Case Reports",
}


def typed(passage: Passage) -> Passage:
    """The passage with the types that its words name."""
    text = passage.text.lower()
    types = tuple(dict.fromkeys(name for words, name in TOLD_BY.items() if words in text))
    return replace(passage, about=Bibliography(types=types))


def measure(task: Task, work: Path, embedder: str) -> dict[str, dict[str, float]]:
    """Figures by weight."""
    chosen = random.Random(0).sample(range(len(task.questions)), min(ASKED, len(task.questions)))
    model = embedder_from_identity(embedder)
    search = SearchSettings(dense_weight=model.dense_weight)
    passages = [typed(passage) for passage in task.passages]
    build_index(work / task.name, passages, model, settings=IndexSettings(Chunking(0, 0), search=search))
    level_of = {passage.digest: evidence_level(passage.about.types) for passage in passages}
    number_of = {digest: number for number, digest in enumerate(level_of)}
    gold = [{number_of[digest] for digest in task.gold[each]} for each in chosen]
    named = float(np.mean([level_of[digest] for each in chosen for digest in task.gold[each]]))
    typed_share = sum(bool(passage.about.types) for passage in passages) / len(passages)
    print(f"\n{task.name}: {len(passages):,} passages, {typed_share:.0%} with a type; named by experts: {named:.3f}")
    table = {}
    for weight in WEIGHTS:
        settings = replace(search, evidence_weight=weight)
        retriever = HybridRetriever(str(work / task.name), model, settings, cache_size=0)
        hits = retriever.search([task.questions[each] for each in chosen], top_k=SHOWN)
        rankings = [[number_of[hit.passage.digest] for hit in found] for found in hits]
        first = [level_of[found[0].passage.digest] for found in hits if found]
        table[str(weight)] = {**scores(rankings, gold), "level of the first": float(np.mean(first))}
        retriever.close()
        print(f"  weight {weight}: " + "  ".join(f"{name} {value:.3f}" for name, value in table[str(weight)].items()))
    return table


def main() -> None:
    """Measure what was asked for, print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bioasq", type=Path)
    parser.add_argument("--pubmedqa", type=Path)
    parser.add_argument("--embedder", default="hashed-ngrams:1024:3-5")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(describe_machine())
    found = {}
    with tempfile.TemporaryDirectory(prefix="medagent-evidence-") as work:
        for read, path in ((bioasq, options.bioasq), (pubmedqa, options.pubmedqa)):
            if path is not None:
                task = read(path)
                found[task.name] = measure(task, Path(work), options.embedder)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe_machine(), **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
