"""Rules whose answer is a cause, a treatment, a place, or what is most or first of its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from medagent.evaluation.question_making.drafts import Draft, DraftKind, Source, named
from medagent.evaluation.question_making.text import (
    is_term,
    points_elsewhere,
    without_article,
    without_brackets,
    words_of,
)
from medagent.evaluation.question_making.verbs import PLURAL, THIRD_PERSON

_END_OF_SPAN = re.compile(
    r"\s*(?:[,;] (?:called|known|which|who|where|but|although|while|and (?:is|are|it|they|usually|often|can|may|has)|"
    r"usually|including|such as|especially|particularly|most|resulting|leading|causing)\b|;| which\b| but\b| "
    r"although\b| because\b| in order\b"
    r"| rather than\b| as well as\b| unless\b| depending\b"
    r"| and (?:rarely|usually|often|sometimes|then)\b| and (?:\w+ly )?(?:is|are|can|may|has|have|"
    + "|".join(sorted(THIRD_PERSON))
    + r")\b)"
)
_CAUSED_BY = re.compile(
    r"^(?P<subject>[^,;]{3,80}?) (?P<be>is|are) (?P<how>usually |most often |often |typically |most commonly |"
    r"generally )?"
    r"caused by (?P<cause>.+)$"
)
VAGUE = frozenset(
    "unknown many several different various multiple other certain some combination variety number problem problems "
    "factors factor condition conditions change changes cause causes result thing things one someone something "
    "either both disease diseases similar specific abnormal abnormality genetic mutation mutations known".split()
)


def causes(source: Source) -> Iterator[Draft]:
    """Rule: "X is caused by Y" asks what causes X."""
    found = _CAUSED_BY.match(source.text) if "caused by" in source.text else None
    if found is None:
        return
    subject, span = subject_of(source, found["subject"]), span_at(found["cause"])
    if subject and span and "gene" not in words_of(span) and not VAGUE.intersection(words_of(span)[:3]):
        question = f"What {found['how'] or ''}causes {subject}?"
        yield Draft("cause", "cause", question, (without_article(span),), source.sentence)


_TREATED = re.compile(
    r"^(?P<subject>[^,;]{3,80}?) (?P<be>is|are|can be|may be) (?P<how>usually |often |typically |most often )?treated "
    r"(?P<by>with|by) (?P<span>.+)$"
)
_USED = re.compile(
    r"^(?P<span>[^,;]{3,60}?) (?P<be>is|are|may be|can be) (?P<how>also |often |sometimes |commonly )?used to treat "
    r"(?P<subject>[^,;]{3,90})$"
)
_CONSISTS = re.compile(
    r"^(?:The (?P<which>main |standard |usual |primary )?)?[Tt]reatment (?:of|for) (?P<subject>[^,;]{3,70}?) "
    r"(?P<verb>is|includes|consists of|involves|usually involves|usually includes) (?P<span>[^,;]{4,80})$"
)


def treatments(source: Source) -> Iterator[Draft]:
    """Rule: "X is treated with Y" and "Y is used to treat X" ask for Y."""
    text = source.text
    if "treat" not in text and not text.startswith("Treat"):
        return
    if found := _TREATED.match(text):
        subject, span = subject_of(source, found["subject"]), span_at(found["span"])
        if subject and span and not VAGUE.intersection(words_of(span)[:2]):
            be, _, rest = found["be"].partition(" ")
            said = " ".join(part for part in (be, subject, rest, (found["how"] or "").strip()) if part)
            question = f"What {said} treated {found['by']}?"
            yield Draft("treatment", "treatment", question, (without_article(span),), source.sentence)
    elif found := _USED.match(text):
        subject, span = without_brackets(found["subject"]), found["span"]
        if not points_elsewhere(subject) and is_term(without_article(span), longest=5) and is_specific(span):
            be = found["be"]
            be = "is" if be == "are" else be
            question = f"What {be} {(found['how'] or '').replace('also ', '')}used to treat {subject}?"
            answer = source.inside(without_article(without_brackets(span)))
            yield Draft("treatment", "treatment", question, (answer,), source.sentence)
    elif found := _CONSISTS.match(text):
        subject, span = subject_of(source, found["subject"]), span_at(found["span"])
        if subject and span and not VAGUE.intersection(words_of(span)[:3]):
            verb = found["verb"]
            which = f"{found['which'] or ''}treatment of {subject}"
            base = {"includes": "include", "involves": "involve", "consists of": "consist of"}
            last = verb.split(" ")[-1] if verb != "consists of" else verb
            asked = f"What is the {which}" if verb == "is" else f"What does {which} {base[last]}"
            question = f"{asked}?"
            yield Draft("treatment", "treatment", question, (without_article(span),), source.sentence)


def subject_of(source: Source, phrase: str) -> str:
    """A disease or structure as a question names it; empty where the phrase is no name."""
    plain = source.inside(without_brackets(phrase.strip()))
    bare = without_article(plain)
    if not is_term(bare, longest=8) or not is_specific(bare):
        return ""
    return plain


def is_specific(phrase: str) -> bool:
    """Whether a name says more than "the disease" or "problems": a word that is not vague."""
    return any(word not in VAGUE and word not in _GENERAL for word in words_of(without_article(phrase)))


_GENERAL = frozenset(
    "the a an of in and or to case cases form forms type types disorder disorders syndrome symptoms treatment surgery "
    "medicine medicines drugs medication medications most people patients it this these pain body cells tests "
    "test part parts infection infections damage therapy tumor tumors".split()
)


def span_at(text: str, *, place: bool = False) -> str:
    """The answer at the beginning of a text: at most ten words, whole; empty where it is longer or points elsewhere."""
    plain = without_brackets(text)
    found = _END_OF_SPAN.search(plain)
    span = (plain[: found.start()] if found else plain).strip(" .,")
    span = re.sub(r"^an? (?:procedure|drug|medicine|medication|bacterium|virus|protein) (?:called|known as) ", "", span)
    words = words_of(span)
    if not 1 <= len(words) <= 10 or points_elsewhere(span) or span.count("(") != span.count(")"):
        return ""
    if words[-1] in _LOOSE_ENDS or (not place and words[0] in _NO_ANSWER) or words[0].endswith("ly"):
        return ""
    if _CLAUSE.search(span) or {"their", "its"} & set(words) or (words[0].endswith("ed") and words[1:2] != ["blood"]):
        return ""
    return span


_LOOSE_ENDS = frozenset("and or of in to with by the a an for from as on at single large small called".split())
_CLAUSE = re.compile(r"\b(?:that|who|when|if|while|where|so|until|is|are|was|were|has|have|can|may)\b|^to ")


_WHERE = re.compile(
    r"^(?P<subject>[^,;]{3,70}?) (?P<be>is|are|lies|lie) (?P<how>located |found |situated )?"
    r"(?P<place>(?:in|on|at|between|behind|near|above|below|under|within|along|beneath|inside|just) .+)$"
)


def places(source: Source) -> Iterator[Draft]:
    """Rule: "X is located in Y" asks where X is located."""
    found = _WHERE.match(source.text)
    if found is None or (not found["how"] and found["be"] in ("is", "are")) or (found["how"] == "found "):
        return
    subject, span = subject_of(source, found["subject"]), span_at(found["place"], place=True)
    if not subject or not span or len(words_of(span)) < 3:
        return
    be = found["be"]
    asked = (
        f"Where {be} {subject} located"
        if be in ("is", "are")
        else f"Where {'do' if be == 'lie' else 'does'} {subject} lie"
    )
    yield Draft("name", "place", f"{asked}?", (span,), source.sentence)


_MOST_WORDS = (
    "main primary first leading largest smallest longest best-known major only outermost innermost thickest strongest "
    "principal chief highest lowest hardest deepest thinnest".split()
)
_MOST = (
    r"(?:most (?:common|frequent|important|abundant|serious|severe|effective|widely used)|second most common|"
    rf"{'|'.join(_MOST_WORDS)})"
)
_MOST_IS = re.compile(rf"^(?P<asked>The {_MOST} [^,;]{{4,110}}?) (?:is|are) (?P<span>.+)$")
_IS_MOST = re.compile(rf"^(?P<span>[^,;]{{3,70}}?) (?:is|are) (?P<asked>the {_MOST} [^;]{{6,120}})$")


def superlatives(source: Source) -> Iterator[Draft]:
    """Rule: "The most common cause of X is Y" asks what it is; "Y is the largest X" too."""
    text = source.text
    if found := _MOST_IS.match(text):
        asked, span = found["asked"], span_at(found["span"])
        if not span or points_elsewhere(asked) or _NO_ASKED.search(asked):
            return
        first = words_of(span)[0]
        if first in _NO_ANSWER or first.endswith(("ed", "ly")) or len(words_of(span)) > 8:
            return
        yield from _superlative(source, asked[:1].lower() + asked[1:], span)
    elif found := _IS_MOST.match(text):
        asked = re.split(
            r", (?:and|but|which|with|accounting|affecting|occurring|followed)|, although| which ", found["asked"]
        )[0]
        plain, _ = named(found["span"])
        span = source.inside(plain)
        if (
            "," in asked
            or points_elsewhere(asked)
            or _NO_ASKED.search(asked)
            or not is_term(without_article(span), longest=6)
        ):
            return
        if is_specific(span) and " of " in asked + " in ":
            yield from _superlative(source, asked, without_article(span))


_NO_ASKED = re.compile(
    r"\b(?:is|was|has|but|involve|that$|step|goal|thing|its|their|and (?:\w+ )?(?:is|are|has|have|can|may|"
    + "|".join(sorted(THIRD_PERSON | (PLURAL - {"form", "function", "cause", "result"})))
    + r"))\b"
)


def _superlative(source: Source, asked: str, span: str) -> Iterator[Draft]:
    head = re.sub(rf"^the {_MOST} ", "", asked).split(" ")
    joint = re.search(r" (?:of|in|for|to|among|associated|that) ", asked)
    if joint is None or {"three", "two", "four", "listed", "level", "role"}.intersection(words_of(asked)):
        return
    noun = words_of(
        re.split(r" (?:involved|found|diagnosed|seen|used|linked|reported) ", asked[: joint.start()] + " ")[0]
    )[-1]
    be = "are" if noun.endswith("s") and not noun.endswith(("ss", "is", "us")) else "is"
    if len(head) < 3 or head[0] in ("ones", "one", "reason", "reasons", "way", "ways", "goal", "step", "known"):
        return
    family = next((word for word in head if word in ("cause", "symptom", "sign", "type", "form", "treatment")), "most")
    kind: DraftKind = "cause" if family == "cause" else "treatment" if family == "treatment" else "name"
    yield Draft(kind, family, f"What {be} {asked}?", (without_article(span),), source.sentence)


_NO_ANSWER = frozenset(
    "not to that how when if unknown usually often typically also more less very similar based because about thought "
    "one two three characterized likely given determined known what generally as by in on at for with difficult "
    "rapid still called different variable highly particularly most usually needed directed aimed available "
    "symptomatic supportive similar believed possible necessary important essential present being having "
    "made present single several many various some through via from during after before between within "
    "two three four five six approximately".split()
)
