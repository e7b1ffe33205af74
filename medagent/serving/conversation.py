"""The last question of a conversation, made to stand on its own.

An agent is trained on single questions. Rules complete three forms: a question with a pronoun ("How is it treated?"), a
thing without its subject ("And the dose?"), and a fragment ("In children?", "And for gout?"). Any other text stays as
it is, behind the subject if it only points back. Earlier answers are not read, so no model steers the next question.
"""

import re
from collections.abc import Sequence

from medagent.evidence.words import asked_for, folded, subject_words, without_kinds

LONGEST_NAME, LONGEST = 100, 8_000  # characters of a fragment or a subject, and of a completed question
_NO_CLAUSE = 7  # words of a fragment
_NOUN = r"(?:disease|condition|disorder|illness|syndrome|infection|one)"
_OWN = r"(?:whose|that|which|who|caused|with|in which|where|called|named)"
_POINTING = re.compile(  # "IT band" is a name, so capitals count
    rf"\b(?:[Tt]his|[Tt]hat|[Tt]he same|[Tt]he|[Tt]hese|[Tt]hose) {_NOUN}s?\b(?! {_OWN}\b)"
    r"|\b(?:[Ii]t|[Tt]hey|[Tt]hem)\b(?!['\u2019])"
    r"|\b(?:[Tt]his|[Tt]hat|[Tt]hese|[Tt]hose)"
    r"(?=\s*(?:[?.!,]|$|caused|treated|diagnosed|confirmed|inherited|prevented))"
)
_POSSESSIVE = re.compile(r"(?i)\b(?:its|their)[ ]((?:[\w-]{1,40}[ ]?){1,5}?)(?=\s*(?:[?.!,]|$))")
_IDLE_IT = re.compile(  # "is it safe to", where "it" stands for nothing
    r"(?i)\b(?:is|was|would) it (?:safe|ok|okay|possible|normal|true|necessary|dangerous|bad|good|better|advisable)\b"
    r"|\bit (?:takes?|is (?:safe|possible|normal|true|likely|known))\b"
)
_USED = re.compile(
    r"(?i)\b(?:tak(?:e|ing)|us(?:e|ing)|stop|start|given?|needs?) (?:it|this|that|them)\b|\bit (?:take|(?:the )?same)\b"
)
_LEADING = re.compile(
    r"(?i)^\W{0,5}(?:(?:and|or|but|ok|okay|so|then|now|also|thanks|thank you)\b[\s,]{0,3}){0,4}"
    r"(?:what about|how about|(?:the )?same(?: question| thing)?)?[\s,]{0,3}(?:(?:the|any)\s)?"
)
_LED = re.compile(r"(?i)^\W{0,5}(?:and|or|but|what about|how about|same|the same|also|in|for|with|during)\b")
_PREPOSITION = re.compile(r"(?i)^(?:in|for|with|of|about|during)\s+")
_PEOPLE = re.compile(  # they add to a question, and are no subject of their own
    r"(?i)\b(?:(?:an?|the|my|very|severe|pre-?existing)\s+)?(?:children|child|kids?|adults?|adolescents?|infants?|"
    r"son|daughter|wife|husband|mother|father|patient|\d+[- ](?:year|month|week|day)s?[- ]olds?|"
    r"newborns?|neonates?|babies|toddlers?|elderly|older (?:people|adults|patients)|m[ae]n|wom[ae]n|"
    r"pregnan(?:cy|t \w+)|breast-?feeding|lactation|(?:renal|kidney|hepatic|liver) (?:failure|impairment|disease)|"
    r"allerg\w+|diabetics|smokers|athletes)\b"
)
_WHOM = re.compile(rf"(?i)\s+(?:in|for|with|during|while)\s+{_PEOPLE.pattern[4:]}[^?]*$")
_SENTENCE = re.compile(  # a fragment has no verb of its own
    r"(?i)\b(?:i|you|we|he|she|is|are|am|was|were|do|does|did|can|could|should|would|will|have|has|had|tell|give|if|"
    r"when|explain|meant|mean|help(?:ed|s)?|last|lasts|feel|need|want)\b|n['\u2019]t\b"
)
_DESCRIBED = re.compile(rf"(?i)\bthe {_NOUN} {_OWN}\b.*")
_AFTER_NAME = re.compile(rf"^(?:\s+(?:{_NOUN}|toxicity|type \d+|[A-Z]\b|\d+))+")
_BEFORE_NAME = re.compile(r"(?i)\b(?:primary|common|classic|underlying) $")
_THING = re.compile(
    r"(?i)\b(?:(?P<taken>drug|test|treatment|therapy|medicine|medication|dose|choice|screening)|cause|sign|finding|"
    r"symptom|diagnosis|mechanism|prognosis|outlook|complication|effect|risk|risk factor|type|prevention|inheritance|"
    r"contraindication|incidence|prevalence|stage|feature)s?$"
)
_SEVERAL = re.compile(r"(?i)\b(?:with|in|of|and|or|for|during)\b")
_ASKING = re.compile(
    r"(?i)(?:what|which|how|why|who|when|where|is|are|does|do|can|could|should|will|tell|explain|describe)\b"
)
_PLURAL = re.compile(r"(?:(?! of | for ).)*(?<![isu])s (?:of|for) ")
_BETWEEN = re.compile(r"(?<=[.?!])\s+(?=\S)|\n+")
_AGAIN = re.compile(r"(?i)\b(?:same|still|instead|else|again|anyway|next|now what)\b")
_BACK = re.compile(r"(?i)\b(?:it|its|this|that|these|those|s?he|him|her|they|them|their)\b")
_TREATS = re.compile(r"(?i)\b(?:drug|treat|therap|medic)")  # "it" may be the answer to a question with these words
_REPLY = re.compile(
    r"(?i)\W*(?:ok|okay|yes|no|thanks|thank you|great|good|hello|hi|bye|sure)\b(?!.*\?)"
)  # asks nothing
_COMPARED = re.compile(r"(?i)\b(?:between|differ\w*|versus|vs|or|compare\w*)\b")
_EITHER = re.compile(r"(?:.*, )?([^,]+?),? (?:and|or|versus|vs\.?|from) ([^,]+)")
_ONE = re.compile(r"(?i)\b(?:it|its|this|that|the (?:other|first|second|last|former|latter))\b")
_TALK = frozenset(
    "am question thing same again too okay ok before fails failed works worse old years sure so second last".split()
)


