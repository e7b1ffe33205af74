"""A folder of results with one writer at a time (`.lock`), marked by its kind (`.medagent-KIND`)."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from medagent.errors import ConfigError

LOCK = ".lock"
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True)
class RunFolder:
    """A folder that a command writes: `kind`, such as "study", and the `option` by which a user names another one."""

    path: Path
    kind: str
    option: str = "--out"

    @property
    def is_marked(self) -> bool:
        """Whether the folder holds something of this kind."""
        return self._marker.exists()

    @property
    def _marker(self) -> Path:
        return self.path / f".medagent-{self.kind}"

    def make(self) -> None:
        """Create the folder where there is none. Raises `ConfigError` where that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.kind} folder {self.path}: cannot be made ({error.strerror}). Give another folder with "
                f"{self.option}."
            ) from error

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """Lock the folder. Raises `ConfigError` where another process holds the lock, or it cannot be made."""
        self.make()
        with (self.path / LOCK).open("a+", encoding="utf-8") as file:
            file.seek(0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.kind} folder {self.path}: another process is at work there ({file.read().strip()}). "
                    f"Wait for it, or end it. Or give another folder with {self.option}."
                ) from None
            file.truncate(0)
            file.write(f"{self.kind}, process {os.getpid()}\n")
            file.flush()
            yield

    def refuse_others(self, *parts: str) -> None:
        """Raise `ConfigError` where the folder holds files, or any of `parts`, and no marker of this kind."""
        if self.is_marked or not self.path.exists():
            return
        self.make()  # which refuses a file in its place
        names = sorted(path.name for path in self.path.iterdir() if path.name != LOCK)
        if found := [name for name in names if not parts or name in parts]:
            raise ConfigError(
                f"{self.kind} folder {self.path}: holds {', '.join(found[:3])} that no {self.kind} of ours wrote "
                f"(there is no {self._marker.name}). Give another folder with {self.option}."
            )

    def claim(self, *parts: str) -> None:
        """Mark the folder as one of this kind, or raise `ConfigError` as `refuse_others` does."""
        self.refuse_others(*parts)
        self.mark()

    def mark(self) -> None:
        """Create the folder where there is none, and mark it as one of this kind."""
        self.make()
        self._marker.touch()


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, unless they are ignored, as below nohup."""

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        before = {each: signal.getsignal(each) for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
