"""Names of one meaning, of which subjects are compared by the first: "heart attack" is "myocardial infarction"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from medagent.errors import ConfigError
from medagent.retrieval.passages import Passage

_ABBREVIATION = re.compile(r"[A-Z0-9]{2,6}")


@dataclass(frozen=True)
class SynonymTable:
    """Groups of names; in a text each is replaced by the first of its group. Abbreviations need their capitals."""

    groups: tuple[tuple[str, ...], ...]

    @staticmethod
    @lru_cache(maxsize=4)
    def load(path: Path | None = None) -> SynonymTable:
        """The packaged table, after the groups of an operator's file, which come first.

        Raises:
            ConfigError: the file cannot be read, or has a line without two names.
        """
        own: list[tuple[str, ...]] = []
        if path is not None:
            try:
                own = list(_groups(path.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"synonyms {path}: cannot be read ({error}). Give a text file in UTF-8.") from error
            short = next((group for group in own if len(group) < 2), None)
            if short or not own:
                found = f"found the line {short[0]!r}" if short else "found no line"
                raise ConfigError(f'synonyms {path}: {found}, wanted names as in "heart attack|myocardial infarction".')
        packaged = files("medagent.evidence").joinpath("synonyms.txt").read_text(encoding="utf-8")
        return SynonymTable((*own, *_groups(packaged)))

    def __hash__(self) -> int:
        """By identity: a table is loaded once."""
        return id(self)

    @lru_cache(maxsize=10_000)  # noqa: B019 (tables live as long as the process)
    def plain(self, text: str) -> str:
        """The text with each name as the first of its group."""
        pattern, first = _compiled(self)

        def named(found: re.Match[str]) -> str:
            name = first.get(found[0]) or first[_key(found[0])]
            same = _key(name) == _key(found[0])
            return found[0] if same else name[0].upper() + name[1:] if found[0][0].isupper() else name

        return pattern.sub(named, text) if first else text

    def plain_passage(self, passage: Passage) -> Passage:
        """The passage with the names of its heading and text replaced."""
        parts = {name: self.plain(getattr(passage, name)) for name in ("title", "section", "text")}
        return replace(passage, **parts)


@lru_cache(maxsize=4)
def _compiled(table: SynonymTable) -> tuple[re.Pattern[str], dict[str, str]]:
    first: dict[str, str] = {}
    for group in table.groups:
        for name in group:
            first.setdefault(name if _ABBREVIATION.fullmatch(name) else _key(name), group[0])
    longest = sorted(first, key=len, reverse=True)
    names = "|".join(
        name if _ABBREVIATION.fullmatch(name) else f"(?i:{re.escape(name)})".replace("'", "['\u2019]")
        for name in longest
    )
    return re.compile(rf"(?<![\w-])(?:{names})(?![\w-])"), first


def _key(name: str) -> str:
    return name.lower().replace("\u2019", "'")


def _groups(text: str) -> Iterable[tuple[str, ...]]:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return (tuple(name.strip() for name in line.split("|") if name.strip()) for line in lines)
