"""Whether an answer has the form that a question asks for, whatever the passages say.

"Which nerve" asks for something that a passage calls a nerve. An answer that repeats the question's subject, or says no
more than "mild", answers nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from medagent.evidence.kinds import asked_for, describes
from medagent.evidence.words import folded, forms, named_words

_ASKED = r"^\W*(?:(?:and|so|in|of|by|from|with)\s+)?(?:which|what)\s+(?:(?:type|kind|sort)s? of\s+)?(?P<noun>{})\b"
_BETWEEN = r"(?:[\s,(:-]|\b(?:called|named|known|as|is|are|an?|the|or|of|by|for|also)\b)*"
_NO_DISEASE = frozenset({"treatment", "diagnosis", "dose", "inheritance", "genetics", "frequency", "prevention"})
_DISEASE = re.compile(
    r"(?:emia|itis|osis|(?<!st)oma|opathy|cancer|fever|syndrome|disease|disorder|infection|deficiency)s?$"
)
_DOES_SOMETHING = re.compile(
    r"^\W*what (?:does|do|can|is|are)\b.*\b(?:treat|prevent|diagnose|detect|cure|used)\b", re.IGNORECASE
)
_TOO_LITTLE = frozenset(
    (
        "mild moderate severe serious various different several many some few one other inherited affected possible "
        "medical and or of the treatment treatments treated therapy management sign signs symptom symptoms finding "
        "findings feature features diagnosis diagnosed complication complications cause causes"
    ).split()
)
_LEADS_ON = frozenset("to of the an and or with by for in from its their his her is are was were than as into".split())
_COUNTS_OR_GRADES = re.compile(
    r"\bhow (?:many|do|does|did|severe|serious|common)\b|\b(?:stages?|grades?|classif\w+|severity)\b", re.IGNORECASE
)
_WHAT_IS = re.compile(r"^\W*what(?:'s|\u2019s| is| are)\s+(?:an?\s+|the\s+)?(?P<rest>[^?]*)", re.IGNORECASE)
_MORE_THAN_A_NAME = re.compile(r"\b(?:of|in|for|by|to|with|that|which|when|used|from|on)\b", re.IGNORECASE)
_CALLED = re.compile(r"\b(?:called|known as|termed|named)\b", re.IGNORECASE)


@dataclass(frozen=True)
class _Sort:
    """A sort of thing: nouns that ask for it, the root by which texts name it, and whether texts leave it unsaid."""

    nouns: str
    root: str
    near: bool = True  # the noun must stand at the answer; else anywhere in the passage
    unsaid: bool = False


_SORTS = (
    _Sort(r"bacteri(?:a|um)", "bacteri", near=False),
    _Sort(r"virus(?:es)?", "vir(?:us|al)", near=False),
    _Sort(r"fung(?:us|i)", "fung", near=False),
    _Sort(r"parasites?", "parasit", near=False),
    _Sort(r"toxins?", "toxin", near=False),
    _Sort(r"insects?|animals?|foods?|chemicals?|substances?", "", unsaid=True),  # a text says "tick"
    *(
        _Sort(nouns, root)
        for nouns, root in (
            (r"enzymes?", "enzyme"),
            (r"hormones?", "hormone"),
            (r"vitamins?", "vitamin"),
            (r"metals?", "metal"),
            (r"minerals?", "mineral"),
            (r"nerves?", "nerve"),
            (r"organs?", "organ"),
            (r"glands?", "gland"),
            (r"proteins?", "protein"),
            (r"joints?", "joint"),
            (r"bones?", "bone"),
            (r"muscles?", "muscle"),
            (r"arter(?:y|ies)", "arter"),
            (r"vessels?", "vessel"),
            (r"cells?", "cell"),
            (r"chromosomes?", "chromosome"),
            (r"antibod(?:y|ies)", "antibod"),
            (r"neurotransmitters?", "neurotransmitter"),
        )
    ),
)
_ANY_SORT = re.compile(_ASKED.format("|".join(sort.nouns for sort in _SORTS)), re.IGNORECASE)


def without_sort(question: str) -> str:
    """The question with spaces for the noun that says what sort of thing is asked for.

    >>> without_sort("Which nerves hurt?").split()
    ['Which', 'hurt?']
    """
    found = _ANY_SORT.match(question)
    if not found:
        return question
    start, end = found.span("noun")
    return f"{question[:start]}{' ' * (end - start)}{question[end:]}"


def is_of_sort(answer: str, text: str, question: str) -> bool:
    """Whether an answer is of the sort that a question asks for: by its own words, or by those of a text beside it.

    "The enzyme aspartoacylase" is an enzyme. In "an enzyme breaks down GM2 ganglioside" the ganglioside is none.
    """
    found = _ANY_SORT.match(question)
    if not found:
        return True
    sort = next(each for each in _SORTS if re.fullmatch(each.nouns, found["noun"], re.IGNORECASE))
    if sort.unsaid or re.search(sort.root, answer, re.IGNORECASE):
        return True
    if not sort.near:
        return bool(re.search(sort.root, text, re.IGNORECASE))
    name, noun = re.escape(answer), rf"\b{sort.root}\w*"
    beside = (
        rf"{noun}{_BETWEEN}{name}|{name}{_BETWEEN}{noun}|{name}[^.?!]*[.;]\s+(?:It|This|These|They)\b{_BETWEEN}{noun}"
    )
    return bool(re.search(beside, text, re.IGNORECASE))


def says_too_little(answer: str, question: str) -> bool:
    """Whether an answer has nothing but words that fit any condition, such as "mild" or "signs and symptoms".

    >>> says_too_little("treatment", "How is gout treated?"), says_too_little("surgery", "How is gout treated?")
    (True, False)
    """
    counts = bool(_COUNTS_OR_GRADES.search(question))
    return not counts and bool(forms(answer)) and set(re.findall(r"\w+", folded(answer))) <= _TOO_LITTLE


def breaks_off(answer: str) -> bool:
    """Whether an answer ends in the middle of a phrase, as "groove to" does."""
    words = re.findall(r"\w+", folded(answer))
    return bool(words) and words[-1] in _LEADS_ON and (len(words) > 1 or len(words[0]) > 1)


def defines(answer: str, sentence: str, question: str, subject: frozenset[str]) -> bool:
    """Where a question asks what a thing is: false where the sentence says the answer before it names the thing.

    "Collapse of the lung occurs in endometriosis" does not say what endometriosis is. "... is called anosmia" does.
    """
    asked = _WHAT_IS.match(question)
    if not asked or asked_for(question) or _MORE_THAN_A_NAME.search(asked["rest"]):
        return True
    words = "|".join(re.escape(word) for _, word in named_words(answer))
    said = list(re.finditer(rf"\b(?:{words})\b", sentence, re.IGNORECASE)) if words else []
    if not said:
        return True
    before, after = sentence[: said[0].start()], sentence[said[-1].end() :]
    return not subject & forms(after) or bool(subject & forms(before)) or bool(_CALLED.search(after))


def echoes(answer: str, title: str, question: str, subject: frozenset[str]) -> bool:
    """Whether an answer only names the question's subject, or another disease of that name where none is asked for.

    "Sickle cell anemia" answers nothing that is asked of sickle cell disease. Where the question describes its subject,
    or asks for a name or for what a drug treats, the name is what it asks for.
    """
    said = forms(answer)
    kinds = {kind.name for kind in asked_for(question)}
    if describes(question) or not said & subject or "a name" in kinds or _DOES_SOMETHING.search(question):
        return False
    own = subject | forms(title) if subject <= forms(title) else subject
    rest = [folded(word) for each, word in named_words(answer) if each not in own]
    return not rest or (bool(kinds & _NO_DISEASE) and all(_DISEASE.search(word) for word in rest))
