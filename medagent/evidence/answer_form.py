"""Whether an answer has the form that a question asks for, whatever the passages say.

"Which gene" asks for a gene, and "Which nerve" for something that a passage calls a nerve. An answer that repeats its
passage's heading, or says no more than "mild", answers nothing.
"""

from __future__ import annotations

import re

from medagent.evidence.kinds import asked_for, describes
from medagent.evidence.words import folded, form, forms, named_words

_TYPED = re.compile(
    r"^\W*(?:(?:and|so|in|of|by|from|with)\s+)?(?:which|what)\s+(?:(?:type|kind|sort)s? of\s+)?(?P<type>"
    r"enzymes?|hormones?|vitamins?|metals?|minerals?|nerves?|organs?|glands?|chemicals?|substances?|proteins?|"
    r"bacteri(?:a|um)|virus(?:es)?|fung(?:us|i)|parasites?|joints?|bones?|muscles?|arter(?:y|ies)|vessels?|cells?|"
    r"insects?|animals?|foods?|toxins?|antibod(?:y|ies)|neurotransmitters?)\b",
    re.IGNORECASE,
)
_ASKS_FOR_A_GENE = re.compile(r"\b(?:which|what) (?:single )?genes?\b", re.IGNORECASE)
# A disease answers none of these kinds.
_NO_DISEASE = frozenset({"treatment", "diagnosis", "dose", "inheritance", "genetics", "frequency", "prevention"})
_DISEASE = re.compile(r"(?:emia|itis|osis|oma|opathy|cancer|fever|syndrome|disease|disorder|infection|deficiency)s?$")
_SYMBOL = r"[A-Z][A-Z0-9-]+"
_TOO_LITTLE = frozenset(
    form(word)
    for word in (
        "mild moderate severe serious various different several many some few one other inherited affected possible"
    ).split()
)


def asked_type(question: str) -> str:
    """The form of the noun that says what sort of thing is asked for; empty where there is none.

    >>> asked_type("Which nerves are affected in Bell's palsy?"), asked_type("What causes gout?")
    ('nerv', '')
    """
    found = _TYPED.match(question)
    return form(folded(found["type"])) if found else ""


def without_type(question: str) -> str:
    """The question with spaces for that noun."""
    found = _TYPED.match(question)
    if not found:
        return question
    start, end = found.span("type")
    return f"{question[:start]}{' ' * (end - start)}{question[end:]}"


def says_too_little(answer: str) -> bool:
    """Whether an answer has nothing but words such as "mild", which fit any condition."""
    words = forms(answer)
    return bool(words) and words <= _TOO_LITTLE


def echoes(answer: str, title: str, question: str, subject: frozenset[str]) -> bool:
    """Whether an answer only names the passage's subject, or another disease of that name where none is asked for.

    "Sickle cell anemia" answers nothing that is asked of sickle cell disease. Where the question describes its subject
    the name is what it asks for.
    """
    said = forms(answer)
    if describes(question) or not said & subject or any(kind.name == "a name" for kind in asked_for(question)):
        return False
    rest = [folded(word) for each, word in named_words(answer) if each not in forms(title) | subject]
    none_asked = {kind.name for kind in asked_for(question)} & _NO_DISEASE
    return not rest or (bool(none_asked) and all(_DISEASE.search(word) for word in rest))


def names_a_gene(answer: str, sentence: str, question: str) -> bool:
    """Where a question asks which gene: whether the sentence calls the answer one; else true.

    In "the CGG triplet in the FMR1 gene" FMR1 is the gene.
    """
    if not _ASKS_FOR_A_GENE.search(question) or re.search(r"\bgenes?\b", answer, re.IGNORECASE):
        return True
    name = re.escape(answer.strip())
    also = rf"(?:\s*\([^)]{{0,60}}\))?(?:(?:,|,? (?:and|or)) {_SYMBOL})*"
    called = r"(?:\s*(?:called|named|known as|:|\(|such as|including|are|is))*"
    listed = rf"\s+(?:{_SYMBOL}(?:,|,? (?:and|or))\s+)*"
    return bool(re.search(rf"\b{name}{also}\s+genes?\b|\bgenes?{called}{listed}{name}\b", sentence, re.IGNORECASE))