def standing_alone(questions: Sequence[str]) -> str:
    """The last of a conversation's questions, with what it leaves unsaid taken from those before it."""
    known = put = questions[0]
    for question in questions[1:]:
        about, put = subject_phrase(known), question
        if about and len(about) <= LONGEST_NAME and len(question) <= LONGEST:
            put = _completed(known, about, question)
            if put == question and _only_points_back(question):
                put = f"About {about}: {question}"
                continue  # the next question is still about what is known
        put = put if len(put) <= LONGEST else question
        known = put if subject_phrase(put) else known
    return put


def _completed(before: str, about: str, question: str) -> str:
    """`question`, with its subject `about` or what it asks for taken from `before`; as it is where no form fits."""
    if len(_BETWEEN.split(question.strip())) > 1:
        return question
    if possessive := _POSSESSIVE.search(question):
        thing = _with(f"the {possessive[1].strip()}", about)
        return _as_question(f"{question[: possessive.start()]}{thing}{question[possessive.end() :]}")
    own, stem = _own_words(question), _LEADING.sub("", question, count=1).strip().rstrip("?!. ")
    plain = stem and len(stem.split()) <= _NO_CLAUSE and len(stem) <= LONGEST_NAME and not _SENTENCE.search(stem)
    name = _PREPOSITION.sub("", stem, count=1)
    led = _LED.match(question) or len(stem.split()) <= 3
    if plain and led and _PEOPLE.match(name):
        whole = _WHOM.sub("", before.rstrip("?!. "))
        return f"{whole} {'in ' if name == stem else ''}{stem[:1].lower()}{stem[1:]}?"
    asking = _ASKING.match(stem)
    if pointing := _POINTING.search(question):
        named = set(re.findall(r"\w+", question[: pointing.start()])) & set(own)
        idle = (own and _IDLE_IT.search(question)) or (_USED.search(question) and _TREATS.search(before))
        several = pointing[0].lower() in ("they", "them") and " and " not in about and not _PLURAL.match(f"{about} of ")
        fits = asking and not (named or idle or several)
        return _as_question(_POINTING.sub(lambda _: about, question, count=1)) if fits else question
    if not own and _THING.search(stem) and (asking or plain):
        return _as_question(f"{_with(stem, about)}?")
    alone = not _SEVERAL.search(about) or _DESCRIBED.search(before)
    kin = name.split()[0].lower() in about.lower().split() if name else True  # "type 1" after "type 2 diabetes"
    asks = _LED.match(question) or question.rstrip().endswith("?")
    another = plain and own and alone and led and asks and not (kin or asking or asked_for(question))
    return before.replace(about, name, 1) if another else question


