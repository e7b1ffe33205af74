"""What a build costs on real text, and whether it survives being killed.

    python -m benchmarks.index_build --medquad FILE [--openstax FILE] [--passages 100000] [--kills 10] [--json OUT]

Builds an index with hashed n-grams in a process of its own. Then builds it again, and kills that build (SIGKILL) at
random moments until it is complete.

Prints passages per second, peak memory and disk. Then it compares the second index with the first by their digests,
and by `medagent index verify`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.common import describe_machine
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.inspect import index_stats, verify_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import passage_from_row

# One process per build, so that its peak memory is its own. It reports by itself: a killed process reports nothing.
BUILD = """
import resource, sys, time
from pathlib import Path
from medagent.retrieval.chunking import Chunking
from medagent.retrieval.corpora import file_corpus
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.settings import IndexSettings, SearchSettings
embedder = HashedNgramEmbedder()
seconds, begun = {}, time.perf_counter()
def progress(stage, done, total, passages):
    seconds[stage] = time.perf_counter() - begun
settings = IndexSettings(Chunking(int(sys.argv[3]), 0), search=SearchSettings(dense_weight=0.25))
build_index(Path(sys.argv[2]), file_corpus(Path(sys.argv[1])), embedder, settings=settings, progress=progress)
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, seconds)
"""


def write_corpus(files: list[Path], folder: Path, number: int, max_tokens: int) -> None:
    """Write the files' rows, then copies with sentences in another order, until they give about `number` passages."""
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    rng = random.Random(0)
    words = 0
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as out:
        copy = 0
        while words < 0.72 * number * max_tokens:
            for row in rows:
                passage = passage_from_row(row)
                sentences = passage.text.split(". ")
                if copy:
                    rng.shuffle(sentences)
                text = ". ".join(sentences)
                words += len(text.split())
                id_ = f"{passage.id}/{copy}" if copy else passage.id
                out.write(json.dumps({**replace(passage, text=text, id=id_).to_json()}, ensure_ascii=False) + "\n")
                if words >= 0.72 * number * max_tokens:
                    break
            copy += 1


def build(corpus: Path, out: Path, max_tokens: int) -> subprocess.Popen[str]:
    """Start a build."""
    command = [sys.executable, "-c", BUILD, str(corpus), str(out), str(max_tokens)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )


def main() -> None:
    """Build, report, kill, verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--medquad", type=Path, required=True)
    parser.add_argument("--openstax", type=Path)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="medagent-build-"))
    work.mkdir(parents=True, exist_ok=True)
    write_corpus(
        [file for file in (options.medquad, options.openstax) if file], work, options.passages, options.max_tokens
    )
    print(describe_machine())
    process = build(work / "corpus.jsonl", work / "whole", options.max_tokens)
    report, _ = process.communicate()
    assert process.returncode == 0
    total_s, peak, stages = report.split(maxsplit=2)
    stats = index_stats(work / "whole")
    figures = {
        "passages": stats["passages"],
        "corpus MB": (work / "corpus.jsonl").stat().st_size / 1e6,
        "seconds": float(total_s),
        "passages per second": stats["passages"] / float(total_s),
        "peak memory, MB": float(peak) / 1e6,
        **{f"disk, MB: {part}": size / 1e6 for part, size in stats["bytes"].items()},
    }
    print(f"stages end at (s): {stages.strip()}")
    for name, value in figures.items():
        print(f"  {name:24s} {value:,.1f}")
    rng = random.Random(1)
    for number in range(options.kills):
        process = build(work / "corpus.jsonl", work / "killed", options.max_tokens)
        wait_s = rng.uniform(2, 0.18 * float(total_s))  # so that ten kills fall within one build
        time.sleep(wait_s)
        process.kill()
        process.wait()
        print(
            f"kill {number + 1} after {wait_s:.0f} s" + (" (it was done)" if process.returncode == 0 else ""),
            flush=True,
        )
    if options.kills:
        process = build(work / "corpus.jsonl", work / "killed", options.max_tokens)
        assert process.wait() == 0
        whole, killed = (Manifest.read(work / name) for name in ("whole", "killed"))
        same = (whole.content_sha256, whole.embeddings_sha256) == (killed.content_sha256, killed.embeddings_sha256)
        checks = verify_index(work / "killed", HashedNgramEmbedder())
        problems = [check for check in checks if check.problem]
        print(
            f"killed {options.kills} times: digests {'equal' if same else 'DIFFER'}, verify: {problems or 'no problem'}"
        )
        figures["killed build is identical"] = float(same and not problems)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe_machine(), **figures}, indent=2) + "\n")
    if not options.work:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
