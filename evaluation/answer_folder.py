"""A folder to which answers are appended as they come, so that an interrupted run goes on where it stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medagent.errors import ConfigError
from medagent.files import write_json


class JsonLog:
    """A file of JSON lines that grows. A line that was cut off when the process was killed is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        """All whole lines."""
        # Not splitlines: a passage may hold other line separators (U+2028), which JSON keeps.
        return self._whole().decode("utf-8").split("\n")[:-1]

    def _whole(self) -> bytes:
        raw = self.path.read_bytes() if self.path.exists() else b""
        return raw[: raw.rfind(b"\n") + 1]

    def repair(self) -> None:
        """Truncate the file after its last whole line. Only the writer may call it."""
        if self.path.exists():
            size = len(self._whole())
            with self.path.open("r+b") as file:
                file.truncate(size)

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one line and flush it to the operating system."""
        line = json.dumps(row, ensure_ascii=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode("utf-8", errors="replace"))  # a lone surrogate cannot be written as UTF-8


def begin(
    folder: Path, identity: Mapping[str, Any], *, kind: str, log: Path | None = None, overwrite: bool = False
) -> None:
    """Begin a run in a folder, or go on with the same one; call under the folder's lock.

    config.json keeps `identity`, which says what is measured. With `overwrite`, or while `log` is empty, a folder that
    was begun with another identity is begun anew, without its report.json.

    Raises:
        ConfigError: the folder holds another run.
    """
    path, wanted = folder / "config.json", json.loads(json.dumps(identity))
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}: damaged ({error}). Give another --out.") from error
        differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if not differing:
            return
        if log is None or not (overwrite or not log.exists() or not log.stat().st_size):
            old, new = (f"{differing[0]} = {each.get(differing[0])!r}" for each in (found, wanted))
            remedy = "." if log is None else ", or --overwrite true to begin anew there."
            raise ConfigError(f"{folder}: holds {kind} with {old}, now {new}. Give another --out{remedy}")
        for stale in (log, folder / "report.json"):  # first, so that nothing old stands under new settings
            stale.unlink(missing_ok=True)
    elif log is not None and log.exists():
        raise ConfigError(f"{folder}: holds {log.name} and no config.json. Give another --out.")
    write_json(path, wanted)
