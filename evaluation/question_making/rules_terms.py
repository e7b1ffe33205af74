"""Rules whose answer is a term: from a definition, from "is called", and from "also called"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from medagent.evaluation.question_making.abbreviations import abbreviations_in
from medagent.evaluation.question_making.drafts import Draft, Source, named
from medagent.evaluation.question_making.glosses import glosses_in
from medagent.evaluation.question_making.text import (
    cut_clause,
    is_term,
    points_elsewhere,
    without_article,
    without_brackets,
    words_of,
)
from medagent.evaluation.question_making.verbs import (
    ADVERBS,
    MODALS,
    PARTICIPLES,
    PLURAL,
    PLURAL_AUXILIARIES,
    SINGULAR_AUXILIARIES,
    THIRD_PERSON,
    begins_with_verb,
)

_CUT = r"(?=$|[,;(]| (?:and|or|which|that|because|in|on|at|for|by|with|when|where|if|is|are|as|to|from|but|after)\b)"
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
    answer = source.inside(without_article(term))
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
_NAMING = re.compile(r" (?:called|known as|termed|referred to as) ")
_CALLED = re.compile(
    r"^(?P<subject>.{8,140}?) (?P<be>is|are) (?P<also>also |sometimes |often |commonly |usually |generally )?"
    rf"(?:called|known as|termed|referred to as) (?P<article>the |an? )?(?P<term>[^,;:()]{{2,70}}?){_CUT}"
)
_WHEN = re.compile(
    r"^(?P<when>When|If) (?P<clause>[^,;]{10,150}), (?:it|this|this condition|the condition|the disorder|the disease) "
    rf"is (?:called|known as|termed|referred to as) (?:the |an? )?(?P<term>[^,;:()]{{2,60}}?){_CUT}"
)
_FINITE = re.compile(r"\b(?:is|are|was|were|has|have|can|may|will|when|if|because|although|while|so|but|who)\b")


def called(source: Source) -> Iterator[Draft]:
    """Rule: "The outer layer of the skin is called the epidermis" asks what that layer is called."""
    text = source.text
    if not _NAMING.search(text):
        return
    if (found := _WHEN.match(text)) and is_term(found["term"], longest=5) and _is_clause(found["clause"]):
        question = f"What is it called {found['when'].lower()} {found['clause']}?"
        yield Draft("name", "term", question, (found["term"].strip(),), source.sentence)
        return
    found = _CALLED.match(without_brackets(text))
    if found is None or not is_term(found["term"], longest=5):
        return
    subject = found["subject"]
    if points_elsewhere(subject) or "," in subject or not _can_be_subject(subject):
        return
    subject, _ = named(source.inside(subject))
    if found["also"] == "also " or (found["also"] and is_term(without_article(subject), longest=4)):
        if is_term(without_article(subject), longest=6) and " and " not in subject:
            question = f"What is another name for {subject}?"
            yield Draft("name", "other name", question, (found["term"].strip(),), source.sentence)
        return
    yield Draft("name", "term", f"What {found['be']} {subject} called?", (found["term"].strip(),), source.sentence)


def _is_clause(text: str) -> bool:
    return not points_elsewhere(text) and not re.match(r"\w+(?:ed|ing|en) |used |not |only ", text)


def _can_be_subject(subject: str) -> bool:
    """A noun phrase of its own: no clause in it, except one that begins with "that"."""
    main = re.split(r" (?:that|in which|where|which) ", subject)[0]
    return not _FINITE.search(main) and words_of(subject)[0] not in (
        "some many most other all both each in on at for with by as after before during there "
        "sometimes often usually these what to from under within rarely two three four".split()
    )


_SO_NAMED = re.compile(
    r"(?:^|[ ,(])(?P<genus>(?:an? |the |certain |specialized |special )?(?:[\w-]+ ){0,3}?(?P<head>[a-z-]+)) (?:called|"
    r"known as|termed) "
    r"(?:the |an? )?(?P<term>[^,;:()]{2,60}?(?: \([\w /-]+\))?),? (?P<joint>that|which) (?P<clause>[^;]+)$"
)
_GENUS_START = re.compile(
    r"^.*\b(?:is|are|of|by|to|in|from|with|for|and|as|on|into|at|has|have|or|the|a|an|certain|making|producing|"
    r"contains?|releases?|called|includ\w+|produc\w+|affect\w*|us\w+|through|between|causes?|some|other|make|makes) "
)


def so_named(source: Source) -> Iterator[Draft]:
    """Rule: "... nerve cells called nociceptors that transmit pain signals" asks which nerve cells transmit them."""
    text = source.text
    if not _NAMING.search(text):
        return
    for found in re.finditer(_SO_NAMED, text):
        term, others = named(found["term"])
        before = text[: found.start("head")] + found["head"]
        genus = _GENUS_START.sub("", before)
        plural = found["head"].endswith("s") and not found["head"].endswith("ss")
        clause = cut_clause(found["clause"])
        if not is_term(term, longest=6) or not is_term(genus, longest=4) or points_elsewhere(clause):
            continue
        if re.search(r"\b(?:the|this|each)(?: [\w-]+){0,3}$", before.removesuffix(f" {found['head']}")):
            continue  # "a blood clot in the leg called ...": the head is not what is called so
        genus = without_article(genus)
        if (PLURAL | THIRD_PERSON).intersection(words_of(genus)[:-1]) or _OF_ANOTHER.search(before.removesuffix(genus)):
            continue
        if re.search(
            r"\b(?:larger|smaller|other|similar|longer|shorter|single|small|tiny|large|only|most|first|main)\b", genus
        ):
            continue
        if found["head"] in _NOT_A_GENUS or not begins_with_verb(clause, plural=plural) or not _whole(clause):
            continue
        question = f"Which {source.inside(genus)} {clause}?"
        yield Draft("definition", _singular(found["head"]), question, (term, *others), source.sentence)


# "Patches of skin called ...": the patches are called so. "A type of cells called ..." is no such case.
_OF_ANOTHER = re.compile(
    r"(?<!type)(?<!types)(?<!kind)(?<!kinds)(?<!group)(?<!groups)(?<!form)(?<!family)(?<!class) of $"
)
_ALSO = re.compile(
    r"^(?P<subject>(?:The |An? )?[\w'’ /-]{3,70}?)(?:, | \()(?:also|sometimes|commonly|formerly|previously) "
    r"(?:called|known as|referred to as|termed) (?P<terms>[^();:]{3,120}?)(?:\)|,? (?:is|are|has|have|was|can|may|"
    r"affects|occurs)\b|, (?:is|are|has|have|was|can|may|affects|occurs)\b)"
)


def other_names(source: Source) -> Iterator[Draft]:
    """Rule: "X, also called Y, is ..." asks for another name of X; all names given are right."""
    found = _ALSO.match(source.text) if _NAMING.search(source.text) else None
    if found is None:
        return
    subject = source.inside(found["subject"])
    terms = [
        without_article(term.strip()) for term in re.split(r", or |, and | or |, ", found["terms"]) if term.strip()
    ]
    if not is_term(without_article(subject), longest=6) or not all(is_term(term, longest=6) for term in terms):
        return
    if len(subject) < 3 or re.search(r" (?:of|in) | (?:form|type|gene)$", subject):
        return  # "mutations in the TYMP gene (also called ECGF1)": what is called so is not the whole of it
    if any(term.startswith(("the ", "a ")) for term in found["terms"].split(", ")):
        return  # "the oral or buccal phase" is no list of names
    yield Draft("name", "other name", f"What is another name for {subject}?", tuple(terms), source.sentence)


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
        question = f"What does the abbreviation {short} stand for?"
        yield Draft(
            "name",
            "abbreviation",
            question,
            (source.inside(long) if source.sentence.startswith(long) else long,),
            source.sentence,
        )


COMMON = 0.02  # share of the passages from which a bracketed word is no special term


def glosses(source: Source) -> Iterator[Draft]:
    """Rule: "a small head size (microcephaly)" asks for the medical term; `Glosses` says how far its meaning goes."""
    for term, phrases in glosses_in(source.sentence):
        meaning = source.statistics.glosses.meaning(term, phrases)
        if meaning and not points_elsewhere(meaning) and source.statistics.share(term) < COMMON:
            question = f"What is the medical term for {source.inside(meaning)}?"
            yield Draft("definition", "medical term", question, (term,), f"{meaning} ({term})")


_OCCURS = re.compile(r"^(?P<term>[^,;]{3,60}?) (?:occurs|happens|develops|results) when (?P<clause>.+)$")
_REFERS = re.compile(r"^(?:The term )?(?P<term>[^,;]{3,60}?) (?:refers to|means) (?P<clause>(?:the|an?|any) .+)$")


def happenings(source: Source) -> Iterator[Draft]:
    """Rule: "X occurs when Y" asks what it is called when Y; "X refers to Y" which term refers to Y."""
    text = source.text
    for pattern, asked in ((_OCCURS, "What is it called when"), (_REFERS, "Which term refers to")):
        if found := pattern.match(text):
            term, others = named(found["term"])
            answer, clause = source.inside(without_article(term)), cut_clause(found["clause"])
            whole = _is_clause(clause) and _whole(clause)
            if pattern is _REFERS and re.search(r"(?<!that)(?<!which)(?<!who) (?:is|are) ", clause):
                continue  # a whole sentence, and no thing that a term refers to
            if is_term(answer, longest=6) and whole:
                family = source.statistics.topics.get(source.title.lower(), "condition")
                yield Draft("definition", family, f"{asked} {clause}?", (answer, *others), source.sentence)
