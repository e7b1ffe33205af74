"""Where the study keeps its numbers and its figures, and the option with which a tool draws elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
# Marks get the same names every time, and text stays text. So a figure drawn again is the same file, and small.
matplotlib.rcParams.update({"svg.hashsalt": "medagent", "svg.fonttype": "none"})

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = Path(__file__).parents[1] / "figures"


def figure_path(description: str | None, name: str) -> Path:
    """The file that the command line gives with --out, or FIGURES / `name`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIGURES / name, help="file to draw to (SVG; default: %(default)s)")
    out: Path = parser.parse_args().out
    return out
