"""Search over MedQuAD with queries as a medical librarian types them: accents, spellings, forms, brands, typos.

    python -m benchmarks.librarian --medquad FILE [--json OUT]

A line of `benchmarks/questions/librarian.jsonl` has a `query`, its `kind`, and `relevant`: grades of MedQuAD's rows,
each named as LINE:ID. Grade 2 answers the query. Grade 1 is about its subject, but says something else. A row without
a grade is about another subject. Queries of the kind *absent* ask for what the corpus does not have. The labels were
made from the corpus alone, and committed before anybody tuned the search.

Prints for each kind nDCG@10, in how many queries a row of grade 2 is among ten, and how many find nothing. To find
nothing is right for *absent*, and wrong for all others. Rows of equal title and text are one passage of the index, so
they count once. Two builds of one index differ a little: over five, the nDCG@10 of all lay within 0.006, that of a
kind within 0.03.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, describe_machine
from benchmarks.retrieval import SHOWN, default_embedder, medquad
from medagent.retrieval.chunking import Chunking
from medagent.retrieval.embedders import Embedder, embedder_from_identity
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings

QUERIES = ROOT / "benchmarks" / "questions" / "librarian.jsonl"
ABSENT = "absent"
KINDS = ("accents", "spelling", "forms", "drugs", "synonyms", "typos", ABSENT)
ANSWERS = 2  # the grade of a row that answers


@dataclass(frozen=True)
class Query:
    """A query with the grades of MedQuAD's rows, by LINE:ID."""

    text: str
    kind: str
    relevant: Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """The grades of what a query found, best first, and the grades of all that it could have found."""

    query: Query
    found: Sequence[int]
    labelled: Sequence[int]

    @property
    def empty(self) -> bool:
        """Whether nothing was found."""
        return not self.found

    @property
    def answered(self) -> bool:
        """Whether a row that answers is among the first ten."""
        return ANSWERS in self.found[:SHOWN]


def read_queries(path: Path) -> list[Query]:
    """All queries of a file, in its order."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Query(row["query"], row["kind"], row["relevant"]) for row in rows]


def discounted_gain(grades: Sequence[int]) -> float:
    """The sum of 2^grade - 1 over log2(rank + 1), of the first ten."""
    return sum((2.0**grade - 1) / math.log2(rank + 1) for rank, grade in enumerate(grades[:SHOWN], start=1))


def ndcg(found: Sequence[int], labelled: Sequence[int]) -> float:
    """The gain of what was found over that of the best order of all that is labelled."""
    return discounted_gain(found) / discounted_gain(sorted(labelled, reverse=True))


def grades_by_digest(query: Query, passages: Mapping[str, Passage]) -> dict[str, int]:
    """The query's grades by the digest of title and text, as the index keeps equal passages once."""
    unknown = sorted(query.relevant.keys() - passages.keys())
    if unknown:
        raise SystemExit(f"{query.text!r}: the corpus has no row {unknown[0]}. Is it the MedQuAD that was labelled?")
    grades: dict[str, int] = {}
    for row, grade in query.relevant.items():
        digest = passages[row].digest
        grades[digest] = max(grade, grades.get(digest, 0))
    return grades


def ask(queries: Sequence[Query], passages: Sequence[Passage], embedder: Embedder, folder: Path) -> list[Outcome]:
    """Index the passages whole in `folder` and search each query with the defaults."""
    settings = IndexSettings(
        Chunking(max_tokens=0, overlap_tokens=0), search=SearchSettings(dense_weight=embedder.dense_weight)
    )
    build_index(folder, passages, embedder, settings=settings)
    retriever = HybridRetriever(str(folder), embedder, cache_size=0)
    results = retriever.search([query.text for query in queries], top_k=SHOWN)
    retriever.close()
    by_id = {passage.id: passage for passage in passages}
    outcomes = []
    for query, hits in zip(queries, results, strict=True):
        grades = grades_by_digest(query, by_id)
        outcomes.append(Outcome(query, [grades.get(hit.passage.digest, 0) for hit in hits], list(grades.values())))
    return outcomes


def scores(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What a kind's queries reach on average; nothing but their number and `empty` for absent subjects."""
    row: dict[str, float] = {"queries": len(outcomes)}
    if all(outcome.labelled for outcome in outcomes):
        row["ndcg@10"] = _mean([ndcg(outcome.found, outcome.labelled) for outcome in outcomes])
        row["hit@10"] = _mean([outcome.answered for outcome in outcomes])
    row["empty"] = _mean([outcome.empty for outcome in outcomes])
    return row


def table(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """The scores of each kind, and of all queries whose subject the corpus has."""
    rows = {kind: scores([each for each in outcomes if each.query.kind == kind]) for kind in KINDS}
    return rows | {"all but absent": scores([each for each in outcomes if each.query.kind != ABSENT])}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _print(rows: Mapping[str, Mapping[str, float]]) -> None:
    for kind, row in rows.items():
        line = f"  {kind:14s} {row['queries']:3.0f}: "
        if kind == ABSENT:
            line += f"nothing found {row['empty']:.4f}"
        else:
            line += f"nDCG@10 {row['ndcg@10']:.4f}  hit@10 {row['hit@10']:.4f}  wrongly empty {row['empty']:.4f}"
        print(line)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"query": outcome.query.text, "kind": outcome.query.kind, "grades": list(outcome.found)}
    return row | ({"ndcg@10": ndcg(outcome.found, outcome.labelled)} if outcome.labelled else {})


def main() -> None:
    """Index MedQuAD, ask all queries, print the table, and write it with each query's grades as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--medquad", type=Path, required=True)
    parser.add_argument("--queries", type=Path, default=QUERIES)
    parser.add_argument("--embedder", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    embedder = embedder_from_identity(options.embedder or default_embedder())
    print(f"{describe_machine()}\n{embedder.identity}")
    with tempfile.TemporaryDirectory(prefix="medagent-librarian-") as work:
        passages = medquad(options.medquad).passages
        outcomes = ask(read_queries(options.queries), passages, embedder, Path(work) / "index")
    rows = table(outcomes)
    _print(rows)
    if options.json:
        queries = [_as_json(outcome) for outcome in outcomes]
        found = {"machine": describe_machine(), "embedder": embedder.identity, "kinds": rows, "queries": queries}
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
