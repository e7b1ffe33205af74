r"""Reads the option that a text names, twice: strictly (the reward, the column to trust) and leniently.

A letter is never assumed by default.

Strict needs one well-formed answer that names one option. By itself that is "(B)", "B", "B. text", "text (B)" or
"Option B". The answer field of a JSON reply may hold it too ({"answer_choice": "B"}); all answer fields must agree.

Lenient takes more: statements such as "the answer is B", and an option's own text. Whole replies are read by
`medagent.evaluation.grading.replies`.

A single answer that names several options ("A or C") is no answer in either column. Neither is one that is denied ("not
(B)") or guessed at ("maybe (B)?").
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from medagent.evaluation.grading.statements import PLAIN_WORDS, species, stated, wording_at


class Outcome(StrEnum):
    """How an answer was read, whether or not it is right."""

    PARSED = "parsed"  # names one option
    UNPARSED = "unparsed"  # names no option
    MULTIPLE = "multiple"  # names several at once
    ABSTAINED = "abstained"  # declines to choose, or says that no option is right
    TRUNCATED = "truncated"  # cut off before its answer


@dataclass(frozen=True)
class Reading:
    """The option named strictly and leniently (None where there is none), and the outcome of the strict reading.

    `refused`: the model declined to answer at all, or a filter did so. The outcome is then `abstained`.
    """

    strict: str | None
    lenient: str | None
    outcome: Outcome
    refused: bool = False


CITED = re.compile(r"\s*\[\d{1,3}\]")
_NUMBERED = re.compile(
    r"(?i)\b(option|choice)\s*#?[(\[]?(10|[1-9])\b[)\]]?"
    r"(?=[\s.:;)*_\"']*$|[.:;)*_]?[\n*]|\s*[:;.](?!\d)"
    r"|\s+(?:is|was|would|because|since|as|fits|seems|(?:or|and)\s+(?:option|choice))\b)"
)
WRAPPING = " \t\n\"'*_`$#"
FULL_WIDTH = str.maketrans({chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})  # "Ｂ", in Chinese
_PREFIX = re.compile(
    r"^(?:(?:final|correct|best)\s+)?(?:option|choice|answer|ans\.?)[\s*_]*[:=-]?[\s*_\"'`$]*(?:(?:option|choice)\s+)?"
    r"(?=[(\[]?[A-J]\b)",
    re.IGNORECASE,
)
# A letter in parentheses of its own: neither RhO(D) nor V(D)J.
_MARK = re.compile(r"(?<!\w)\(([A-J])\)(?!\w)")
_LAST_MARK = re.compile(r"(?<!\w)\(([A-J])\)\W*$")
_FIRST = re.compile(r"^(?:\(([A-J])\)|\[([A-J])\]|([A-J])(?:[.):](?=\s|$)|\s+[-–—]\s|\s+(?=\()))")
_FURTHER = re.compile(r"[\s,;/&+|]\(?([A-J])[.):](?=\s|$)")
_SEVERAL = re.compile(
    r"^(?:either|both)?\s*\(?[A-J]\)?(?:(?:\s*(?:,|;|/|&|\+|\||\bor\b|\band\b))+\s*\(?[A-J]\)?)+\W*$", re.IGNORECASE
)
_OR = re.compile(r"(?:or|and)\b")
_AND_NOT = re.compile(  # "(B), not (C)"
    r",?\s+\(?(?:and\s+|but\s+)?(?:not|rather than|instead of)\s+(?:option\s+)?\(?[A-J]\b\)?\W*$"
)
_DENIED = re.compile(
    r"(?i)(?:\b(?:not|never|except|neither|nor|excludes?|excluded|rather than|instead of|rules? out|cannot "
    r"be)|n't)\s+(?:be\s+)?(?:the\s+)?(?:option|choice|answer)?\s*\(?[A-J]\)?\W*$"
    r"|\b(?:is|are|was|can be|has been)\s+(?:therefore\s+|thus\s+)?(?:incorrect|wrong|ruled "
    r"out|excluded|eliminated)\W*$|^\W*(?:incorrect|wrong)\W*$|^\s*(?:is|was)\s+not\b"
)
_GUESSED = re.compile(
    r"(?i)\b(?:maybe|perhaps|possibly|closest (?:is|would be|option|answer|match)|not sure|unsure|cannot tell|can't "
    r"tell|guess)\b|\?\s*$"
)
CORRECTED = re.compile(  # "A. No, B", "A, wait"; an option may be "Wait and watch"
    r"\bno,?\s+\(?[A-J]\b|[—–,.;-]\s*(?:no,?\s+)?(?:wait|actually|correction|on second thought)\b", re.IGNORECASE
)
_DECLINED = re.compile(
    r"\s*(?:not enough|insufficient|no) (?:information|data)|\s*none of the above \((?![A-J]\)\W*$)", re.IGNORECASE
)
NEGATED = re.compile(
    r"(?i)\b(?:not|no|never|cannot|except|rather than|unlikely|without|excludes?|excluded|eliminated|ruled? out|rules? "
    r"out|incorrect|wrong|avoid(?:ed)?|stop(?:ped)?|contraindicated|discontinued?)\b|n't\b"
)
_SO = re.compile(r"^(?:so|thus|therefore|hence|overall|in short|in conclusion)\b\W*", re.IGNORECASE)
_SUBJECT = (
    r"(?:question|information|data|details|context|options?|choices?|answers?|figure|image|diagram|document|documents"
    r"|evidence)"
)
ABSTENTION = re.compile(
    rf"""(?ix)^\W*(?:i\ (?:am\ |have\ )?|i['’]m\ )?(?:n[/.]?a|no\ idea|idk|none|neither
        |unknown|unanswerable|unclear|uncertain|undetermined|inconclusive
        |insufficient|incomplete|indeterminate|abstain|don't\ know
        |not\ (?:sure|stated|found|determinable|possible|in\ the\ .*))\W*$
    | \bnone\ of\b | \bneither\ of\ (?:the|these)\b | \b(?:all|any)\ options\ are\ (?:incorrect|wrong)
    | \bno\ (?:(?:correct|definitive|single|suitable|clear|right|appropriate)\ )?(?:answer|option|choice)\b
    | \bno\ (?:relevant\ |specific\ |sufficient\ )?information\b
    | \b(?:more|additional|further|lack\ of|missing|insufficient|incomplete|inadequate)\ (?:\w+\ ){{0,2}}{_SUBJECT}\b
    | \b{_SUBJECT}\ (?:\w+\ ){{0,3}}(?:incomplete|missing|insufficient|unclear|needed|required)\b
    | \b(?:error|mistake)\ in\ (?:the\ )?{_SUBJECT}
    | \b(?:unable|impossible|not\ possible|not\ able)\ to\ (?:\w+\ ){{0,2}}(?:answer|determine|choose|select|decide
        |conclude|say|infer|identify|provide|make|tell|be)\b
    | \bunable\ to\ \w+\W*$
    | \b(?:can(?:not|'t|\ not)|could\ not|couldn't)\b.{{0,40}}\b(?:answer|determine|choose|select|decide|conclude
        |say|infer|tell|be\ (?:made|given))
    | (?:\bnot|n't)\ (?:\w+\ ){{0,2}}(?:provided?|available|enough|sufficient|listed|mention(?:ed)?|clear
        |specif(?:y|ied)|say|tell|given|contain|applicable|correspond|discuss|address|support|state|find|found|among
        |include|know|determin\w+)"""
)
_ARTICLE = re.compile(r"^(a|an|the) ")
_PUNCTUATION = re.compile(r"[^\w\s+<>=%.-]|(?<![\w])[.-](?!\w)|\.(?!\d)|(?<!\w)-(?=\D)")


def normalise(text: str) -> str:
    """Lower case without a leading article, punctuation and extra space.

    It is like SQuAD's normalisation (arXiv 1606.05250), but keeps signs that carry meaning beside letters or digits:
    "Rh+" is not "Rh-".
    """
    plain = _PUNCTUATION.sub(" ", text.lower())
    return _ARTICLE.sub("", " ".join(plain.split()))


def read_answer(answer: str, letters: str, options: Sequence[str] = ()) -> Reading:
    """Read a short answer: the contents of answer tags, or of a field.

    >>> read_answer("B. or C.", "ABCD").outcome.value
    'multiple'
    """
    answer = lettered(answer, letters, options)
    text = _PREFIX.sub("", CITED.sub("", answer.translate(FULL_WIDTH)).strip(WRAPPING)).strip(WRAPPING)
    is_species, meant = species(text, letters, options)
    if is_species and not _LAST_MARK.search(text):
        return Reading(None, stated(text, letters, options) or meant, Outcome.UNPARSED)
    if chosen := _chosen_before_others(text, letters, options):
        return Reading(None, chosen, Outcome.UNPARSED)
    named, rest = _named(text, letters, options)
    if len(named) > 1:
        return Reading(None, None, Outcome.MULTIPLE)
    if named and named[0] in letters:
        wording = options[letters.index(named[0])] if options else ""
        said = rest.replace(wording, " ") if wording else rest
        # Beside "B." stands the option's text, which may say "possibly". Around "(B)" stands what is said of it.
        guessed = rest == text and _GUESSED.search(said)
        if not (_DENIED.search(said) or guessed or _DECLINED.match(said) or CORRECTED.search(said)):
            return Reading(named[0], named[0], Outcome.PARSED)
    lenient = stated(text, letters, options) or by_option_text(text, letters, options)
    if lenient is None and not named and (small := re.fullmatch(r"([a-j])(?:[.):].*)?", text, re.DOTALL)):
        lenient = small[1].upper() if small[1].upper() in letters else None
    if lenient is None and ABSTENTION.search(text):
        return Reading(None, None, Outcome.ABSTAINED)
    return Reading(None, lenient, Outcome.UNPARSED)


def lettered(text: str, letters: str, options: Sequence[str]) -> str:
    """The text with "option 2" as "option (B)", unless an option begins with a number of its own."""
    if any(re.match(r"\W*(?:(?:option|choice)\s*)?\d", option, re.IGNORECASE) for option in options):
        return text
    return _NUMBERED.sub(
        lambda found: f"{found[1]} ({letters[int(found[2]) - 1]})" if int(found[2]) <= len(letters) else found[0], text
    )


def _chosen_before_others(text: str, letters: str, options: Sequence[str]) -> str | None:
    """B, of "(B), not (C)"."""
    chosen = _AND_NOT.sub("", text)
    if not chosen or chosen == text:
        return None
    return read_answer(chosen, letters, options).strict or stated(chosen, letters, options)


def _named(text: str, letters: str, options: Sequence[str]) -> tuple[list[str], str]:
    """The letters that a short answer marks as its choice, and the text in which they may be denied."""
    bare = text.strip(" .:)")
    if len(bare) == 1:  # also where it is the text of another option
        return ([bare] if "A" <= bare <= "J" else []), ""
    last = _LAST_MARK.search(text)
    own = options[letters.index(last[1])] if last and options and last[1] in letters else None
    if last and own is not None and _bare(text[: last.start()]) == _bare(own):
        return [last[1]], ""  # "A (B)", where option B is "A"
    if _bare(text) in map(_bare, options):
        return [], text  # "C. difficile colitis" is an option's text, not option C
    if _SEVERAL.match(text):
        return list(dict.fromkeys(re.findall(r"\b[A-J]\b", text))) or [], text
    marks = list(dict.fromkeys(_MARK.findall(text)))
    marks = [mark for mark in marks if mark in letters] or marks[:1]
    first = _FIRST.match(text)
    start = next((group for group in first.groups() if group), "") if first else ""
    if first and start in letters:
        body = text[first.end() :]
        if options and _bare(body) == _bare(options[letters.index(start)]):
            return [start], ""
        further = [letter for letter in _FURTHER.findall(_MARK.sub("", body).lstrip()) if letter in letters]
        last = _LAST_MARK.search(body)
        if last and last[1] != start and last[1] in letters:
            between = body[: last.start()].strip()
            # "C. difficile colitis (B)" is the protocol's own form; "C. (B)" names two.
            return ([last[1]] if between and not further and not _OR.match(between) else [start, last[1]]), text
        return list(dict.fromkeys([start, *further])), body
    if len(marks) > 1:
        return marks, text
    return ([last[1]] if last else []), text


def _bare(text: str) -> str:
    return text.strip(" .").lower()


def by_option_text(text: str, letters: str, options: Sequence[str]) -> str | None:
    """The option whose text this is, or the only one whose text occurs in it without denial.

    Options such as "no" occur in sentences by chance. They are read where they begin a text and a point or comma
    follows. Options that are one letter are not read in sentences.
    """
    plain = normalise(CITED.sub(" ", text))
    wordings = {letter: normalise(option) for letter, option in zip(letters, options, strict=False)}
    same = [letter for letter, wording in wordings.items() if wording and wording == plain]
    if same:
        return same[0] if len(same) == 1 else None
    begun = wording_at(_SO.sub("", text.lstrip(WRAPPING)), letters, options)
    if begun and wordings[begun[0]] in PLAIN_WORDS:
        return begun[0]
    idle = {wording for wording in wordings.values() if len(wording) == 1 and wording.isalpha()} | PLAIN_WORDS | {""}
    wordings = {letter: wording for letter, wording in wordings.items() if wording not in idle}
    said, denied = plain, r"\b(?:and not|not|rather than|instead of) (?:(?:an?|the) )?"
    for wording in sorted(wordings.values(), key=len, reverse=True):
        said = re.sub(rf"{denied}{re.escape(wording)}(?!\w)", " ", said)
    inside = {}
    for letter, wording in wordings.items():
        genus, _, epithet = wording.partition(" ")
        forms = [wording, f"{genus[0]} {epithet}"] if epithet and len(genus) >= 5 else [wording]  # "E. coli"
        if found := re.search(rf"(?<!\w)(?:{'|'.join(map(re.escape, forms))})(?!\w)", said):
            inside[letter] = found[0]
    # "iron deficiency anemia" also contains the option "anemia": the longer one counts.
    parts = {one for one in inside.values() for other in inside.values() if one != other and one in other}
    whole = [letter for letter, wording in inside.items() if wording not in parts]
    alone = len(whole) == 1 and not NEGATED.search(said.replace(inside[whole[0]], " "))
    return whole[0] if alone else None
