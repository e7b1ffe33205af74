"""Lessons: made-up names, dialogues in the format of rollouts, and how often they search."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from medagent.protocol import TagProtocol
from medagent.starter.world import World
from studies.starter_base.lessons import (
    STARTER_LIMITS,
    STARTER_PROTOCOL,
    Habits,
    LessonMaker,
    answer_turn,
    word_pieces,
)
from studies.starter_base.made_up_names import NameMaker


def test_made_up_names_are_never_real(world: World, tokenizer) -> None:
    maker = NameMaker(random.Random(0), forbidden=world.names, pieces=word_pieces(tokenizer))
    real = {name.lower() for name in world.names}
    for kind in ("condition", "drug", "cause", "test", "sign", "mechanism", "word"):
        names = [maker.draw(kind) for _ in range(500)]
        assert not {name.lower() for name in names} & real
        assert len(set(names)) > 200
    forbidden = {"Some Name"}
    choosy = NameMaker(random.Random(0), forbidden=forbidden)
    choosy._makers["drug"] = iter(["some name", "SOME NAME", "other"]).__next__
    assert choosy.draw("drug") == "other"


def test_lessons_are_dialogues_in_the_format_of_rollouts(tokenizer, world: World) -> None:
    maker = LessonMaker(
        tokenizer, seed=0, habits=Habits(1.0, 1.0, useless_results=0.0, open_question=0.0), forbidden=world.names
    )
    for _ in range(50):
        lesson = maker.draw()
        text = tokenizer.decode(lesson.token_ids)
        assert text.startswith("Question: ")
        assert "Options:" in text
        first = lesson.action_mask.index(True)
        turns, current = [], []
        for token, action in zip(lesson.token_ids[first:], lesson.action_mask[first:], strict=True):
            if action:
                current.append(token)
            elif current:
                turns.append(tokenizer.decode(current))
                current = []
        turns.append(tokenizer.decode(current))
        parsed = [TagProtocol().parse(turn) for turn in turns]
        assert all(part.query for part in parsed[:-1])
        assert parsed[-1].answer
        assert len(turns) <= STARTER_LIMITS.max_turns
        assert tokenizer.decode([lesson.token_ids[lesson.lookup[0]]]) in parsed[-1].answer
        # Every piece was encoded as the rollout loop would encode it.
        assert max(len(tokenizer(turn)["input_ids"]) for turn in turns) <= STARTER_LIMITS.max_turn_tokens + 40


def test_habits_set_how_often_lessons_search(tokenizer) -> None:
    def share(habits: Habits) -> float:
        maker = LessonMaker(tokenizer, seed=1, habits=habits)
        return sum("<search>" in tokenizer.decode(maker.draw().token_ids) for _ in range(300)) / 300

    assert share(Habits(first_search=0.0, open_question=0.0)) == 0
    assert share(Habits(first_search=1.0)) == 1
    assert 0.3 < share(Habits(first_search=0.4, open_question=0.0)) < 0.5


def test_after_useless_searches_a_lesson_says_so_and_guesses(tokenizer) -> None:
    habits = Habits(first_search=1.0, second_search=1.0, useless_results=1.0, open_question=0.0)
    maker = LessonMaker(tokenizer, seed=4, habits=habits)
    searches, thoughts = set(), set()
    for _ in range(40):
        lesson = maker.draw()
        text = tokenizer.decode(lesson.token_ids)
        thought = text.split("<think> ")[1].split("</think>")[0]
        answer = text.split("<answer> ")[1].split("</answer>")[0]
        assert not lesson.lookup
        searches.add(text.count("<search>"))
        thoughts.add(thought == "not found")
        if thought == "not found":  # an option with its letter, and no citation
            assert re.fullmatch(r".+ \([A-D]\)", answer)
            assert text.count(answer[: answer.index(" (")]) >= 2
        else:  # what was read of a stranger, with its passage's number and some letter
            value, number = thought.rstrip("]").split(" [")
            assert re.fullmatch(re.escape(value) + r" \([A-D]\) \[" + number + r"\]", answer)
            assert text.count(thought) == 2
    assert searches == {1, 2}
    assert thoughts == {True, False}
    open_lesson = LessonMaker(tokenizer, seed=4, habits=replace(habits, open_question=1.0)).draw()
    assert tokenizer.decode(open_lesson.token_ids).endswith("<think> not found</think><answer> not found</answer>")


def test_many_names_repeat_a_beginning_within_themselves(world: World, tokenizer) -> None:
    maker = NameMaker(random.Random(5), forbidden=world.names, pieces=word_pieces(tokenizer))

    def repeats(name: str) -> bool:
        beginnings = [word[:4] for word in name.split() if len(word) > 3]
        return len(set(beginnings)) < len(beginnings)

    for kind in ("condition", "drug", "cause"):
        assert sum(repeats(maker.draw(kind)) for _ in range(400)) > 30


def test_akin_names_share_a_stem_and_are_never_the_other(world: World) -> None:
    maker = NameMaker(random.Random(3), forbidden=world.names)
    for _ in range(300):
        other = maker.draw("condition")
        name = maker.akin(maker.draw("sign"), other)
        assert name != other
        assert any(word[:3] in name for word in other.split())


def test_exercises_show_what_they_ask(tokenizer) -> None:
    maker = LessonMaker(tokenizer, seed=2, habits=Habits())
    pairs, drill = maker.pairs(), maker.drill()
    assert len(pairs.lookup) == 8
    assert len(drill.lookup) == 4
    assert tokenizer.decode(drill.token_ids).count("<answer>") == 4


def test_starter_format(tokenizer) -> None:
    assert answer_turn("x", "", cited=1, thought="x") == "<think> x [1]</think><answer> x [1]</answer>"
    assert answer_turn("x", "C") == "<answer> x (C)</answer>"
    assert STARTER_PROTOCOL.options_style == "letter_last"


def test_lessons_can_think_aloud_in_every_turn(starter, world: World) -> None:
    _, tokenizer = starter
    maker = LessonMaker(tokenizer, seed=7, habits=Habits(thinking=32), forbidden=world.names)
    lengths: list[int] = []
    for _ in range(40):
        lesson = maker.draw()
        ids = [token for token, acted in zip(lesson.token_ids, lesson.action_mask, strict=True) if acted]
        spoken = tokenizer.decode(ids)
        thoughts = re.findall(r"<think>(.*?)</think>(?=<search>|<answer>)", spoken)
        assert len(thoughts) == spoken.count("<search>") + spoken.count("<answer>")
        lengths += [len(tokenizer.encode(thought, add_special_tokens=False)) for thought in thoughts]
    assert min(lengths) >= 32
    assert sum(lengths) / len(lengths) < 48
