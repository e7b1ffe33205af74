"""Records of answers, each a JSON file for the own account alone. Whoever deletes the file deletes the record."""

import json
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medagent.errors import ConfigError, InputError
from medagent.files import write_whole

log = logging.getLogger("medagent.serving")
_DIGITS = "[0-9a-f]" * 32
KINDS = ("answer-", "chatcmpl-", "resp_")  # beginnings of ids


@dataclass
class Records:
    """The newest `kept` records of a folder, and at times a hundredth more. Threads may write."""

    folder: Path
    kept: int = 10_000
    _written: int = field(default=0, repr=False)
    _works: bool = field(default=True, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        """Check now that records can be written. Raises `ConfigError`."""
        if self.kept < 1:
            raise ConfigError(f"records_kept: found {self.kept}, wanted 1 or more. To keep none, leave --records out.")
        try:
            self._write("trial", "{}")
            (self.folder / "trial.json").unlink()
        except OSError as error:
            raise ConfigError(
                f"records {self.folder}: cannot be written ({error.strerror}). Give a folder of your own."
            ) from error

    def keep(self, record: dict[str, Any]) -> None:
        """Write a record. The log tells of a failure, such as a full disk, once until it works again."""
        text = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        with self._lock:
            try:
                self._write(record["id"], text)
                self._works = True
            except OSError as error:
                if self._works:
                    log.error("records %s: cannot be written (%s). Answers go on.", self.folder, error.strerror)
                self._works = False

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}.json", text + "\n", private=True)
        if self._written % max(1, self.kept // 100) == 0:
            found = [path for kind in KINDS for path in self.folder.glob(f"{kind}{_DIGITS}.json*")]
            with suppress(FileNotFoundError):  # others delete too
                for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)[: -self.kept]:
                    path.unlink()
        self._written += 1


def read_record(folder: Path, id: str) -> Any:
    """The record of an answer.

    Raises:
        InputError: there is none of this id.
        ConfigError: it is damaged.
    """
    path = folder / f"{id}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"answer {id}: found no record of it in {folder}, wanted an id that the API gave, such as answer-1f0c... "
            "Give the folder of `medagent serve --records` as --records. Only the newest records are kept."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: damaged ({error}), wanted JSON. Delete it; the answer cannot be replayed."
        ) from error
