"""Small text files that appear whole or not at all, whenever the process may be killed."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text beside `path`, then put it in its place."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
