"""Questions that may come from a person in danger get a fixed line above any answer, by the patterns of a file."""

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medagent.errors import ConfigError
from medagent.evidence.words import folded

NEVER = r"(?!)"  # an expression that nothing matches
LONGEST = 2_000  # characters of a question that are looked at, from its beginning and from its end
NUMBER = "your local emergency number (112 in Europe, 911 in North America)"


class _Kind(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: str
    line: Annotated[str, Field(min_length=1)]
    unless: str = NEVER
    patterns: Annotated[list[str], Field(min_length=1)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    pleading: str = NEVER
    kinds: list[_Kind]


@dataclass(frozen=True)
class Emergencies:
    """Kinds of emergency: the line of each, what finds it, and what excepts a textbook's question from it."""

    kinds: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]
    pleading: re.Pattern[str]

    @staticmethod
    def load(path: Path | None = None, *, number: str = NUMBER) -> "Emergencies":
        """The packaged file, or an operator's. `number` is whom the lines tell to call.

        Raises:
            ConfigError: the file cannot be read, lacks a field, or holds an expression that is none.
        """
        source = files("medagent.evidence").joinpath("emergencies.yaml") if path is None else path
        try:
            found = _File.model_validate(yaml.safe_load(source.read_text(encoding="utf-8")))
            lines = [" ".join(each.line.split()).replace("{number}", number) for each in found.kinds]
            known = [re.compile("|".join(f"(?:{pattern})" for pattern in each.patterns)) for each in found.kinds]
            unless = [re.compile(each.unless) for each in found.kinds]
            return Emergencies(tuple(zip(lines, known, unless, strict=True)), re.compile(found.pleading))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError, re.error) as error:
            wanted = "medagent/evidence/emergencies.yaml: kinds, each with a line and regular expressions"
            raise ConfigError(f"emergencies {path}: cannot be used ({error}). Give a file like {wanted}.") from error

    def line_for(self, *questions: str) -> str | None:
        """The line above an answer to these questions: that of the first which has one, None where none has."""
        for question in questions:
            plain = folded(question).replace("\u2019", "'")
            plain = plain if len(plain) <= 2 * LONGEST else f"{plain[:LONGEST]} {plain[-LONGEST:]}"
            pleads = bool(self.pleading.search(plain))
            for line, known, unless in self.kinds:
                if known.search(plain) and (pleads or not unless.search(plain)):
                    return line
        return None
