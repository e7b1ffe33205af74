"""Keeps the numbers of a finished study: what reports and figures read, small enough for the repository.

    python -m studies.stability.tools.keep_results runs/study-collapse collapse

Writes results/NAME-metrics.csv.gz (a row per iteration) and results/NAME-runs.csv (a row per run). Times and the
approximate KL are left out, as nothing reads them. Success, accuracy and clip fractions keep six significant digits,
since ties are decided by them. The rest keeps five.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from pathlib import Path
from shutil import copyfile

from studies.stability.tools.folders import RESULTS

KEYS = ("arm", "seed", "iteration")
LEFT_OUT = ("policy/approx_kl", "time/rollout", "time/update")
EXACT = ("reward/success", "validation/accuracy", "policy/clip_fraction")


def reduced(text: str) -> str:
    """The text of a metrics.csv without the columns that nothing reads, and with the digits that count."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    columns = [column for column in rows.fieldnames or () if column not in LEFT_OUT]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            value if column in KEYS or not value else f"{float(value):.{6 if column in EXACT else 5}g}"
            for column, value in ((column, row[column]) for column in columns)
        )
    return out.getvalue()


def write_kept(text: str, path: Path) -> None:
    """Write text compressed; the same text always gives the same bytes."""
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    """Keep one study's numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `medagent study` wrote, such as runs/study-collapse")
    parser.add_argument("name", help="the study, such as collapse, or with a base model-sizes-starter-192")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to write to (default: %(default)s)")
    options = parser.parse_args()
    metrics = (options.folder / "metrics.csv").read_text(encoding="utf-8")
    write_kept(reduced(metrics), options.out / f"{options.name}-metrics.csv.gz")
    copyfile(options.folder / "runs.csv", options.out / f"{options.name}-runs.csv")


if __name__ == "__main__":
    main()
