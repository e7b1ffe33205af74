"""The phrasings of the starter world, of `relations.yaml`. The warm start uses the same ones for its made-up facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class Relation:
    """How one kind of fact is searched for, told in passages, and asked about."""

    key: str
    passages: Sequence[str]
    questions: Sequence[str]
    descriptions: Sequence[str] = ()  # of a condition by its value: the first hop of a two-hop question


_FILE = files("medagent.starter").joinpath("relations.yaml")
RELATIONS = {name: Relation(**row) for name, row in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()}
INHERITANCE = ("autosomal dominant", "autosomal recessive", "X-linked recessive", "X-linked dominant", "mitochondrial")
