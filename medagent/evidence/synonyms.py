"""Names of one meaning, of which subjects are compared by the first: "heart attack" is "myocardial infarction"."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from medagent.errors import ConfigError
from medagent.retrieval.passages import Passage

_ABBREVIATION = re.compile(r"[A-Z0-9]{2,6}")


class SynonymTable:
    """Groups of names; in a text each is replaced by the first of its group. Abbreviations need their capitals."""

    def __init__(self, groups: Iterable[Sequence[str]]) -> None:
        self.groups = [tuple(group) for group in groups]
        self._first: dict[str, str] = {}
        for group in self.groups:
            for name in group:
                self._first.setdefault(_key(name), group[0])
        longest = sorted(self._first, key=len, reverse=True)
        names = (key if _ABBREVIATION.fullmatch(key) else f"(?i:{re.escape(key)})" for key in longest)
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(names)})(?![\w-])".replace("'", "['\u2019]"))
        self.plain = lru_cache(maxsize=10_000)(self._plain)

    @staticmethod
    @lru_cache(maxsize=4)
    def load(path: Path | None = None) -> "SynonymTable":
        """The packaged table, after the groups of an operator's file, which come first.

        Raises:
            ConfigError: the file cannot be read, or has a line without two names.
        """
        packaged = _groups(files("medagent.evidence").joinpath("synonyms.txt").read_text(encoding="utf-8"))
        if path is None:
            return SynonymTable(packaged)
        try:
            own = _groups(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"synonyms {path}: cannot be read ({error}). Give a text file in UTF-8.") from error
        short = next((f"the line {group[0]!r}" for group in own if len(group) < 2), "" if own else "no line")
        if short:
            wanted = 'names as in "heart attack|myocardial infarction"'
            raise ConfigError(f"synonyms {path}: found {short}, wanted {wanted}.")
        return SynonymTable([*own, *packaged])

    def _plain(self, text: str) -> str:
        """The text with each name as the first of its group; a capital at its beginning is kept."""
        return self._pattern.sub(self._named, text) if self.groups else text

    def _named(self, found: re.Match[str]) -> str:
        said = found[0]
        name = self._first.get(said) or self._first[said.lower().replace("\u2019", "'")]
        if name.lower() == said.lower():
            return said
        return name[0].upper() + name[1:] if said[0].isupper() else name

    def plain_passage(self, passage: Passage) -> Passage:
        """The passage with the names of its heading and text replaced."""
        title, section, text = map(self.plain, (passage.title, passage.section, passage.text))
        return replace(passage, title=title, section=section, text=text)


def _key(name: str) -> str:
    return name if _ABBREVIATION.fullmatch(name) else name.lower()


def _groups(text: str) -> list[tuple[str, ...]]:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [tuple(name.strip() for name in line.split("|") if name.strip()) for line in lines]
