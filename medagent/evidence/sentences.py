"""Whether a sentence states an answer, and whether the answer has the form that its question asks for.

A clause that denies states nothing. "Which nerve" asks for something that the passage calls a nerve.
"""

import itertools
import re
from collections.abc import Sequence

from medagent.evidence.drugs_and_doses import named_in
from medagent.evidence.support import content_words, windows_of
from medagent.evidence.words import asked_for, describes, folded, forms, named_words, word_list
from medagent.retrieval.chunking import sentence_spans

_CLAUSE = re.compile(r"[,;:]\s+|\b(?:but|whereas|although|while|rather than|instead of|unlike|as opposed to|and not)\b")
_AFTER_NAME = re.compile(r"\b(?:but|whereas|although|while)\b|;\s+")
DENIAL = re.compile(
    r"\b(?:not|no|never|without|neither|nor|none|cannot|contraindicat\w*|avoid\w*|ineffective|useless|unsafe|harmful|"
    r"instead of|rather than|unlike|except|excluding|rul\w+ out|dangerous|no longer|least)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"\?[\s\"'\u2019\u201d)\]]*$")  # a sentence that asks states nothing
SUPPOSED = re.compile(  # a belief or a guess; "may" alone is none, as in "symptoms may include"
    r"(?i)\b(?:(?:some|many|most|researchers|scientists|doctors|experts|physicians) (?:\w+ )?(?:believe|think|suspect)|"
    r"(?:is|are|was|were) (?:believed|thought|suspected)|(?:not|un)(?: yet)? ?(?:known|clear|certain|proven)|"
    r"(?:may|might|could) result from|possible causes?|one theory|theor(?:y|ies)|hypothes\w+|speculat\w+)\b"
)
_NUMBER_WITH_WORD = re.compile(r"\b(\d[\d.,]*)[\s-]+([^\W\d_]+)")


def denies(text: str) -> bool:
    """Whether a text denies, warns or excepts."""
    return bool(DENIAL.search(text))


def stating_windows(name: str, text: str, *, denied: bool) -> list[str]:
    """The sentences of a text that state a name; `denied`: the question asks for what is denied.

    A clause that holds all words of the name decides whether it is denied, else the whole sentence.
    """
    wanted, named = forms(name), named_in(name)
    if not wanted:
        return []
    own, found = re.compile(re.escape(name), re.IGNORECASE), []  # "ECG without P waves" denies nothing
    for window in windows_of(text):
        if _QUESTION.search(window) or not wanted <= forms(window):
            continue
        if named.beyond(named_in(window)) or not _numbers_fit(name, window):
            continue
        if any(denies(own.sub(" ", each)) == denied for each in _deciding(wanted, window)):
            found.append(window)
    return found


def _deciding(wanted: frozenset[str], window: str) -> Sequence[str]:
    """The smallest parts of a sentence that hold all of the name, each with the word that opens its clause."""
    for border in (_CLAUSE, _AFTER_NAME):
        starts = [0, *(match.start() for match in border.finditer(window)), len(window)]
        clauses = [window[start:end] for start, end in itertools.pairwise(starts)]
        holding = [clause for clause in clauses if wanted <= forms(clause)]
        if holding:
            return holding
    return [window]


def _numbers_fit(name: str, window: str) -> bool:
    """Whether each number of the name stands before the same word in the window: "2 tablets" is not "2 weeks"."""
    plain = folded(window)
    for number, word in _NUMBER_WITH_WORD.findall(folded(name)):
        if named_in(f"{number} {word}").doses:
            continue  # compared with their units already
        stem = re.escape(word[: max(3, len(word) - 2)])
        if not re.search(rf"(?<![\d.,]){re.escape(number)}[\s-]+(?:\w+\s+)?{stem}", plain):
            return False
    return True


def near_sentences(text: str, claim: str, *, beside: str = "", around: int = 1) -> str:
    """The sentence of a text that shares most words with a claim (of equals, with `beside`), and some `around` it."""
    spans = sentence_spans(text) or [(0, len(text))]
    wanted, also = content_words(claim), content_words(beside)

    def shared(at: int) -> tuple[int, int]:
        words = content_words(text[slice(*spans[at])])
        return len(wanted & words), len(also & words)

    best = max(range(len(spans)), key=shared)
    return text[spans[max(0, best - around)][0] : spans[min(len(spans) - 1, best + around)][1]]


_ASKS_FOR_A_GENE = re.compile(r"\b(?:which|what) (?:single )?genes?\b", re.IGNORECASE)
_NO_GENE = word_list("no_gene")
_SYMBOL = r"(?-i:[A-Z][A-Z0-9-]+)"
_LISTED = rf"(?:(?:,|,? (?:and|or)) {_SYMBOL})*"
_OF_A_GENE = r"(?: (?:tumou?r|suppressor|homeobox|receptor|protein|growth|factor|transcription)){0,3}"
_ABBREVIATION = re.compile(r"\b(?:abbreviation|acronym|stands? for|short for)\b", re.IGNORECASE)
_CALLED = r"(?:called|known as|termed|named|referred to as|names?:?|abbreviated(?: as)?|stands for|short for|means)"
_ARTICLES = r"(?:an?\s+|the\s+)?"


def names_a_gene(answer: str, sentence: str, question: str) -> bool:
    """Whether the sentence calls the answer, or each of a list, a gene. True if no gene is asked for."""
    if not _ASKS_FOR_A_GENE.search(question):
        return True
    parts = [part.strip() for part in re.split(r",|;|\b(?:and|or)\b", answer) if part.strip()]
    return bool(parts) and all(_is_called_a_gene(part, folded(sentence), sentence) for part in parts)


def _is_called_a_gene(answer: str, plain: str, sentence: str) -> bool:
    if set(folded(answer).split()) <= _NO_GENE:
        return False
    if re.search(r"\bgenes?\b", answer, re.IGNORECASE):
        return True
    symbols = re.findall(r"\b[A-Z][A-Z0-9-]+\b", answer)  # "maternal copy of UBE3A"
    said = symbols[0] if len(symbols) == 1 and answer.endswith(symbols[0]) else answer
    for name, text in ((re.escape(said), sentence), (re.escape(folded(said)), plain)):
        patterns = (
            rf"\b{name}\)?(?:\s*\([^)]{{0,60}}\))?{_LISTED}{_OF_A_GENE}\)?\s+genes?\b",
            rf"\bgenes?\)?\s*(?:called|named|known as|such as|including|encoding|for|of|:|\(|,)?\s*(?:{_SYMBOL}"
            rf"(?:,|,? (?:and|or))\s+)*{name}\s*(?:[,.;)]|$|\b(?:and|or|cause|causes|is|are|lead|leads)\b)",
            rf"\bgenes?\b[^.,;]{{0,60}}\b(?:is|are|called|named)\s+(?:the\s+)?{name}\b",
        )
        if any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns):
            return True
    return False


