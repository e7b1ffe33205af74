"""What an index costs at several sizes: to build, to open, to keep in memory, and per query.

    python -m benchmarks.corpus_sizes --medquad FILE [--sizes 10000 100000 300000] [--queries 200] [--json OUT]

The corpus is that of `benchmarks.index_build`: MedQuAD, and copies with sentences in another order, with hashed
n-grams. Every build and every search is a process of its own, so that its memory is its own. Queries are MedQuAD's
questions, each asked once: alone, and 64 together.

Prints a row per size, and the memory that a further passage takes between one size and the next.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.common import describe_machine
from benchmarks.index_build import build, write_corpus
from medagent.retrieval.inspect import index_stats

SEARCH = """
import json, resource, statistics, sys, time
from pathlib import Path
from medagent.retrieval.search import HybridRetriever
index, queries = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
begun = time.perf_counter()
retriever = HybridRetriever(index)
retriever.search(queries[:1], top_k=5)
opened_s, waits = time.perf_counter() - begun, []
half = len(queries) // 2
for query in queries[1:half]:
    begun = time.perf_counter()
    retriever.search([query], top_k=5)
    waits.append(time.perf_counter() - begun)
begun, asked = time.perf_counter(), queries[half:]
for start in range(0, len(asked), 64):
    retriever.search(asked[start : start + 64], top_k=5)
together = len(asked) / (time.perf_counter() - begun)
resident = 1024 * int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])
waits.sort()
print(json.dumps({"open, s": opened_s, "one query, median ms": 1e3 * statistics.median(waits),
    "one query, p95 ms": 1e3 * waits[int(0.95 * len(waits))], "queries per second, 64 together": together,
    "resident, MB": resident / 1e6}))
"""


def measured(medquad: Path, work: Path, passages: int, queries: Path) -> dict[str, float]:
    """The figures of one size."""
    folder = work / str(passages)
    folder.mkdir()
    write_corpus([medquad], folder, passages, 200)
    process = build(folder / "corpus.jsonl", folder / "index", 200)
    report, _ = process.communicate()
    assert process.returncode == 0
    build_s, peak, _ = report.split(maxsplit=2)
    stats = index_stats(folder / "index")
    command = [sys.executable, "-c", SEARCH, str(folder / "index"), str(queries)]
    found = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    shutil.rmtree(folder)
    return {
        "passages": float(stats["passages"]),
        "build, s": float(build_s),
        "build, passages per second": stats["passages"] / float(build_s),
        "build, peak MB": float(peak) / 1e6,
        "disk, MB": sum(stats["bytes"].values()) / 1e6,
        **json.loads(found.stdout),
    }


def main() -> None:
    """Measure each size, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--medquad", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 300_000])
    parser.add_argument("--queries", type=int, default=400, help="half of them alone, half 64 together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.medquad.read_text(encoding="utf-8").splitlines()]
    asked = list(dict.fromkeys(row["question"] for row in rows))[: options.queries]
    print(describe_machine())
    results: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="medagent-sizes-") as work:
        queries = Path(work) / "queries.json"
        queries.write_text(json.dumps(asked))
        for passages in options.sizes:
            results.append(measured(options.medquad, Path(work), passages, queries))
            print("  ".join(f"{name} {value:,.1f}" for name, value in results[-1].items()), flush=True)
            if options.json:
                options.json.write_text(json.dumps({"machine": describe_machine(), "sizes": results}, indent=2) + "\n")
    for smaller, larger in pairwise(results):
        more = larger["passages"] - smaller["passages"]
        kilobytes = {name: 1e3 * (larger[name] - smaller[name]) / more for name in ("build, peak MB", "resident, MB")}
        told = ", ".join(f"{name.removesuffix(' MB')} {value:.1f} KB" for name, value in kilobytes.items())
        print(f"per further passage from {smaller['passages']:,.0f} to {larger['passages']:,.0f}: {told}")


if __name__ == "__main__":
    main()
