"""Speed of search on 100,000 passages, beside bare chromadb and bare bm25s in one run.

    python -m benchmarks.retrieval_speed --medquad FILE [--passages 100000] [--json OUT]

Passages are cut from MedQuAD with several settings until there are enough. Queries are its questions, each asked
once. The bare pipeline embeds the whole batch, queries Chroma and bm25s in one call each, and fuses. Ours does what
`HybridRetriever` and the batching of searches do.

Prints per embedder: the time of a build, queries per second, waits, and the ratios to the bare pipeline.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from benchmarks.common import describe_machine
from benchmarks.retrieval import default_embedder
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.chunking import Document, Section, chunk_document
from medagent.retrieval.embedders import Embedder, HashedNgramEmbedder, embedder_from_identity
from medagent.retrieval.index import build_index, open_chroma
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings

TOP_K = 5


def many_passages(path: Path, number: int) -> tuple[list[Passage], list[str]]:
    """`number` different passages of real text, and the questions in the file's order without repeats."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    count = HashedNgramEmbedder().count_tokens
    found: dict[str, Passage] = {}
    for max_tokens in (40, 30, 60, 90):  # other pieces of the same text are other passages
        for row in rows:
            document = Document(row["title"], (Section("", row["text"]),), row["source"], row["id"])
            for passage in chunk_document(document, Chunking(max_tokens, 0), count):
                found.setdefault(passage.digest, Passage.make(passage.title, passage.text, passage.source))
                if len(found) == number:
                    return list(found.values()), list(dict.fromkeys(row["question"] for row in rows))
    raise SystemExit(f"{path} gives {len(found):,} passages, wanted {number:,}")


class Bare:
    """The plain libraries: one embedding call, one Chroma call, one bm25s call, reciprocal rank fusion."""

    def __init__(self, folder: Path, embedder: Embedder, settings: SearchSettings) -> None:
        manifest = Manifest.read(folder)
        vectors = open_chroma(folder, manifest)
        assert vectors.open()
        self._collection = vectors.collection
        self._lexical = bm25s.BM25.load(folder / "bm25", load_corpus=False, mmap=True)
        self._analyser = Analyser(manifest.settings.analyser)
        self._embedder, self._settings = embedder, settings

    def search(self, queries: list[str]) -> list[list[int]]:
        """Row numbers, best first."""
        depth, k = self._settings.num_candidates, self._settings.rrf_k
        answer = self._collection.query(
            query_embeddings=self._embedder.embed_queries(queries), n_results=depth, include=["distances"]
        )
        tokens = [self._analyser.tokens(query) for query in queries]
        words, _ = self._lexical.retrieve(tokens, k=depth, show_progress=False)
        fused = []
        for ids, rows in zip(answer["ids"], words, strict=True):
            total: dict[int, float] = {}
            for weight, ranking in ((self._settings.dense_weight, [int(id_) for id_ in ids]), (1.0, rows.tolist())):
                for rank, row in enumerate(ranking, start=1):
                    total[row] = total.get(row, 0.0) + weight / (k + rank)
            fused.append(sorted(total, key=lambda row: -total[row])[:TOP_K])
        return fused


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def many_callers(retriever: HybridRetriever, queries: list[str], callers: int) -> tuple[float, list[float]]:
    """Seconds in all, and of each query, with many callers that each ask one query after the other."""
    batcher = SearchBatcher(retriever, top_k=TOP_K)
    waits: list[float] = []
    waiting = iter(queries)

    async def caller() -> None:
        for query in waiting:
            started = time.perf_counter()
            await batcher.search(query)
            waits.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - started, waits


def measure(folder: Path, embedder: Embedder, queries: list[str], rounds: int) -> dict[str, float]:
    """The figures of one embedder; each round asks queries that were not asked before."""
    retriever = HybridRetriever(str(folder), embedder, cache_size=0)
    bare = Bare(folder, embedder, retriever.settings)
    bare.search(queries[:8])
    retriever.search(queries[:8], top_k=TOP_K)
    asked = iter(queries[8:])
    batched, single, together = [], [], []
    waits: list[float] = []
    for number in range(rounds):
        batch, other = ([next(asked) for _ in range(64)] for _ in range(2))
        pair = [lambda b=batch: bare.search(b), lambda b=batch: retriever.search(b, top_k=TOP_K)]
        turn = -1 if number % 2 else 1  # whichever goes second finds the processor's caches warm
        seconds = [timed(work) for work in pair[::turn]][::turn]
        batched.append(seconds[1] / seconds[0])
        single.append(timed(lambda o=other: [retriever.search([query], top_k=TOP_K) for query in o[:32]]) / 32)
        many = [next(asked) for _ in range(512)]
        plain_s = timed(lambda m=many: [bare.search(m[:256]), bare.search(m[256:])])
        ours_s, some = asyncio.run(many_callers(retriever, many, 256))
        together.append((plain_s, ours_s))
        waits += some
    remembering = HybridRetriever(str(folder), embedder)
    known = queries[:200]
    remembering.search(known, top_k=TOP_K)
    hits = [timed(lambda q=query: remembering.search([q], top_k=TOP_K)) for query in known * 5]
    remembering.close()
    retriever.close()
    ours = statistics.median(512 / seconds for _, seconds in together)
    return {
        "batch of 64: ours / bare (time)": statistics.median(batched),
        "256 callers: queries/s": ours,
        "256 callers: ours / bare (throughput)": statistics.median(plain / seconds for plain, seconds in together),
        "256 callers: p95 wait, ms": float(np.quantile(waits, 0.95)) * 1e3,
        "one by one: ms per query": statistics.median(single) * 1e3,
        "256 callers / one by one (throughput)": ours * statistics.median(single),
        "cache hit, ms": statistics.median(hits) * 1e3,
    }


def main() -> None:
    """Build what is missing, measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--medquad", type=Path, required=True)
    parser.add_argument(
        "--embedder", action="append", help="several may be given; hashed n-grams and MiniLM where none is"
    )
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--work", type=Path, default=Path("indexes/speed"), help="folder of the indexes, kept for the next run"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    passages, queries = many_passages(options.medquad, options.passages)
    print(f"{describe_machine()}\n{len(passages):,} passages, {options.rounds} rounds")
    found = {}
    for name in options.embedder or dict.fromkeys(["hashed-ngrams:1024:3-5", default_embedder()]):
        embedder = embedder_from_identity(name)
        folder = options.work / hashlib.sha256(embedder.identity.encode()).hexdigest()[:12]
        settings = IndexSettings(search=SearchSettings(dense_weight=embedder.dense_weight))
        seconds = timed(lambda f=folder, e=embedder, s=settings: build_index(passages, f, e, settings=s))
        found[embedder.identity] = measure(folder, embedder, queries, options.rounds)
        print(f"{embedder.identity} (built in {seconds:.0f} s)")
        for figure, value in found[embedder.identity].items():
            print(f"  {figure:40s} {value:.3f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": describe_machine(), **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