def gives_a_name(answer: str, sentence: str, question: str) -> bool:
    """Whether the sentence gives the answer as another name. True if the question asks for no name."""
    if not any(kind.name == "a name" for kind in asked_for(question)):
        return True
    if _ABBREVIATION.search(question):
        short = re.findall(r"\b\w*[A-Z]\w*[A-Z]\w*\b", question)
        return any(_has_letters(word.lower(), folded(answer)) for word in short)
    name = re.escape(answer)
    before = rf"\([^)]*{name}[^)]*\)|{name}\s*\(|\b(?:{_CALLED}|or)\s+{_ARTICLES}[\"\u201c]?{name}"
    after = rf"{name}[\"\u201d]?,?\s+(?:(?:is|are|also|or|sometimes|commonly|formerly)\s+)*(?:{_CALLED}|or)\b"
    return bool(re.search(f"{before}|{after}", sentence, re.IGNORECASE))


def _has_letters(short: str, long: str) -> bool:
    """Whether the long form has the abbreviation's letters one after the other, the first of them first."""
    letters = iter(re.sub(r"\W", "", long))
    return long[:1] == short[:1] and all(letter in letters for letter in short)


_ASKED = r"^\W*(?:(?:and|so|in|of|by|from|with)\s+)?(?:which|what)\s+(?:(?:type|kind|sort)s? of\s+)?(?P<noun>{})\b"
_BETWEEN = r"(?:[\s,(:-]|\b(?:called|named|known|as|is|are|an?|the|or|of|by|for|also)\b)*"
_NO_DISEASE = frozenset({"treatment", "diagnosis", "dose", "inheritance", "genetics", "frequency", "prevention"})
_DISEASE = re.compile(
    r"(?:emia|itis|osis|(?<!st)oma|opathy|cancer|fever|syndrome|disease|disorder|infection|deficiency)s?$"
)
_DOES_SOMETHING = re.compile(r"(?i)^\W*what (?:does|do|can|is|are)\b.*\b(?:treat|prevent|diagnose|detect|cure|used)\b")
_TOO_LITTLE = word_list("too_little")
_LEADS_ON = word_list("leads_on")
_COUNTS_OR_GRADES = re.compile(
    r"\bhow (?:many|do|does|did|severe|serious|common)\b|\b(?:stages?|grades?|classif\w+|severity)\b", re.IGNORECASE
)
_WHAT_IS = re.compile(r"^\W*what(?:'s|\u2019s| is| are)\s+(?:an?\s+|the\s+)?(?P<rest>[^?]*)", re.IGNORECASE)
_MORE_THAN_A_NAME = re.compile(r"\b(?:of|in|for|by|to|with|that|which|when|used|from|on)\b", re.IGNORECASE)
_IS_CALLED = re.compile(r"\b(?:called|known as|termed|named)\b", re.IGNORECASE)


