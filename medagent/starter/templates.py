"""The phrasings of the starter world. The warm start uses the same ones for its made-up facts.

`{v}` is the value, which comes last so that the citation number follows it, `{c}` a condition or a description of one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """How one kind of fact is searched for, told in passages, and asked about."""

    key: str
    passages: tuple[str, ...]
    questions: tuple[str, ...]
    descriptions: tuple[str, ...] = ()  # of a condition by its value: the first hop of a two-hop question


RELATIONS: dict[str, Relation] = {
    "drug": Relation(
        "first-line drug",
        (
            "The first-line drug is {v}.",
            "The usual first-line drug is {v}.",
            "For treatment, the first-line drug is {v}.",
        ),
        (
            "What is the first-line drug for {c}?",
            "Which drug is the first choice for {c}?",
            "Which drug is used first to treat {c}?",
        ),
    ),
    "cause": Relation(
        "cause",
        ("The cause is {v}.", "The known cause is {v}.", "Its cause was found to be {v}."),
        ("What is the cause of {c}?", "What causes {c}?", "Which of these causes {c}?"),
        ("the disease caused by {v}", "the condition caused by {v}"),
    ),
    "test": Relation(
        "confirming test",
        ("The confirming test is {v}.", "The best confirming test is {v}.", "As confirming test, doctors use {v}."),
        ("What is the confirming test for {c}?", "Which test confirms {c}?", "How is {c} confirmed?"),
    ),
    "sign": Relation(
        "classic sign",
        ("The classic sign is {v}.", "The most classic sign is {v}.", "On examination, the classic sign is {v}."),
        ("What is the classic sign of {c}?", "Which finding is typical of {c}?", "Which sign points to {c}?"),
        ("the condition whose classic sign is {v}", "the disease with the typical finding of {v}"),
    ),
    "mechanism": Relation(
        "mechanism",
        ("The mechanism is {v}.", "The underlying mechanism is {v}.", "Its known mechanism is {v}."),
        ("What is the mechanism of {c}?", "What is the underlying mechanism of {c}?", "From what does {c} result?"),
        ("the condition that results from {v}", "the disease whose mechanism is {v}"),
    ),
    "inheritance": Relation(
        "inheritance",
        ("The inheritance is {v}.", "The pattern of inheritance is {v}.", "The usual inheritance is {v}."),
        (
            "What is the inheritance of {c}?",
            "What is the usual pattern of inheritance of {c}?",
            "Which inheritance does {c} show?",
        ),
    ),
}
INHERITANCE = ("autosomal dominant", "autosomal recessive", "X-linked recessive", "X-linked dominant", "mitochondrial")


def query(name: str, relation: str) -> str:
    """The search query for one fact, such as "gout first-line drug"."""
    return f"{name} {RELATIONS[relation].key}"
