"""Mixes of dialogues: how many of each part, and no question twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.training.sft.data import question_key
from medagent.training.sft.dialogues import Demonstrations, MixedDemonstrations, Part
from medagent.training.sft.tokenized_dialogues import LeftOut
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
        self.left_out = {LeftOut.WRONG: 1}
        return [dialogue(text, id=f"{self._texts[0]}:{number}") for number, text in enumerate(self._texts)]


def some(name: str, count: int) -> Some:
    return Some(*(f"{name} {number}" for number in range(count)))


def mixed(*parts: Part, **init_args: object) -> tuple[list[str], MixedDemonstrations]:
    mix = MixedDemonstrations(list(parts), **init_args)
    return [rollout.question.text for rollout in mix.read(Path("nowhere"), TagProtocol())], mix


def counts(texts: list[str]) -> dict[str, int]:
    return dict(Counter(text.split()[0] for text in texts))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([("a", 5, {}), ("b", 3, {})], {"a": 5, "b": 3}),
        ([("a", 5, {"number": 2}), ("b", 3, {"number": 9})], {"a": 2, "b": 3}),
        # 10 / 0.25 = 40 would need 30 of b; 6 / 0.75 = 8 is the largest mix: 2 and 6.
        ([("a", 10, {"share": 0.25}), ("b", 6, {"share": 0.75})], {"a": 2, "b": 6}),
        # 6 without a share are three quarters of 8, so a quarter is 2.
        ([("a", 10, {"share": 0.25}), ("b", 6, {})], {"a": 2, "b": 6}),
        ([("a", 1, {"share": 0.25}), ("b", 6, {})], {"a": 1, "b": 6}),
        ([("a", 4, {"number": 0}), ("b", 2, {})], {"b": 2}),
        ([("a", 4, {"share": 1.0})], {"a": 4}),
    ],
)
def test_each_part_gives_its_number_or_share(parts: list, wanted: dict[str, int]) -> None:
    made = [Part(some(name, count), **how) for name, count, how in parts]
    texts, mix = mixed(*made)
    assert counts(texts) == wanted
    assert list(mix.parts.values()) == [wanted.get(name, 0) for name, _, _ in parts]
    assert mix.left_out[LeftOut.SURPLUS] == sum(count for _, count, _ in parts) - len(texts)
    assert mix.left_out[LeftOut.WRONG] == len(parts), "what the parts left out counts too"


def test_a_question_counts_in_the_first_part_that_draws_it() -> None:
    first, second = Some("What?", "Why?"), Some("WHAT? ", "How?")
    texts, mix = mixed(Part(first), Part(second))
    assert texts == ["What?", "Why?", "How?"]
    assert mix.left_out[LeftOut.REPEATED] == 1
    texts, mix = mixed(Part(first, number=0), Part(second))
    assert texts == ["WHAT? ", "How?"], "what was not drawn is free"
    texts, mix = mixed(Part(first), Part(second), repeat_questions=True)
    assert len(texts) == 4
    assert mix.left_out[LeftOut.REPEATED] == 0
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


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{"share": 0.5}],
        [{"share": 0.5}, {"share": 0.6}],
        [{"share": 1.0}, {}],
        [{"share": 0.5, "number": 3}],
        [{"share": 0.0}, {}],
        [{"number": -1}],
    ],
)
def test_what_cannot_be_mixed_is_refused(parts: list[dict[str, float]]) -> None:
    with pytest.raises(ConfigError, match="MixedDemonstrations"):
        MixedDemonstrations([Part(Some("a"), **part) for part in parts])


def test_an_empty_part_among_shares_is_named_instead_of_emptying_the_mix() -> None:
    class Nothing(Some):
        def read(self, folder, protocol) -> list[Rollout]:
            self.left_out = {LeftOut.WRONG: 3}
            return []

    with pytest.raises(ConfigError, match="no dialogue in part 2 .*answer wrong"):
        mixed(Part(some("a", 8), share=0.5), Part(Nothing(), share=0.5))
    assert counts(mixed(Part(some("a", 8)), Part(Nothing(), share=0.5))[0]) == {"a": 8}
