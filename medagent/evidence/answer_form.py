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
    r"insects?|animals?|foods?|chromosomes?|toxins?|antibod(?:y|ies)|neurotransmitters?)\b",
    re.IGNORECASE,
)
_ASKS_FOR_A_GENE = re.compile(r"\b(?:which|what) (?:single )?genes?\b", re.IGNORECASE)
# A disease answers none of these kinds.
_NO_DISEASE = frozenset({"treatment", "diagnosis", "dose", "inheritance", "genetics", "frequency", "prevention"})
_DISEASE = re.compile(r"(?:emia|itis|osis|oma|opathy|cancer|fever|syndrome|disease|disorder|infection|deficiency)s?$")
_SYMBOL = r"[A-Z][A-Z0-9-]+"
# Some sorts a passage takes for granted: it says "tick", and not "insect".
_UNSAID = frozenset(form(word) for word in "insect animal food chemical substance".split())
_TOO_LITTLE = frozenset(
    (
        "mild moderate severe serious various different several many some few one other inherited affected possible "
        "medical and or"
    ).split()
)
# Of these kinds the words that ask for them are no answer: "treatment" is none to "How is gout treated?".
_SAYS_ITSELF = frozenset({"treatment", "diagnosis", "signs", "mechanism", "harms", "outlook"})
_WHAT_IS = re.compile(r"^\W*what(?:'s|\u2019s| is| are)\s", re.IGNORECASE)
_IS = re.compile(r"\b(?:is|are|means?|refers? to|occurs?|happens?|describes?)\b", re.IGNORECASE)
_MOST_BESIDE = 3  # words that a definition has beside its subject before "is"


def asked_type(question: str) -> str:
    """The form of the noun that says what sort of thing is asked for; empty where there is none.

    >>> asked_type("Which nerves are affected in Bell's palsy?"), asked_type("What causes gout?")
    ('nerv', '')
    """
    found = _TYPED.match(question)
    sort = form(folded(found["type"])) if found else ""
    return "" if sort in _UNSAID else sort


def without_type(question: str) -> str:
    """The question with spaces for that noun."""
    found = _TYPED.match(question)
    if not found:
        return question
    start, end = found.span("type")
    return f"{question[:start]}{' ' * (end - start)}{question[end:]}"


def says_too_little(answer: str, question: str) -> bool:
    """Whether an answer has nothing but words such as "mild", which fit any condition, or the question's own.

    >>> says_too_little("treatment", "How is gout treated?"), says_too_little("surgery", "How is gout treated?")
    (True, False)
    """
    kinds = asked_for(question)
    rest = folded(answer)
    if any(kind.name in _SAYS_ITSELF for kind in kinds):
        for kind in kinds:
            rest = kind.asked.sub(" ", rest)
    return bool(forms(answer)) and set(re.findall(r"\w+", rest)) <= _TOO_LITTLE


def defines(sentence: str, question: str, subject: frozenset[str]) -> bool:
    """Where a question asks what something is: whether the sentence begins by saying so; else true.

    "Endometriosis is ..." says what it is; "collapse of the lung occurs in endometriosis" does not.
    """
    if asked_for(question) or not _WHAT_IS.match(question):
        return True
    found = _IS.search(sentence)
    named = forms(sentence[: found.start()]) if found else frozenset[str]()
    return subject <= named and len(named - subject) <= _MOST_BESIDE


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
    symbols = re.findall(rf"\b{_SYMBOL}\b", answer)  # "maternal copy of UBE3A"
    name = re.escape(symbols[-1] if len(symbols) == 1 and answer.endswith(symbols[0]) else answer.strip())
    also = rf"(?:\s*\([^)]{{0,60}}\))?(?:(?:,|,? (?:and|or)) {_SYMBOL})*"
    called = r"(?:\s*(?:called|named|known as|:|\(|such as|including|are|is))*"
    listed = rf"\s+(?:{_SYMBOL}(?:,|,? (?:and|or))\s+)*"
    return bool(re.search(rf"\b{name}{also}\s+genes?\b|\bgenes?{called}{listed}{name}\b", sentence, re.IGNORECASE))
