from __future__ import annotations

from collections import Counter

from medagent.starter.templates import INHERITANCE, RELATIONS
from medagent.starter.world import SPLITS, World, passage_id
from studies.starter_base.lessons import query


def test_the_knowledge_base_has_its_promised_size(world: World) -> None:
    assert len(world.conditions) >= 250
    assert sum(len(condition.facts) for condition in world.conditions) >= 1000
    assert len({condition.name.lower() for condition in world.conditions}) == len(world.conditions)
    kinds = Counter(question.kind for question in world.questions("test"))
    assert set(kinds) == {"one_hop", "two_hop"}
    assert kinds.total() >= 300
    assert min(kinds.values()) >= 200
    letters = Counter(question.answer for question in world.questions("test"))
    assert all(0.2 < letters[letter] / letters.total() < 0.3 for letter in "ABCD")


def test_facts_are_well_formed(world: World) -> None:
    for condition in world.conditions:
        assert len(condition.facts) >= 2, condition.name
        for relation, value in condition.facts.items():
            assert value == value.strip()
            assert not set("<>[]|") & set(value)
            assert relation != "inheritance" or value in INHERITANCE
            assert value.lower() != condition.name.lower()


def test_splits_share_no_condition(world: World) -> None:
    names = {split: {c.name for c in world.conditions if c.split == split} for split in SPLITS}
    assert sum(map(len, names.values())) == len(world.conditions)
    asked = {split: {q.meta["condition"] for q in world.questions(split)} for split in SPLITS}
    for split in SPLITS:
        assert asked[split] <= names[split]
    trained = {passage.title for passage in world.passages(("train", "validation"))}
    assert not trained & names["test"]


def test_a_question_has_one_right_option_of_the_same_kind(world: World) -> None:
    facts = {condition.name: condition.facts for condition in world.conditions}
    specialty = {condition.name: condition.specialty for condition in world.conditions}
    holders: dict[tuple[str, str], set[str]] = {}
    for condition in world.conditions:
        for relation, value in condition.facts.items():
            holders.setdefault((relation, value), set()).add(condition.name)
    for question in (question for split in SPLITS for question in world.questions(split)):
        name, relation = question.meta["condition"], question.meta["relation"]
        right = question.options["ABCD".index(question.answer)]
        assert right == facts[name][relation]
        assert len(set(question.options)) == 4
        for option in set(question.options) - {right}:
            others = holders.get((relation, option), set())
            assert option in INHERITANCE if relation == "inheritance" else others, "of the same kind"
            if relation != "inheritance":
                assert all(specialty[other] != specialty[name] for other in others)


def test_two_hop_questions_name_one_condition_and_do_not_say_it(world: World) -> None:
    clues = Counter((r, v.lower()) for c in world.conditions for r, v in c.facts.items())
    facts = {condition.name: condition.facts for condition in world.conditions}
    seen = 0
    for question in world.questions("test"):
        if question.kind != "two_hop":
            assert question.gold_passage_ids == (passage_id(question.meta["condition"], question.meta["relation"]),)
            continue
        name, clue = question.meta["condition"], question.meta["clue"]
        assert clues[clue, facts[name][clue].lower()] == 1
        assert name not in question.text
        assert len(question.gold_passage_ids) == 2
        seen += 1
    assert seen >= 200


def test_every_fact_is_found_by_its_query(world: World, retriever) -> None:
    facts = [(c.name, r) for c in world.conditions for r in c.facts]
    results = retriever.search([query(name, relation) for name, relation in facts], top_k=2)
    found = [passage_id(*fact) in {hit.passage.id for hit in hits} for fact, hits in zip(facts, results, strict=True)]
    assert sum(found) / len(found) > 0.99


def test_the_counterfactual_world_permutes_only_its_split(world: World) -> None:
    changed = world.counterfactual("test")
    moved = 0
    for before, after in zip(world.conditions, changed.conditions, strict=True):
        assert before.name == after.name
        if before.split != "test":
            assert before.facts == after.facts
        moved += sum(before.facts[r] != after.facts[r] for r in before.facts)
    for relation in RELATIONS:
        values = [Counter(c.facts.get(relation) for c in w.conditions if c.split == "test") for w in (world, changed)]
        assert values[0] == values[1]
    assert moved > 300
    for question in changed.questions("test", limit_per_kind=100, lures=world):
        held = next(c for c in world.conditions if c.name == question.meta["condition"])
        truth = held.facts[question.meta["relation"]]
        assert truth in question.options
        assert truth != question.options["ABCD".index(question.answer)]
