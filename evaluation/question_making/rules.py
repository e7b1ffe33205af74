"""The two rules that make most questions: definitions, and what abbreviations stand for.

A rule turns one sentence into a question whose answer is a span of it. It refuses doubtful sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from medagent.evaluation.question_making.statistics import CorpusStatistics, abbreviations_in
from medagent.evaluation.question_making.text import (
    ADVERBS,
    MODALS,
    PARTICIPLES,
    PLURAL_AUXILIARIES,
    SINGULAR_AUXILIARIES,
    begins_with_verb,
    cut_clause,
    is_term,
    points_elsewhere,
    usable_sentences,
    without_article,
    without_brackets,
    words_of,
)
from medagent.retrieval.passages import Passage

_THIS = re.compile(
    r"^(?:This|The) (?:rare |genetic |inherited )?(?:condition|disorder|disease|syndrome)(?= (?:is|has|affects|occurs|"
    r"can)\b)"
)


@dataclass(frozen=True)
class Draft:
    """A question, its right answers (the first as its sentence has it), and the sentence.

    `family` names what the answer is, such as "gene" or "disorder".
    """

    kind: Literal["definition", "name", "written"]
    family: str
    question: str
    answers: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Source:
    """A sentence as a rule sees it, with its passage's title and the index's statistics."""

    sentence: str
    title: str
    statistics: CorpusStatistics

    @property
    def text(self) -> str:
        """The sentence without its full stop, with "This condition" replaced by the title.

        It is replaced only where the index says elsewhere that the title is a disease or the like.
        """
        plain = self.sentence.rstrip(". ")
        if self.title.lower() in self.statistics.topics and is_term(self.title, longest=8):
            return _THIS.sub(lambda _: self.title[:1].upper() + self.title[1:], plain)
        return plain


def named(phrase: str) -> tuple[str, tuple[str, ...]]:
    """A phrase without brackets, and the other name that the bracket gives, where it gives one."""
    plain = without_brackets(phrase)
    inner = re.findall(r"\(([^()]*)\)", phrase)
    other = re.sub(r"^(?:also called|also known as|or)\s+", "", inner[0]) if len(inner) == 1 else ""
    return plain, (other,) if other and is_term(other) and other.lower() != plain.lower() else ()


_DEFINITION = re.compile(
    r"^(?P<term>(?:The |An? )?[^,;:]{2,90}?(?:, or [^,;:]{2,40},)?) (?P<be>is|are) (?P<genus>(?:an? |the |one of the "
    r")?(?:[\w'’/-]+ ){1,6}?)"
    rf"(?P<joint>that |which |(?=(?:{'|'.join(PARTICIPLES)})\b)|in which |where |of |due to )(?P<clause>.+)$"
)
_NOT_A_GENUS = frozenset(
    "way ways result results reason reasons example examples term terms name names time times thing things part parts "
    "kind kinds form forms number lot set lack one ones stage stages role process step steps cause causes source "
    "factor factors sign symptom risk goal member members matter word words rest amount study site level levels most "
    "common main only first largest smallest more less very it person people not likely also usually now often found "
    "caused called known used made located rare different responsible able important present unknown similar "
    "because about unclear possible thought due type types series variety feature features option options top".split()
)
_OF = frozenset(
    "inflammation infection swelling enlargement narrowing loss death buildup thickening softening absence hardening "
    "removal inability measurement study branch formation breakdown movement destruction disease cancer disorder "
    "abnormality dilation protrusion fear layer".split()
)


def definitions(source: Source) -> Iterator[Draft]:
    """Rule: "X is a disorder that causes Y" asks which disorder causes Y; "in which" and "of" ask for the term."""
    found = _DEFINITION.match(source.text)
    if found is None or " from " in found["term"]:
        return
    whole = found["term"]
    term, others = named(whole.replace(", or ", " (or ").replace(",", ")") if ", or " in whole else whole)
    answer = source.statistics.inside(without_article(term))
    genus = found["genus"].strip()
    head = words_of(genus)[-1:]
    clause = cut_clause(found["clause"])
    if found["be"] == "is" and genus == without_article(genus) and found["joint"].strip() != "of":
        return
    if found["be"] == "are" and head and not head[0].endswith("s") and head[0] not in ("bacteria", "fungi", "people"):
        return
    if (
        not is_term(answer, longest=8)
        or not head
        or head[0] in _NOT_A_GENUS
        or _vague(genus)
        or points_elsewhere(clause)
    ):
        return
    question = _which(genus, found["joint"].strip(), clause, plural=found["be"] == "are")
    if question and _whole(clause):
        yield Draft("definition", _singular(head[0]), question, (answer, *others), source.sentence)


def _which(genus: str, joint: str, clause: str, *, plural: bool) -> str:
    bare = without_article(genus)
    be = "are" if plural else "is"
    if joint in ("that", "which"):
        if re.match(r"(?:affects?|occurs?) .*\d", clause):
            return ""
        return f"Which {bare} {clause}?" if begins_with_verb(clause, plural=plural) else ""
    if joint in ("in which", "where"):
        return f"What is the term for {genus} {joint} {clause}?"
    if joint == "of":
        return f"What is the term for {genus} of {clause}?" if words_of(bare)[-1] in _OF else ""
    if joint == "due to":
        return f"Which {bare} {be} due to {clause}?"
    first, _, rest = clause.partition(" ")
    if first == "known" and rest.startswith(("as ", "by ")):
        return ""
    if first == "resulting":
        return f"Which {bare} {'result' if plural else 'results'} {rest}?"
    return f"Which {bare} {be} {clause}?"


_IN_NO_GENUS = (
    PLURAL_AUXILIARIES
    | SINGULAR_AUXILIARIES
    | MODALS
    | frozenset(
        "related similar not about your you this these by to in from with than at on thought different sensitive often "
        "sometimes usually put into as characterized caused and".split()
    )
)


def _vague(genus: str) -> bool:
    """Whether a genus is none: it counts, holds a preposition or a verb, or breaks off at an adverb."""
    words = words_of(genus)
    return (
        bool(re.match(r"(?:one|some|many|two|three|all|any|each|no)\b", genus))
        or bool(_IN_NO_GENUS.intersection(words))
        or words[-1].endswith("ly")
        or words[-1] in ADVERBS
    )


def _singular(word: str) -> str:
    return re.sub(r"ies$", "y", word) if word.endswith("ies") else re.sub(r"(?<!s)s$", "", word)


def _whole(clause: str) -> bool:
    """Whether a clause ends as one may: not in the middle of a list or a phrase."""
    words = words_of(clause)
    return 3 <= len(words) <= 32 and words[-1] not in _OPEN and clause.count("(") == clause.count(")")


_OPEN = frozenset(
    "and or of in to for with by the a an on from at as that which but is are usually often called".split()
)


def abbreviations(source: Source) -> Iterator[Draft]:
    """Rule: "Lentigo maligna melanoma (LMM)" asks what LMM stands for, where the index knows one long form of it."""
    for short, long in abbreviations_in(source.sentence):
        known = source.statistics.expansions.get(short)
        if (
            known is None
            or len(known) != 1
            or not is_term(long, longest=7)
            or short[-1] == "s"
            or long.startswith("the ")
        ):
            continue
        answer = source.statistics.inside(long) if source.sentence.startswith(long) else long
        question = f"What does the abbreviation {short} stand for?"
        yield Draft("name", "abbreviation", question, (answer,), source.sentence)


def rule_drafts(passages: Iterable[Passage], statistics: CorpusStatistics) -> Iterator[tuple[Draft, Passage]]:
    """Offer each usable sentence to the rules, in order; see `making.Maker`."""
    for passage in passages:
        for sentence in usable_sentences(passage.text):
            if not statistics.broken(sentence):
                source = Source(sentence, passage.title, statistics)
                for rule in (definitions, abbreviations):
                    for draft in rule(source):
                        yield draft, passage
