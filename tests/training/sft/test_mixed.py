"""Mixes of dialogues: how many of each part, and no question twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.training.sft.data import LeftOutReason, question_key
from medagent.training.sft.dialogues import Demonstrations, MixedDemonstrations, Part
from medagent.types import Question, Rollout
from tests.training.sft.support import RULES, dialogue


class Some(Demonstrations):
    """Dialogues of questions with these texts."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self.made_in: list[Path] = []

    def make(self, settings, retriever, folder, tokenizer) -> None:
        self.made_in.append(folder)

    def read(self, folder, protocol) -> list[Rollout]:
        self.left_out = {LeftOutReason.WRONG: 1}
        return [dialogue(text, id=f"{self._texts[0]}:{number}") for number, text in enumerate(self._texts)]


def some(name: str, count: int) -> Some:
    return Some(*(f"{name} {number}" for number in range(count)))


def mixed(*parts: Part, **init_args: object) -> tuple[list[str], MixedDemonstrations]:
    mix = MixedDemonstrations(list(parts), **init_args)
    return [rollout.question.text for rollout in mix.read(Path("nowhere"), TagProtocol())], mix


def test_each_part_gives_its_number() -> None:
    sizes = {"a": (5, 2), "b": (3, 9), "c": (4, 0), "d": (2, None)}
    made = [Part(some(name, count), number) for name, (count, number) in sizes.items()]
    texts, mix = mixed(*made)
    assert Counter(text.split()[0] for text in texts) == {"a": 2, "b": 3, "d": 2}
    assert mix.parts == {"1": 2, "2": 3, "3": 0, "4": 2}
    assert mix.left_out[LeftOutReason.SURPLUS] == 7
    assert mix.left_out[LeftOutReason.WRONG] == len(made), "what the parts left out counts too"
    with pytest.raises(ConfigError, match="number -1, wanted 0 or more"):
        Part(some("a", 1), -1)


def test_a_question_counts_in_the_first_part_that_draws_it() -> None:
    first, second = Some("What?", "Why?"), Some("WHAT? ", "How?")
    texts, mix = mixed(Part(first), Part(second))
    assert texts == ["What?", "Why?", "How?"]
    assert mix.left_out[LeftOutReason.REPEATED] == 1
    texts, mix = mixed(Part(first, number=0), Part(second))
    assert texts == ["WHAT? ", "How?"], "what was not drawn is free"
    texts, _ = mixed(Part(Some("What?", "What?")))
    assert len(texts) == 2, "what a part itself repeats stays"


def test_questions_are_told_apart_by_text_and_options() -> None:
    one = Question("1", "What  treats gout?", ("Aspirin", "colchicine"), "B")
    assert question_key(one) == question_key(Question("2", "what treats GOUT?", ("colchicine", "aspirin"), "A"))
    assert question_key(one) != question_key(Question("1", "What treats gout?", ("aspirin", "zinc"), "B"))
    assert question_key(one) != question_key(Question("1", "What treats gout?"))


def test_a_seed_draws_the_dialogues() -> None:
    def drawn(seed: int) -> list[str]:
        return mixed(Part(some("a", 50), number=5), Part(some("b", 50), number=5), seed=seed)[0]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    places = [[int(text.split()[1]) for text in drawn(0) if text[0] == name] for name in "ab"]
    assert places[0] == sorted(places[0]), "in their order"
    assert places[0] != places[1], "each part draws its own"


def test_each_part_has_a_folder(tokenizer, tmp_path: Path) -> None:
    one, other = Some("a"), Some("b")
    MixedDemonstrations([Part(one), Part(other)]).make(RULES, NoRetriever(), tmp_path, tokenizer)
    assert (one.made_in, other.made_in) == ([tmp_path / "part-1"], [tmp_path / "part-2"])
