"""The starter world: real medical facts, their passages, and multiple-choice questions split by condition.

A question's distractors come from other specialties and share no long word with the answer. So only one is right.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from importlib import resources
from typing import Literal, get_args

from medagent.retrieval.passages import Passage
from medagent.starter.templates import INHERITANCE, RELATIONS
from medagent.types import LETTERS, Question

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
NUM_OPTIONS = 4
_UP_TO: dict[Split, float] = {"train": 0.6, "validation": 0.6 + 0.1, "test": 1.0}  # of the conditions' ranks


@dataclass(frozen=True)
class Condition:
    """A condition and its facts: relation -> value (relations as in `templates.RELATIONS`)."""

    name: str
    specialty: str
    facts: Mapping[str, str]
    split: Split


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def passage_id(condition: str, relation: str) -> str:
    """The stable id of a fact's passage."""
    return f"starter:{_slug(condition)}:{relation}"


def _seed(*parts: object) -> int:
    return int.from_bytes(sha256("|".join(map(str, parts)).encode()).digest()[:8], "big")


def _gives_away(value: str, name: str) -> bool:
    """Whether a value says a condition's name, in full or by the stem of a long word (Vibrio cholerae, cholera)."""
    stems = {word[:6] for word in _long_words(name) if len(word) >= 6}
    return name.lower() in value.lower() or any(word[:6] in stems for word in _long_words(value))


@cache
def _long_words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) >= 5)


@dataclass(frozen=True)
class World:
    """Conditions with their facts. Passages and questions follow from them deterministically."""

    conditions: tuple[Condition, ...]

    @staticmethod
    def load() -> "World":
        """The packaged knowledge base. The hash of a condition's name decides its split."""
        text = resources.files("medagent.starter").joinpath("facts.psv").read_text(encoding="utf-8")
        rows = [line.split("|") for line in text.splitlines() if line and not line.startswith("#")]
        rows.sort(key=lambda row: _seed("split", row[0]))
        conditions = []
        for rank, (name, specialty, *values) in enumerate(rows):
            split = next(split for split, share in _UP_TO.items() if rank / len(rows) < share)
            facts = {relation: value for relation, value in zip(RELATIONS, values, strict=True) if value}
            conditions.append(Condition(name, specialty, facts, split))
        return World(tuple(sorted(conditions, key=lambda condition: condition.name.lower())))

    @property
    def names(self) -> frozenset[str]:
        """Every name in the knowledge base (conditions and values), which made-up names must avoid."""
        values = {value for condition in self.conditions for value in condition.facts.values()}
        return frozenset({condition.name for condition in self.conditions} | values)

    def passages(self, splits: Iterable[Split] = SPLITS) -> list[Passage]:
        """One passage per fact. The fact's hash chooses one of several phrasings."""
        wanted = set(splits)
        return [
            Passage(
                passage_id(condition.name, relation),
                condition.name,
                RELATIONS[relation].passages[_seed("phrase", condition.name, relation) % 3].format(v=value),
                f"starter knowledge base ({condition.specialty} teaching)",
            )
            for condition in self.conditions
            if condition.split in wanted
            for relation, value in condition.facts.items()
        ]

    @cached_property
    def _values(self) -> dict[str, defaultdict[str, set[str]]]:
        """The values of a relation, by the split and by the specialty of their conditions."""
        found = {relation: defaultdict[str, set[str]](set) for relation in RELATIONS}
        for condition in self.conditions:
            for relation, value in condition.facts.items():
                found[relation][condition.split].add(value)
                found[relation][condition.specialty].add(value)
        return found

    def _options(self, condition: Condition, relation: str, *, text: str, rng: random.Random, lure: str) -> list[str]:
        """The answer first, then the lure (if any) and distractors of the same kind, as far as there are any."""
        answer = condition.facts[relation]
        chosen = [answer] + ([lure] if lure and lure != answer else [])
        if relation == "inheritance":
            others = [value for value in INHERITANCE if value not in chosen]
            return chosen + rng.sample(others, NUM_OPTIONS - len(chosen))
        values = self._values[relation]
        pool = sorted(values[condition.split] - values[condition.specialty])
        rng.shuffle(pool)
        taken = _long_words(text).union(*map(_long_words, chosen))
        for value in pool:
            if len(chosen) == NUM_OPTIONS:
                break
            if not _long_words(value) & taken:
                chosen.append(value)
                taken |= _long_words(value)
        return chosen

    def questions(
        self, split: Split, *, limit_per_kind: int | None = None, skip_per_kind: int = 0, lures: "World | None" = None
    ) -> list[Question]:
        """One-hop and two-hop questions on the split's conditions, in a fixed shuffled order.

        It takes `limit_per_kind` of each kind after the first `skip_per_kind`. With `lures`, each question also
        offers the value that world holds to be true; a question on which both worlds agree is left out.
        """
        counts = Counter(
            (relation, value.lower()) for condition in self.conditions for relation, value in condition.facts.items()
        )
        truths = {condition.name: condition.facts for condition in lures.conditions} if lures else {}
        found: dict[str, list[Question]] = {"one_hop": [], "two_hop": []}
        for condition in self.conditions:
            if condition.split != split:
                continue
            for relation in condition.facts:
                lure = truths.get(condition.name, {}).get(relation, "")
                if lures and lure == condition.facts[relation]:
                    continue
                clues = [
                    clue
                    for clue, value in condition.facts.items()
                    if clue != relation
                    and RELATIONS[clue].descriptions
                    and counts[clue, value.lower()] == 1
                    and not _gives_away(value, condition.name)
                ]
                for clue in ["", *clues]:
                    question = self._question(condition, relation, clue, lure)
                    if len(question.options) == NUM_OPTIONS:
                        found[question.kind].append(question)
        selected = []
        for kind, questions in found.items():
            random.Random(_seed("order", split, kind)).shuffle(questions)
            selected += questions[skip_per_kind:][:limit_per_kind]
        random.Random(_seed("mix", split)).shuffle(selected)
        return selected

    def _question(self, condition: Condition, relation: str, clue: str, lure: str) -> Question:
        rng = random.Random(_seed("question", condition.name, relation, clue))
        about, gold = condition.name, [passage_id(condition.name, relation)]
        if clue:
            about = rng.choice(RELATIONS[clue].descriptions).format(v=condition.facts[clue])
            gold.insert(0, passage_id(condition.name, clue))
        text = rng.choice(RELATIONS[relation].questions).format(c=about)
        options = self._options(condition, relation, text=text, rng=rng, lure=lure)
        answer = options[0]
        rng.shuffle(options)
        return Question(
            id=f"starter:{_slug(condition.name)}:{clue + '-' if clue else ''}{relation}",
            text=text,
            options=tuple(options),
            answer=LETTERS[options.index(answer)],
            kind="two_hop" if clue else "one_hop",
            gold_passage_ids=tuple(gold),
            meta={"condition": condition.name, "relation": relation, "clue": clue},
        )

    def counterfactual(self, split: Split, *, seed: int = 0) -> "World":
        """A world in which the facts of the split's conditions are permuted among them, relation by relation."""
        changed = {condition.name: dict(condition.facts) for condition in self.conditions}
        for relation in RELATIONS:
            holders = [c.name for c in self.conditions if c.split == split and relation in c.facts]
            random.Random(_seed("permute", seed, relation)).shuffle(holders)
            values = [changed[name][relation] for name in holders]
            for name, value in zip(holders, values[1:] + values[:1], strict=True):
                changed[name][relation] = value
        return World(tuple(replace(c, facts=changed[c.name]) for c in self.conditions))
