"""The text of PDF and HTML pages on 30 labelled pages, by our reader and by libraries alone.

    python -m benchmarks.page_text [--format pdf] [--speed] [--json OUT]

The pages were made for the purpose. `benchmarks/pages/pdf.yaml` and `html.yaml` hold their words, their labels, and
what each field means. The labels were committed before anybody tuned the reader.

Prints for each kind of page and each extractor:

    sentences  wanted sentences that stand whole in the text
    order      pairs of neighbours that are whole and in reading order
    unwanted   running headers, menus and the like that stand in the text: less is better
    words      words with ligatures and hyphens that are whole, and headings
    rows       rows of tables with all their cells, in order, on one line
    titles     documents with the right title

`--speed` prints the pages per second of a PDF with 40 full pages, the best of three runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from benchmarks.common import describe_machine
from benchmarks.pages.draw import full_pages
from benchmarks.pages.extractors import Extractor, installed
from benchmarks.pages.labels import Format, LabelledDocument, ReadPage, judge, labelled_documents

MEASURES = tuple(field.name for field in fields(ReadPage))
SPEED_PAGES = 40
Counts = dict[str, list[int]]  # found and wanted, by measure


def read(documents: Sequence[LabelledDocument], extract: Extractor, folder: Path) -> dict[str, Counts]:
    """An extractor's score by the kind of page and for all of them; a file it cannot read has no text."""
    kinds: dict[str, Counts] = {}
    for document in documents:
        try:
            title, texts = extract(document.write(folder))
        except Exception as error:  # an extractor that fails has read nothing
            print(f"  {document.name}: {type(error).__name__}: {error}")
            title, texts = "", []
        for kind in (document.kind, "all"):
            counts = kinds.setdefault(kind, {name: [0, 0] for name in (*MEASURES, "titles")})
            _add(counts["titles"], (" ".join(title.split()) == document.title, 1))
            for number, page in enumerate(document.pages):
                judged = judge(page, texts[number] if number < len(texts) else "")
                for name, pair in zip(MEASURES, astuple(judged), strict=True):
                    _add(counts[name], pair)
    return kinds


def _add(counts: list[int], pair: tuple[int, int]) -> None:
    counts[:] = [counts[0] + pair[0], counts[1] + pair[1]]


def pages_per_second(extract: Extractor, folder: Path) -> float:
    """The best of three readings of a PDF of full pages."""
    path = folder / "full.pdf"
    path.write_bytes(full_pages(SPEED_PAGES))
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        extract(path)
        taken.append(time.perf_counter() - start)
    return SPEED_PAGES / min(taken)


def _print(found: Mapping[str, Mapping[str, Counts]]) -> None:
    print(f"  {'':22s}{'':14s}" + "".join(f"{name:>11s}" for name in (*MEASURES, "titles")))
    for kind in sorted(next(iter(found.values())), key=lambda kind: kind == "all"):
        for extractor, kinds in found.items():
            shares = (f"{hit / of:11.2f}" if of else f"{'':11s}" for hit, of in kinds[kind].values())
            print(f"  {kind:22s}{extractor:14s}{''.join(shares)}")


def main() -> None:
    """Read all pages with all extractors that are installed, print the tables, and write the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("pdf", "html"), action="append")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(describe_machine())
    formats: Sequence[Format] = options.format or ("pdf", "html")
    written: dict[str, dict[str, dict[str, Counts]]] = {}
    with tempfile.TemporaryDirectory(prefix="medagent-pages-") as work:
        for format_ in formats:
            documents = labelled_documents(format_)
            print(f"{format_}: {sum(len(document.pages) for document in documents)} pages")
            extractors = installed(format_)
            written[format_] = {name: read(documents, each, Path(work)) for name, each in extractors.items()}
            _print(written[format_])
            if options.speed and format_ == "pdf":
                for name, each in extractors.items():
                    print(f"  {name:14s}{pages_per_second(each, Path(work)):8.1f} pages per second")
    if options.json:
        options.json.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
