"""Sentences that a question can be made of, and the phrases in them: by words and marks alone, without a tagger.

Every check errs on the side of refusing: a corpus has more sentences than questions are wanted.
"""

from __future__ import annotations

import re
from itertools import pairwise

from medagent.retrieval.chunking import split_sentences

# Words that point at something outside their sentence.
_POINTERS = frozenset(
    "this these those it they them he she him her hers his you your yours we our us i me my here above below following "
    "aforementioned latter former such another".split()
)
_NOT_IN_TERMS = frozenset(
    (
        "or is are was were be been being am has have had do does did can could may might must shall should will would "
        "not that which who whom whose what when where why how because if while although though since until unless "
        "but so than then as there their its his her some many most several each every all any both few other others "
        "another such same different following more less very also often usually sometimes called known termed "
        "caused causes cause include includes including ways way one ones it they this these those you your we our "
        "sign signs symptom symptoms treatment treatments reason reasons example examples result results goal "
        "purpose answer question doctors people person patients researchers scientists whereas also only percentage "
        "percent number majority because normally together having being certain specific particular common rare "
        "additional further main"
    ).split()
)
_NOT_FIRST = frozenset(
    "and or of in to for with by on from at no within during under between after before without through into near "
    "around thus therefore then about over".split()
)
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+(?:[-'’/.][^\W_]+)*")
_GARBLED = re.compile(
    r"[a-z][A-Z]{1}[a-z]{2}|[a-z]\(|\)[A-Za-z]|[a-z],[a-z]|[.;:?!][A-Z]|\.\d+ [A-Z]|\d(?:is|and|in|of)\b"
    r"|https?:|www\.|\uFFFD"
)
_REFERENCE = re.compile(
    r"\s*\(\s*(?:(?:see\s+)?(?:[Ff]igures?|[Ff]ig\.|[Tt]ables?|[Ii]mage|[Ll]ink)\s*[\d.]*|see\s*|\s[a-z, ]{0,6}|"
    r"\d{1,3})\s*\)|\s*\(\s*\)"
)
_RESPELLED = re.compile(r"\s*\((?=[^)]*[A-Za-z]-)[A-Za-z-]*(?:[A-Z]{2,}-|-[A-Z]{2,})[A-Za-z- ]*\)")
# Letters outside ASCII, and apostrophes, that a corpus has lost: "Bjrnstad", "Sjgren", "womens".
_LETTERS_LOST = re.compile(
    r"\b(?:[Dd]ont|cant|doesnt|wont|isnt|arent|didnt|hasnt|havent|thats|youre|womens|mens|childs|Guillain-Barr|"
    r"Sjgren\w*)\b"
    r"| -[a-z]{3}|\b(?![Ss]ch|[Pp]hth|[Cc]hth)[B-DF-HJ-NP-TV-XZb-df-hj-np-tv-xz][b-df-hj-np-tv-xz]{3}[a-z]*[aeiouy]|"
    r"[b-df-hj-np-tv-xz]{6}"
)
# A capitalised word begins as no English name does, because it lost a letter: "Mllerian", "Kster".
_ODD_ONSET = re.compile(
    r"\b(?=[B-DF-HJ-NP-TV-XZ][b-df-hj-np-tv-xz][a-z]{2,}\b)"
    r"(?!M[cC]|(?:B[lr]|C[hlrz]|D[rw]|F[lr]|G[hlnr]|K[hlnrw]|M[n]|P[hlnrst]|Rh|S[chklmnpqtvw]|T[hrsw]|Tz|W[hr])[aeiouy]"
    r"|(?:Sch|Scl|Scr|Shr|Spl|Spr|Str|Thr|Chr|Phr|Chl|Phl|Pht|Sph|Sth))"
)
_RANGE = (6, 55)  # words of a sentence


def usable_sentences(text: str) -> list[str]:
    """The whole sentences of a passage: prose of 6 to 55 words, without marks of tables, lists and broken text."""
    whole = (raw for raw in split_sentences(text) if raw.endswith(".") and raw[0].isupper() and " " in raw)
    return [sentence for raw in whole if is_prose(sentence := tidy(raw))]


def tidy(sentence: str) -> str:
    """The sentence without references to figures and respellings."""
    if "(" not in sentence:
        return sentence
    plain = _RESPELLED.sub("", _REFERENCE.sub("", sentence))
    return " ".join(plain.replace(" ,", ",").replace(" .", ".").split())


def is_prose(sentence: str) -> bool:
    """Whether it is one whole sentence: a capital, a full stop, brackets in pairs, and no list or table in it."""
    words = sentence.split()
    return (
        _RANGE[0] <= len(words) <= _RANGE[1]
        and sentence[0].isupper()
        and sentence.endswith(".")
        and not sentence.endswith("..")
        and not re.search(r" --? |[^aeiou ]ys\b", sentence)
        and "?" not in sentence
        and ":" not in sentence
        and '"' not in sentence
        and "“" not in sentence
        and sentence.count("(") == sentence.count(")")
        and not _GARBLED.search(sentence)
        and not _headed(words)
        and not _LETTERS_LOST.search(sentence)
        and not _ODD_ONSET.search(sentence)
    )


def _headed(words: list[str]) -> bool:
    """Whether a heading seems to run into it, as in "Supportive care Supportive care is given"."""
    lowered = [word.lower().strip(",.;()") for word in words]
    for size in (1, 2, 3, 4):
        if lowered[:size] == lowered[size : 2 * size]:
            return True
    # "An Inflammatory, Autoimmune Disease Rheumatoid arthritis is": a capital after capitals, then a small word.
    capitals = [word[:1].isupper() and word[1:].islower() for word in words[:6]]
    article = any(word == "A" and after[:1].islower() for word, after in pairwise(words[1:6]))
    return len(words) > 3 and (all(capitals[:3]) or article)


def words_of(text: str) -> list[str]:
    """Words in lower case, hyphens and apostrophes inside them kept."""
    return [match.group().lower() for match in _WORD.finditer(text)]


_THE_ONE = re.compile(
    r"\b(?:the|each) (?:condition|disorder|disease|syndrome|illness|affected \w+)s?\b(?! (?:that|of|in which|called))"
    r"|\bthe (?:altered |mutated |affected )?gene\b(?! (?:that|for|which))|\bof (?:the |all )?cases (?!of|with|in)"
    r"|\bof (?:all )?cases$|\beach other\b|\bof the (?:two|three|four|five|six)\b|\baffected (?:individuals|people|"
    r"infants|children|babies|newborns|males|females|men|women|adults)\b",
    re.IGNORECASE,
)


def points_elsewhere(text: str) -> bool:
    """Whether it speaks of something said elsewhere: this, it, they, such, the condition."""
    return bool(_POINTERS.intersection(words_of(text)) or _THE_ONE.search(text))


def without_article(phrase: str) -> str:
    """The phrase without a leading the, a or an."""
    return _ARTICLE.sub("", phrase.strip())


def without_brackets(phrase: str) -> str:
    """The phrase without what stands in round brackets."""
    return " ".join(re.sub(r"\s*\([^()]*\)", "", phrase).split())


def is_term(phrase: str, *, longest: int = 7) -> bool:
    """Whether it can be a name: 1 to `longest` words, none of them a verb, pronoun or other word that makes clauses."""
    words = words_of(phrase)
    if not 1 <= len(phrase.split()) <= longest or len(words) == 0:
        return False
    if _NOT_IN_TERMS.intersection(words) or points_elsewhere(phrase):
        return False
    if words[0] in _NOT_FIRST:
        return False
    if words[-1] in ("and", "or", "of", "in", "to", "for", "with", "by", "the", "a", "an", "on", "from", "at"):
        return False
    if not re.fullmatch(r"[\w\s'’/+.,()αβγδ-]+", phrase) or phrase.count("(") != phrase.count(")"):
        return False
    return any(len(word) > 2 or word.isupper() for word in re.findall(r"[^\W\d_]+", phrase))


_REMARK = re.compile(
    r"\s*(?:;|,? which (?:is|are|can|may|means|results?|leads?|causes?|helps?|makes?)\b"
    r"|, (?:but|although|though|whereas|while|so|since|because|even|with the exception|e\.g|such as)\b"
    r"|, and (?:is|are|it|they|can|may|has|have|in|usually|often|sometimes|typically"
    r"|(?:the|an?) [^,]{3,40}? (?:is|are))\b)"
)


def cut_clause(clause: str) -> str:
    """The clause up to a remark (", which", "; ", ", but"); empty where the rest cannot be left out."""
    found = _REMARK.search(clause)
    if (
        found
        and "such as" in found.group()
        and re.search(r", (?:is|are|was|has|have|can|may)\b", clause[found.end() :])
    ):
        return ""  # what the examples belong to goes on behind them
    return clause[: found.start()].rstrip(" ,") if found else clause.rstrip(" .,")


# Verbs of factual sentences, in the third person: a closed list, so that no noun is taken for a verb.
_BASES = (
    "absorb accompany accumulate activate act affect aid allow anchor appear arise articulate assist attach attack "
    "balance become begin bind block break bring carry catalyze cause change circulate clear coat combine conduct "
    "connect consist contain contract control convert coordinate cover create cushion damage decrease deliver depend "
    "destroy detect determine develop differentiate digest direct dissolve divide drain elevate enable encircle "
    "enclose encode engulf enhance enter extend fight filter flex flow form function generate give grow happen help "
    "hold house impair improve increase infect inhibit initiate innervate insulate integrate interfere involve join "
    "keep kill lack last lead lie limit line link lower lubricate maintain make measure mediate modify monitor move "
    "nourish occur open originate pass perform permit prevent process produce project promote protect provide pull "
    "pump raise reabsorb receive recognize reduce regulate relax release relay remove repair replace require resemble "
    "result rotate run sense separate serve show slow sort span specialize spread start stimulate stop store "
    "strengthen stretch supply support suppress surround synthesize take target tend transfer transform transmit "
    "transport trap travel treat trigger turn use vary weaken wrap"
).split()
_ODD = {"carry": "carries", "supply": "supplies", "vary": "varies", "modify": "modifies", "accompany": "accompanies"}


def _third(base: str) -> str:
    if base.endswith(("s", "sh", "ch", "x", "z")):
        return f"{base}es"
    return _ODD.get(base, f"{base}s")


THIRD_PERSON = frozenset(map(_third, _BASES))
PLURAL = frozenset(_BASES)
SINGULAR_AUXILIARIES = frozenset(("is", "has", "was", "does"))
PLURAL_AUXILIARIES = frozenset(("are", "have", "were", "do"))
MODALS = frozenset(("can", "may"))
ADVERBS = frozenset(
    "also usually often typically mainly mostly primarily commonly generally frequently only directly normally "
    "predominantly particularly specifically sometimes rarely most largely almost always".split()
)
PARTICIPLES = (
    "characterized characterised caused marked defined associated made formed produced secreted released located "
    "found used composed known inherited transmitted spread derived linked accompanied responsible present involved "
    "resulting"
).split()


def begins_with_verb(clause: str, *, plural: bool) -> bool:
    """Whether a clause begins with a finite verb of that number, after adverbs at most."""
    words = [word for word in clause.lower().split() if word not in ADVERBS]
    if not words:
        return False
    wanted = (PLURAL | PLURAL_AUXILIARIES) if plural else (THIRD_PERSON | SINGULAR_AUXILIARIES)
    return words[0] in wanted | MODALS
