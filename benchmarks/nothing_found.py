"""How well a floor tells questions whose evidence the corpus lacks from those whose evidence it has.

    python -m benchmarks.nothing_found --bioasq DIR --pubmedqa FILE [--medquad FILE] [--json OUT]

Of 250 questions the evidence of one half is taken out of the corpus, and then all are searched with five hits. For each
floor (`SearchSettings.floor`) it prints:

- recall: of the questions without evidence, how many find nothing,
- precision: of those that find nothing, how many have no evidence,
- lost: of the questions whose evidence is among the five, how many lose all of it.

Other passages may answer a question whose own were taken out, so both are lower bounds.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

from benchmarks.common import describe_machine
from benchmarks.retrieval import Task, bioasq, medquad, pubmedqa
from medagent.retrieval.chunking import Chunking
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.index import build_index
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings

FLOORS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
ASKED, SHOWN = 250, 5


def measure(task: Task, work: Path, embedder: str) -> dict[str, dict[str, float]]:
    """Recall, precision and loss by floor."""
    chosen = random.Random(0).sample(range(len(task.questions)), ASKED)
    without, with_evidence = chosen[: ASKED // 2], chosen[ASKED // 2 :]
    gone = {digest for number in without for digest in task.gold[number]}
    kept = [passage for passage in task.passages if passage.digest not in gone]
    model = embedder_from_identity(embedder)
    settings = IndexSettings(Chunking(max_tokens=0, overlap_tokens=0), search=SearchSettings(dense_weight=0.25))
    build_index(work / task.name, kept, model, settings=settings)
    retriever = HybridRetriever(str(work / task.name), model)

    def shares(number: int) -> list[tuple[float, bool]]:
        """The coverage of each hit, and whether it is evidence."""
        question = task.questions[number]
        hits = retriever.search([question], top_k=SHOWN)[0]
        found = retriever.words.coverage(question, [hit.passage.indexed_text for hit in hits])
        return [(share, hit.passage.digest in task.gold[number]) for share, hit in zip(found, hits, strict=True)]

    lacking, having = [shares(number) for number in without], [shares(number) for number in with_evidence]
    found = [hits for hits in having if any(right for _, right in hits)]
    table = {}
    for floor in FLOORS:
        silent = sum(all(share < floor for share, _ in hits) for hits in lacking)
        wrongly = sum(all(share < floor for share, _ in hits) for hits in having)
        lost = sum(not any(right and share >= floor for share, right in hits) for hits in found)
        table[str(floor)] = {
            "recall": silent / len(lacking),
            "precision": silent / max(1, silent + wrongly),
            "lost": lost / len(found),
        }
    return table


def main() -> None:
    """Measure what was asked for, print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bioasq", type=Path)
    parser.add_argument("--pubmedqa", type=Path)
    parser.add_argument("--medquad", type=Path)
    parser.add_argument("--embedder", default="hashed-ngrams:1024:3-5")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(describe_machine())
    tables = {}
    with tempfile.TemporaryDirectory(prefix="medagent-nothing-") as work:
        for read, path in ((bioasq, options.bioasq), (pubmedqa, options.pubmedqa), (medquad, options.medquad)):
            if path is not None:
                task = read(path)
                tables[task.name] = measure(task, Path(work), options.embedder)
                print(f"{task.name}: {ASKED} questions, {len(task.passages):,} passages")
                for floor, row in tables[task.name].items():
                    print(f"  floor {floor}: " + "  ".join(f"{name} {value:.3f}" for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(tables, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