def asks_back(questions: Sequence[str], put: str) -> str:
    """What to ask the asker, where `put` is no question that a person would ask; else empty."""
    last, before = questions[-1], standing_alone(questions[:-1]) if len(questions) > 1 else ""
    own = _own_words(_PEOPLE.sub(" ", last))
    if not before or own or put != standing_alone(questions) or _REPLY.match(last):
        return ""
    about = subject_phrase(before) if _ASKING.match(before) or asked_for(before) or before.endswith("?") else ""
    either = _EITHER.fullmatch(about) if _COMPARED.search(before) else None
    if either and _ONE.search(last):
        return f"Which do you mean: {either[1]} or {either[2]}?"
    kinds = {kind.name for kind in asked_for(last)} - {"cause"}  # "why?" names none
    told = kinds or _PEOPLE.search(last) or re.search(r"\d", last) or put not in (last, f"About {about}: {last}")
    of = f"asks about {about}" if about else "is about"
    return "" if about and told else f"Please ask the whole question: it is unclear what \u201c{last}\u201d {of}."


def _own_words(text: str) -> list[str]:
    """The words by which a text names a subject of its own; numbers and talk are none."""
    words = subject_words(without_kinds(text)).values()
    return [word for word in words if folded(word) not in _TALK and not word.isdigit()]


def _only_points_back(text: str) -> bool:
    """Whether the last sentence of a text names nothing and says "still", or none does and one says "she" or "it"."""
    last, whole = (_own_words(_PEOPLE.sub(" ", part)) for part in (_BETWEEN.split(text.strip())[-1], text))
    back = _BACK.search(text) or _PEOPLE.search(text) or asked_for(text)
    return not last and bool(_AGAIN.search(text) or (not whole and back))


def subject_phrase(question: str) -> str:
    """The words from the first to the last by which a question names its subject; empty where it names none."""
    rest = without_kinds(question)
    described = _DESCRIBED.search(question)
    if described:
        return described[0].rstrip("?!. ")
    found = (re.search(rf"(?<!\w){re.escape(word)}(?!\w)", rest) for word in subject_words(rest).values())
    spans = [each.span() for each in found if each]
    if not spans:
        return ""
    start, end = min(start for start, _ in spans), max(end for _, end in spans)
    before, following = _BEFORE_NAME.search(question[:start]), _AFTER_NAME.match(question[end:])
    return question[before.start() if before else start : end + (following.end() if following else 0)]


def _with(noun: str, about: str) -> str:
    found = _THING.search(noun)
    return f"{noun} {'for' if found and found['taken'] else 'of'} {about}"


def _as_question(text: str) -> str:
    """The text without what leads in, as a question: "And the cause of gout?" is "What is the cause of gout?"."""
    plain = _LEADING.sub("", text, count=1)
    if not _ASKING.match(plain) and text.rstrip().endswith("?"):
        low = plain if plain[:2].isupper() else plain[:1].lower() + plain[1:]
        plain = f"What {'are' if _PLURAL.match(plain) else 'is'} the {low}"
    return plain[:1].upper() + plain[1:]