# Nouns that ask for a sort of thing, and the root by which a text names it: at the answer, or anywhere in the passage.
_AT_IT = (
    "enzyme hormone vitamin metal mineral nerve organ gland protein joint bone muscle vessel cell chromosome "
    "neurotransmitter"
)
_NEAR = {f"{noun}s?": noun for noun in _AT_IT.split()} | {"arter(?:y|ies)": "arter", "antibod(?:y|ies)": "antibod"}
_FAR = {"bacteri(?:a|um)": "bacteri", "virus(?:es)?": "vir(?:us|al)", "fung(?:us|i)": "fung"}
_FAR |= {"parasites?": "parasit", "toxins?": "toxin"}
_UNSAID = "insects?|animals?|foods?|chemicals?|substances?"  # a text says "tick"
_ANY_SORT = re.compile(_ASKED.format("|".join([*_FAR, _UNSAID, *_NEAR])), re.IGNORECASE)


def without_sort(question: str) -> str:
    """The question with spaces for the noun that says what sort of thing is asked for."""
    found = _ANY_SORT.match(question)
    if not found:
        return question
    start, end = found.span("noun")
    return f"{question[:start]}{' ' * (end - start)}{question[end:]}"


def is_of_sort(answer: str, text: str, question: str) -> bool:
    """Whether an answer is of the sort that a question asks for: by its own words, or by those of a text beside it."""
    found = _ANY_SORT.match(question)
    if not found:
        return True
    roots = (root for nouns, root in (_FAR | _NEAR).items() if re.fullmatch(nouns, found["noun"], re.IGNORECASE))
    root = next(roots, "")  # which any answer has, where texts leave the sort unsaid
    if re.search(root, answer, re.IGNORECASE):
        return True
    if root in _FAR.values():
        return bool(re.search(root, text, re.IGNORECASE))
    name, noun = re.escape(answer), rf"\b{root}\w*"
    after = rf"{name}{_BETWEEN}{noun}|{name}[^.?!]*[.;]\s+(?:It|This|These|They)\b{_BETWEEN}{noun}"
    return bool(re.search(rf"{noun}{_BETWEEN}{name}|{after}", text, re.IGNORECASE))


def says_too_little(answer: str, question: str) -> bool:
    """Whether an answer has nothing but words that fit any condition, such as "mild" or "signs and symptoms"."""
    counts = bool(_COUNTS_OR_GRADES.search(question))
    return not counts and bool(forms(answer)) and set(re.findall(r"\w+", folded(answer))) <= _TOO_LITTLE


def breaks_off(answer: str) -> bool:
    """Whether an answer ends in the middle of a phrase, as "groove to" does."""
    words = re.findall(r"\w+", folded(answer))
    return bool(words) and words[-1] in _LEADS_ON and (len(words) > 1 or len(words[0]) > 1)


def defines(answer: str, sentence: str, question: str, subject: frozenset[str]) -> bool:
    """False if the question asks what a thing is, and the sentence says the answer before it names the thing."""
    asked = _WHAT_IS.match(question)
    if not asked or asked_for(question) or _MORE_THAN_A_NAME.search(asked["rest"]):
        return True
    words = "|".join(re.escape(word) for _, word in named_words(answer))
    said = list(re.finditer(rf"\b(?:{words})\b", sentence, re.IGNORECASE)) if words else []
    if not said:
        return True
    before, after = sentence[: said[0].start()], sentence[said[-1].end() :]
    return not subject & forms(after) or bool(subject & forms(before)) or bool(_IS_CALLED.search(after))


def echoes(answer: str, title: str, question: str, subject: frozenset[str]) -> bool:
    """Whether an answer only names the question's subject, or another disease of that name where none is asked for."""
    said = forms(answer)
    kinds = {kind.name for kind in asked_for(question)}
    if describes(question) or not said & subject or "a name" in kinds or _DOES_SOMETHING.search(question):
        return False
    own = subject | forms(title) if subject <= forms(title) else subject
    rest = [folded(word) for each, word in named_words(answer) if each not in own]
    return not rest or (bool(kinds & _NO_DISEASE) and all(_DISEASE.search(word) for word in rest))
