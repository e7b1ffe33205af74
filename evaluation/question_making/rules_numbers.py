"""Rules whose answer is a number, an age or a pattern of inheritance."""

from __future__ import annotations

import re
from collections.abc import Iterator

from medagent.evaluation.question_making.drafts import Draft, Source
from medagent.evaluation.question_making.text import (
    cut_clause,
    is_term,
    points_elsewhere,
    without_article,
    without_brackets,
    words_of,
)

_DIGITS = r"\d[\d,]*(?:\.\d+)?"
_MILLIONS = r"(?: million| billion)?"
_ONE_IN = (
    rf"(?:1|one) (?:in|per|out of|of) (?:every )?{_DIGITS}{_MILLIONS}"
    rf"(?: (?:to|and|or) (?:1 in )?{_DIGITS}{_MILLIONS})?"
)
_FREQUENCY = re.compile(r"\b(?:1|one) (?:in|per|out of|of) ")
_AFFECTS = re.compile(
    r"^(?P<subject>[^,;]{3,90}?) (?:is a rare (?:disorder|condition|disease) that )?(?:is (?:thought|believed|"
    r"estimated) to )?"
    r"(?P<verb>affects?|occurs? in|is found in|is estimated to occur in) (?:only |probably )?(?:about |approximately |"
    r"an estimated |roughly |around |nearly )?"
    rf"(?P<number>(?:between |at least |fewer than |up to )?{_ONE_IN})(?P<who> [a-z][\w' -]*)?$"
)
_PREVALENCE = re.compile(
    r"^The (?:estimated |overall |worldwide )?(?P<what>prevalence|incidence|frequency) of (?P<subject>[^,;]{3,70}?) "
    r"(?P<where>(?:worldwide |in [A-Z][\w ]{2,25} )?)"
    rf"is (?:estimated (?:to be|at) |thought to be )?(?:about |approximately |around )?(?P<number>(?:between "
    rf")?{_ONE_IN})(?P<who> [a-z][\w' -]*)?$"
)


def frequencies(source: Source) -> Iterator[Draft]:
    """Rule: "X affects about 1 in 30,000 people" asks how common X is; who or where is said in the question."""
    text = source.text
    found = (_AFFECTS.match(text) or _PREVALENCE.match(text)) if _FREQUENCY.search(text) else None
    if found is None:
        return
    subject = source.inside(without_brackets(found["subject"]))
    who = (found["who"] or "").strip()
    where = re.search(r"\b(?:in|worldwide|each year)\b.*$", who)
    if not is_term(without_article(subject), longest=9) or points_elsewhere(who) or len(words_of(who)) > 12:
        return
    group = who[: where.start()].strip() if where else who
    place = f" {where.group()}" if where else ""
    among = "" if group in ("", "people", "individuals", "persons") else f" among {group}"
    yield Draft("number", "frequency", f"How common is {subject}{among}{place}?", (found["number"],), source.sentence)


_PATTERN = re.compile(
    r"^(?P<subject>[^,;]{3,90}?) is (?:usually |typically |generally )?inherited (?:in|as) an? (?P<pattern>autosomal "
    r"(?:dominant|recessive)|X-linked(?: dominant| recessive)?|mitochondrial|Y-linked) (?:pattern|manner|fashion|"
    r"trait|way)\b"
)


def inheritance(source: Source) -> Iterator[Draft]:
    """Rule: "X is inherited in an autosomal recessive pattern" asks for the pattern."""
    found = _PATTERN.match(source.text) if " inherited " in source.text else None
    if found is None:
        return
    subject = source.inside(without_brackets(found["subject"]))
    if is_term(without_article(subject), longest=9):
        question = f"What is the inheritance pattern of {subject}?"
        yield Draft("name", "inheritance", question, (found["pattern"],), source.sentence)


_ONSET = re.compile(
    r"^(?:The )?(?P<what>(?:first )?(?:[Ss]igns and symptoms|[Ss]ymptoms|[Oo]nset)) of (?P<subject>[^,;]{3,70}?) "
    r"(?P<how>usually |typically |generally |often |most often )"
    r"(?P<verb>begins?|appears?|starts?|develops?|occurs?|becomes? apparent|is|are) (?P<when>(?:in|between|before|"
    r"during|after|around|at|by|within|from|shortly after|soon after) [^,;]{3,60})$"
)


def onsets(source: Source) -> Iterator[Draft]:
    """Rule: "Symptoms of X usually begin in childhood" asks when they begin."""
    found = _ONSET.match(source.text) if " of " in source.text[:40] else None
    if found is None:
        return
    subject = source.inside(without_brackets(found["subject"]))
    when = re.split(
        r" (?:and|but) (?:\w+ly )?(?:[a-z]+ (?:rapidly|slowly|over|with)|may|can|is|are|get|become|worsen|progress)\b|"
        r" but ",
        found["when"],
    )[0]
    if (
        subject.lower() in _NO_NAMES
        or not is_term(without_article(subject), longest=8)
        or points_elsewhere(when)
        or not _TIME.search(when)
    ):
        return
    what = found["what"][:1].lower() + found["what"][1:]
    one = what.endswith("onset")
    base = re.sub(r"s$", "", found["verb"]) if found["verb"] not in ("is", "are", "becomes apparent") else ""
    base = "become apparent" if found["verb"].startswith("become") else base
    if not base:
        return
    question = f"When {'does' if one else 'do'} the {what} of {subject} {found['how']}{base}?"
    yield Draft("number", "time", question, (when,), source.sentence)


