r"""Statements that name an option: "the answer is B", "that leaves (B)", \boxed{B}, "Respuesta: B".

A statement is a lead and what follows it: an option's own text, or its letter. A denied one names nothing. Denial
belongs to the clause: "it is not oral, so the answer is B" names B.

Some letters are no options: "E. coli", "B cells", "C-reactive protein". A species is abbreviated by a letter and a
point, as an option is marked. The options tell which of the two is meant, else a list of species does.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from medagent.evidence.words import word_list
from medagent.lazy import packaged

_OPENING = r"[\s*_:\"'“«(\[$`<]*"
_KIND = r"(?:(?:the\s+)?(?:option|choice|answer|letter)\s+)?"
_LEADS = [lead.replace("{kind}", _KIND) for lead in packaged("medagent.evaluation.grading", "leads.yaml")]
_LEAD = re.compile("(?:" + "|".join(_LEADS) + ")" + _OPENING, re.IGNORECASE)
_IS_RIGHT = re.compile(
    r"(?<![\w(.])\(?([A-J])\)?\s*(?:(?:is|seems|appears|would be)\s+(?:therefore\s+|clearly\s+|thus\s+)?"
    r"(?:the\s+)?(?:only\s+)?(?:correct|right|best|most likely|most appropriate)\b"
    r"(?=(?:\s+(?:answer|option|choice|one|diagnosis))?\s*(?:[.,;:!\n]|$|because|since|as\b|here))|fits\s+best\b"
    r"|es la (?:respuesta |opción )?correcta\b"
    r"|é a (?:resposta |alternativa )?correta\b|est la (?:bonne |réponse correcte)|ist (?:richtig|korrekt)\b|选项正确)"
)
# "Therefore B.", "so no": nothing stands between the word and the end of the sentence but the option.
_SO = re.compile(r"(?i)\b(?:therefore|thus|hence|consequently|so)\b[\s,:]+(?:it(?:['’]s|\s+is)\s+)?[*(\"]{0,3}")
_ENDS = re.compile(r"[)*\"]{0,3}\s*(?:[.!\n]|$)")
_ALL_BUT = re.compile(
    r"\b(?:all|every|each)\s+(?:of\s+)?(?:the\s+|these\s+)?(?:other\s+)?(?:options?|choices?|answers?)\b[^.\n]{0,20}"
    r"\b(?:except|but)\s+(?:for\s+)?(?:option\s+)?\(?([A-J])\)?\s+(?:is|are|were|can be)\s+"
    r"(?:wrong|incorrect|false|ruled out|excluded|eliminated)\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?i)[.!?。！？;；,，:：\n]\s*|\s(?=(?:so|therefore|thus|hence|but|and|leaving|which|then|sino)\s)"
)
_DENIED = re.compile(
    r"\b(?:not|no|never|cannot|except|rather than|unlikely|without|excludes?|excluded|eliminated?|ruled? out|rules? "
    r"out|incorrect|wrong|neither|doubt)\b|n['’]t\b|不是|아니|아닌",
    re.IGNORECASE,
)
_ANOTHER = re.compile(
    r"[\"'”»)\]*_\s]*(?:\b(?:or|and|y|o|et|ou|und|oder)\b|[,/&、]|[和与或及와과])\s*\(?[A-J](?![\w'])(?!\)?\s+(?:is|was)\b)"
)
_DENIED_AFTER = re.compile(r"\)?(?:\s+(?:is|was)\s+(?:wrong|incorrect|false|not\b)|(?:가|이|은|는)?\s*아[니닌닙]|的)")
# An option that would be right elsewhere, that others choose, or that was considered first.
_SUPPOSED = re.compile(r"(?i)\b(?:if|unless|had (?:it|she|he|there)|were (?:it|she|he|there))\b|若|如果|假如")
_NOT_MEANT = re.compile(
    r"(?i)\b(?:trap|tempting|second(?:[- ]best)?|distractor|mistake|many|students|at first|initially)\b|不(?:应|能)?$"
)
_SENTENCE_END = re.compile(r"[.!?。！？\n]\s*")
_OPTION_LINE = re.compile(r"[\s*_>#-]*\(?([A-J])(?:[).:]|\s[-–—]\s)")
# Options of one word that sentences also hold by chance.
PLAIN_WORDS = frozenset(("yes", "no", "maybe", "none", "all", "both", "neither", "true", "false", "unknown", "other"))
_ALONE = re.compile(r"[\s\"'”»)\]*_]*(?:$|[.,;:!)\n\u2014\u2013]|\b(?:because|since|as)\b)")

_ABBREVIATED = re.compile(r"\W*([A-J])\.\s?([A-Za-z][a-z]{3,})\b")
# Epithets of species whose genus begins with a letter from A to J.
_EPITHETS = word_list("species")
# After an option's letter comes one of these, or none: "B because ...". "B cells" is a name.
_AFTER_A_LETTER = word_list("after_a_letter")
_WORD_AFTER = re.compile(r"[ \t]+([a-z]+)\b")


def stated(text: str, letters: str, options: Sequence[str]) -> str | None:
    """The letter of the last statement that names one option."""
    found = sorted(_statements(text, letters, options))
    return found[-1][1] if found else None


def _statements(text: str, letters: str, options: Sequence[str]) -> Iterator[tuple[int, str]]:
    for lead in _LEAD.finditer(text):
        named = _named_at(text, lead.end(), letters, options)
        line = text.rfind("\n", 0, lead.end()) + 1
        leads_to_a_list = "\n" in lead[0] and is_list("\n".join(text[line:].split("\n")[:3]))
        if named and not leads_to_a_list and not _is_denied(text, lead.start(), lead[0]):
            yield lead.start(), named
    for right in _IS_RIGHT.finditer(text):
        if right[1] in letters and not _is_denied(text, right.start(), ""):
            yield right.start(), right[1]
    for all_but in _ALL_BUT.finditer(text):
        if all_but[1] in letters:
            yield all_but.start(), all_but[1]
    for so in _SO.finditer(text):
        rest = text[so.end() :]
        letter, by_text = rest[:1], wording_at(rest, letters, options)
        if species(rest, letters, options)[0]:
            continue
        if letter and letter in letters and _ENDS.match(text, so.end() + 1):
            yield so.start(), letter
        elif by_text and _ENDS.match(text, so.end() + by_text[1]):
            yield so.start(), by_text[0]


def _named_at(text: str, at: int, letters: str, options: Sequence[str]) -> str | None:
    """The option that the text names from a place on."""
    rest = text[at:]
    if by_text := wording_at(rest, letters, options):
        letter, end = by_text
        if mark := re.match(r"\W{0,3}\(([A-J])\)", rest[end:]):
            return mark[1] if mark[1] in letters else None
        denied = _another_wording(rest[end:], letters, options) or _DENIED_AFTER.match(rest, end)
        return None if denied else letter
    is_species, meant = species(rest, letters, options)
    if is_species:
        return meant
    found = re.match(r"[A-J]", rest)
    if not found or found[0] not in letters or begins_a_name(found[0], rest[1:]):
        return _small_letter(rest, letters)
    if re.match(r"\s+if\W*$", rest[1:]):  # cut off
        return None
    return None if _ANOTHER.match(rest, 1) or _DENIED_AFTER.match(rest, 1) else found[0]


def _small_letter(rest: str, letters: str) -> str | None:
    """A small letter that ends its line: "Answer: b"."""
    found = re.match(r"([a-j])[)\].*_$]*\s*(?:\n|$)", rest)
    return found[1].upper() if found and found[1].upper() in letters else None


def wording_at(text: str, letters: str, options: Sequence[str]) -> tuple[str, int] | None:
    """The option whose wording `text` begins with, and where that ends: the longest of several."""
    best: tuple[str, int] | None = None
    for letter, option in zip(letters, options, strict=False):
        words = option.strip().rstrip(".").split()
        if not words or len("".join(words)) < 2:
            continue
        found = re.match(r"\s+".join(map(re.escape, words)) + r"(?!\w|-\w)", text, re.IGNORECASE)
        if not found or (option.strip().lower() in PLAIN_WORDS and not _ALONE.match(text, found.end())):
            continue
        if best is None or found.end() > best[1]:
            best = letter, found.end()
    return best


def _another_wording(rest: str, letters: str, options: Sequence[str]) -> bool:
    joined = re.match(r"\s*(?:\bor\b|\band\b|[,/&])\s*(?:the\s+)?", rest)
    return joined is not None and wording_at(rest[joined.end() :], letters, options) is not None


def _is_denied(text: str, start: int, lead: str) -> bool:
    """Whether the clause around a lead denies what it names."""
    if _DENIED.search(re.sub(r"^not\b.*?\bbut\b", "", lead, flags=re.IGNORECASE | re.DOTALL)):
        return True
    clause = _CLAUSE.split(text[:start])[-1]
    sentence = _SENTENCE_END.split(text[:start])[-1]
    supposed = _SUPPOSED.search(sentence) or _NOT_MEANT.search(clause) or _NOT_MEANT.search(lead)
    return supposed is not None or _DENIED.search(clause) is not None


def is_list(text: str) -> bool:
    """Whether lines of a text enumerate options: two that follow each other are marked with different letters."""
    marks = [(found := _OPTION_LINE.match(line)) and found[1] for line in text.splitlines() if line.strip()]
    return any(one and other and one != other for one, other in pairwise(marks))


def species(text: str, letters: str, options: Sequence[str]) -> tuple[bool, str | None]:
    """Whether `text` begins with an abbreviated species, and the option that names it.

    An option of that very letter which holds the epithet is named by either reading.

    >>> species("E. coli", "AB", ["Escherichia coli", "Proteus"])
    (True, 'A')
    """
    found = _ABBREVIATED.match(text)
    if not found:
        return False, None
    letter, epithet = found[1], found[2].lower()
    epithet = {"diff": "difficile"}.get(epithet, epithet)
    wordings = dict(zip(letters, (option.lower() for option in options), strict=False))
    same = [each for each, wording in wordings.items() if re.search(rf"\b{epithet}\b", wording)]
    if letter in same:
        return False, None
    if len(same) == 1 and wordings[same[0]].startswith(letter.lower()):
        return True, same[0]
    return epithet in _EPITHETS, None


def begins_a_name(letter: str, after: str) -> bool:
    """Whether a letter is the beginning of a name, by the text after it."""
    if re.match(r"\w|['’]\w|[-\u2010\u2011]\w", after, re.ASCII):
        return True
    word = _WORD_AFTER.match(after)
    return word is not None and word[1] not in _AFTER_A_LETTER
