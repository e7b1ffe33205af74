"""Small text files: whole or not at all, whenever the process may be killed; or for the own account alone."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text beside `path`, then put it in its place."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def append_private(path: Path, text: str) -> None:
    """Append UTF-8 text to a file with what people asked. Other accounts may not read it (mode 600)."""
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        if path.is_file():  # not a device
            os.fchmod(file.fileno(), 0o600)
        file.write(text)