_NO_NAMES = frozenset(
    f"{article}{noun}"
    for article in ("the ", "")
    for noun in ("disorder", "disease", "condition", "syndrome", "infection")
)
_TIME = re.compile(
    r"\b(?:childhood|infancy|adolescence|adulthood|birth|puberty|life|year|years|month|months|week|weeks|day|days|hour|"
    r"hours|age|ages|decade|decades|pregnancy|teens|twenties|thirties|forties|fifties|sixties|minutes)\b"
)
_NUMBER = (
    r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    rf"eighteen|nineteen|twenty(?:-\w+)?|thirty(?:-\w+)?|forty(?:-\w+)?|{_DIGITS})(?: (?:to|or) (?:{_DIGITS}|\w+))?"
)
_HAS = re.compile(
    rf"^(?P<subject>[^,;]{{3,60}}?) (?P<verb>has|have|contains?|consists? of|is made up of|are made up of|is composed "
    rf"of|is divided into|are divided into) "
    rf"(?P<number>{_NUMBER})(?P<kind> (?:[\w-]+ ){{0,3}}?[a-z-]+s)(?=$|[,;:(]| (?:that|which|in|of|and|called|known|"
    rf"on|at)\b)"
)
_EMPTY = frozenset(
    "ways things types kinds copies forms parts times years days months weeks hours percent goals".split()
)


def counts(source: Source) -> Iterator[Draft]:
    """Rule: "Each kidney has eight lobes" asks how many it has."""
    found = _HAS.match(source.text)
    if found is None:
        return
    subject, kind, verb = source.inside(without_brackets(found["subject"])), found["kind"].strip(), found["verb"]
    bare = re.sub(r"^each ", "", without_article(subject), flags=re.IGNORECASE)
    subject = re.sub(r"^Each ", "each ", subject)
    if not is_term(bare, longest=6) or words_of(kind)[-1] in _EMPTY or points_elsewhere(subject):
        return
    if verb.startswith(("is ", "are ")):
        be, rest = verb.split(" ", 1)
        question = f"How many {kind} {be} {subject} {rest.removesuffix(' of').removesuffix(' into')}"
        question += " of?" if verb.endswith("of") else " into?"
    else:
        one = verb in ("has", "contains", "consists of")
        base = {"has": "have", "contains": "contain", "consists of": "consist of"}.get(verb, verb)
        question = f"How many {kind} {'does' if one else 'do'} {subject} {base}?"
    yield Draft("number", "count", question, (found["number"],), source.sentence)


_ABOUT = r"About |Approximately |An estimated |Around |Nearly |Almost |Roughly "
_BOUND = r"Up to |More than |Fewer than |Less than |At least |Over "  # part of the answer
_SHARE = re.compile(
    rf"^(?:{_ABOUT}|Only )?"
    rf"(?P<number>(?:{_BOUND})?{_DIGITS}(?: to {_DIGITS})? ?(?:percent|%)) of (?P<rest>(?!cases (?!of|with|in)).+)$"
)
_MANY = re.compile(
    rf"^(?:{_ABOUT})?(?P<number>(?:{_BOUND})?{_DIGITS}(?: million| billion)?(?: to {_DIGITS}(?: million)?)?) "
    rf"(?P<rest>(?!percent|of |cases |in )(?:[a-z-]+ ){{0,3}}?[a-z]+s? .+)$"
)


def shares(source: Source) -> Iterator[Draft]:
    """Rule: "About 70 percent of X are Y" asks for the percentage; "More than 50 mutations are Y" how many."""
    text = source.text
    for pattern, asked in ((_SHARE, "What percentage of"), (_MANY, "How many")):
        if found := pattern.match(text):
            rest = re.split(r", (?:with|making|including|usually|most|who)\b", cut_clause(found["rest"]))[0]
            if source.title.lower() in source.statistics.topics and source.title.lower() not in rest.lower():
                rest = re.sub(r"\b(?:the|this) (?:condition|disorder|disease)\b", lambda _: source.title, rest)
            words = words_of(rest)
            if points_elsewhere(rest) or not 5 <= len(words) <= 24 or not _VERB.search(rest):
                continue
            if pattern is _MANY and (words[0] in ("to", "years", "percent", "hours", "days") or "genes" in words[:2]):
                continue
            number = found["number"][:1].lower() + found["number"][1:]
            family = "share" if pattern is _SHARE else "how many"
            yield Draft("number", family, f"{asked} {rest}?", (number,), source.sentence)


_VERB = re.compile(
    r"\b(?:is|are|have|has|had|was|were|can|may|will|live|occur|occurs|develop|develops|die|cause|affect|result|carry|"
    r"experience|show|get|suffer|survive|need|result from|make|contain|report|do|use|become|receive|respond|inherit|"
    r"lack)\b"
)
