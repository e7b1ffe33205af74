"""Rules whose answer does, causes or carries something: "X controls Y" asks what controls Y."""

from __future__ import annotations

import re
from collections.abc import Iterator

from medagent.evaluation.question_making.drafts import Draft, DraftKind, Source, named
from medagent.evaluation.question_making.rules_facts import VAGUE, is_specific, span_at, subject_of
from medagent.evaluation.question_making.text import (
    is_term,
    points_elsewhere,
    without_article,
    without_brackets,
    words_of,
)
from medagent.evaluation.question_making.verbs import PLURAL, SINGULAR, THIRD_PERSON

_ACTING = frozenset(
    "cause absorb activate anchor attach block carry catalyze conduct connect contain control convert cover cushion "
    "deliver "
    "destroy detect digest drain elevate enclose encode engulf extend filter flex form house increase decrease inhibit "
    "innervate insulate line link lubricate mediate monitor nourish prevent produce promote protect pump reabsorb "
    "reduce regulate relay release remove rotate sense separate stimulate store supply support suppress surround "
    "synthesize transmit transport trap trigger".split()
)


def functions(source: Source) -> Iterator[Draft]:
    """Rule: "The hypothalamus controls X" asks what controls X."""
    for found in _splits(source.text):
        span, verb, rest = found
        answer, others = named(source.inside(without_article(span)))
        if not is_term(answer, longest=4) or not is_specific(answer) or points_elsewhere(rest):
            continue
        if re.search(rf"\b(?:and|or) (?:\w+ly )?(?:{'|'.join(sorted(PLURAL))}|are|have|were)\b", rest):
            continue  # a second verb, whose number the question would get wrong
        if re.match(
            r"(?:(?:of|in|to|as|at|by|for|from|and|or|with|is|are|was|were|can|may|have|has|had|that|which)\b|\()", rest
        ):
            continue  # the word is a noun there: "the controls are vital"
        if re.match(r"\w+ing\b", answer) or answer.endswith("ly") or " than the " in rest:
            continue
        if answer.split()[-1] in THIRD_PERSON | PLURAL or "(see" in rest:
            continue
        if {"their", "its"} & set(words_of(rest)) or not 4 <= len(words_of(rest)) <= 22:
            continue
        if re.search(r"[;:]|, (?:which|but|and|so|while|although|where|whereas|thus|making|allowing)\b", rest):
            continue
        if verb == "causes" and (answer.lower() in source.statistics.topics or rest.startswith(("the ", "a "))):
            continue  # a disease and its signs: the question would have many answers
        kind: DraftKind = "cause" if verb == "causes" else "name"
        yield Draft(kind, "actor", f"What {verb} {rest}?", (answer, *others), source.sentence)
        return


_HELPS = re.compile(
    r"^(?P<span>[^,;]{3,60}?) (?P<verb>helps?) (?P<rest>(?:to )?(?:" + "|".join(sorted(_ACTING)) + r") [^,;]{8,110})$"
)
_MAINLY = re.compile(
    r"^(?P<subject>[^,;]{3,70}?) (?:(?P<how>most often|most commonly|mainly|primarily|usually|typically|mostly) "
    r"(?P<verb>occurs|affects|develops|appears)|(?P<verb2>occurs|develops|appears|is seen|is found|is diagnosed) "
    r"(?P<how2>most often|most commonly|mainly|primarily|mostly|most frequently))(?: in| among)? (?P<who>(?:[\w-]+ "
    r"){0,3}"
    r"(?:children|adults|women|men|people|infants|babies|newborns|males|females|boys|girls|teenagers|individuals|"
    r"adolescents)\b[^,;]{0,50})$"
)


def _stands_alone(rest: str) -> bool:
    """Whether what is said of a subject needs neither it nor another sentence to be understood."""
    return not points_elsewhere(rest) and not {"their", "its"} & set(words_of(rest))


def helpers(source: Source) -> Iterator[Draft]:
    """Rule: "X helps control Y" asks what helps to; "X occurs most often in Z" in whom it does."""
    text = source.text
    if found := _HELPS.match(text):
        answer, others = named(source.inside(without_article(found["span"])))
        rest = found["rest"]
        if is_term(answer, longest=4) and is_specific(answer) and _stands_alone(rest):
            yield Draft("name", "actor", f"What helps {rest}?", (answer, *others), source.sentence)
    elif found := _MAINLY.match(text):
        subject, how, verb = (
            subject_of(source, found["subject"]),
            found["how"] or found["how2"],
            found["verb"] or found["verb2"],
        )
        who = found["who"].strip()
        if subject and not points_elsewhere(who) and len(words_of(who)) <= 9:
            base = {"occurs": "occur", "develops": "develop", "appears": "appear", "affects": "occur"}
            asked = f"does {subject} {how} {base[verb]}" if verb in base else f"is {subject} {how} {verb.split()[1]}"
            yield Draft("name", "group", f"In whom {asked}?", (who,), source.sentence)


def _splits(text: str) -> Iterator[tuple[str, str, str]]:
    """(subject, verb in the singular, rest) where the first verb of a sentence is one of function."""
    words = text.split()
    for number, word in enumerate(words[1:7], start=1):
        base = next((base for base in (word,) if base in PLURAL and base in _ACTING), "")
        singular = word if word in THIRD_PERSON and word in _ACTING_SINGULAR else ""
        before = words[number - 1].lower()
        if base and before.endswith("s") and before not in ("to", "can"):
            yield " ".join(words[:number]), SINGULAR[base], " ".join(words[number + 1 :])
            return
        if singular and not before.endswith("ss") and (not before.endswith("s") or before.endswith(("us", "is"))):
            yield " ".join(words[:number]), singular, " ".join(words[number + 1 :])
            return


_ACTING_SINGULAR = frozenset(SINGULAR[base] for base in _ACTING)


_RESPONSIBLE = re.compile(r"^(?P<span>[^,;]{3,60}?) (?:is|are) responsible for (?P<rest>[^,;]{12,110})$")
_PASSIVE = re.compile(
    r"^(?P<subject>[^,;]{3,60}?) (?P<be>is|are) (?P<verb>produced|secreted|released|formed|made|controlled|regulated|"
    r"innervated|supplied|stored|synthesized|covered|lined|surrounded|protected|transmitted|spread|carried|triggered|"
    r"separated|stimulated|activated|broken down|absorbed) (?P<by>by|in|from) (?P<span>.+)$"
)


def agents(source: Source) -> Iterator[Draft]:
    """Rule: "X is responsible for Y" asks what is; "X is secreted by Y" what it is secreted by."""
    text = source.text
    if found := _RESPONSIBLE.match(text):
        answer = source.inside(without_article(without_brackets(found["span"])))
        if is_term(answer, longest=5) and is_specific(answer) and _stands_alone(found["rest"]):
            question = f"What is responsible for {found['rest']}?"
            yield Draft("name", "actor", question, (answer,), source.sentence)
    elif found := _PASSIVE.match(text):
        subject, span = subject_of(source, found["subject"]), span_at(found["span"])
        if subject and span and len(words_of(span)) <= 6 and not VAGUE.intersection(words_of(span)):
            question = f"What {found['be']} {subject} {found['verb']} {found['by']}?"
            family = "agent" if found["by"] == "by" else "place"
            yield Draft("name", family, question, (without_article(span),), source.sentence)
