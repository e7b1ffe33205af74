"""Small text files: whole or not at all, whenever the process may be killed; or for the own account alone."""

import gzip
import json
import os
from pathlib import Path


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Write UTF-8 text beside `path`, then put it in its place: compressed in a .gz, and if `private` with mode 600."""
    part, content = path.with_name(path.name + ".part"), text.encode()
    try:
        with open(part, "wb", opener=_private if private else None) as file:
            file.write(gzip.compress(content, 6, mtime=0) if path.suffix == ".gz" else content)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)  # it would hold the space that others lack
        raise


def write_json(path: Path, content: object) -> None:
    """Write plain data as indented JSON, for programs and people."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def append_private(path: Path, text: str) -> None:
    """Append UTF-8 text to a file with what people asked. Other accounts may not read it (mode 600)."""
    with open(path, "a", encoding="utf-8", opener=_private) as file:
        if path.is_file():  # not a device
            os.fchmod(file.fileno(), 0o600)
        file.write(text)
