"""How an open answer is written, and how it is read back: one text, up to five ranked answers, a list, or a number.

Entries stand in lines of their own, or in one line with a semicolon and a space between them. "t(9;22)" is one entry.
"""

import re

from medagent.types import AnswerForm

MAX_RANKED = 5  # answers that BioASQ takes to a factoid question
FORM_HINTS: dict[AnswerForm, str] = {  # what an instructed protocol writes below the question
    "text": "",
    "ranked": 'Answer in a few words, or give up to five answers, the best first, with "; " between them.\n',
    "list": 'The answer is a list. Give all of its entries, each in a few words, with "; " between them.\n',
    "number": "Answer with one number and its unit.\n",
    "select_all": "Several options may be right. Name all of them, like (A), (C).\n",
}
_CITATION = re.compile(r"(?<!\bP)(?<!\bG\dP)(?<!\bG\d\dP)\[\d+\]")  # rotavirus is named G1P[8]
_NUMBER = re.compile(r"\[(\d{1,3})\]")
_MARKED_LETTER = re.compile(r"\(([A-J])\)")
_CITED = re.compile(rf"\s*{_CITATION.pattern}")
_BULLET = re.compile(r"^\s*(?:[-*\u2022\u2013]\s+|\(?\d{1,2}[.)]\s+)")
_BETWEEN = re.compile(r";(?:\s+|$)")


def without_citations(answer: str) -> str:
    """An answer's text without citation marks. The brackets of a genotype are none: "G1P[8]"."""
    return _CITATION.sub(" ", answer)


def entries(answer: str) -> list[str]:
    """The entries of an answer in their order, without citations, bullets and numbers.

    Several lines are one entry each, and semicolons in them separate nothing. Empty entries are left out.
    """
    lines = [line for line in _CITED.sub("", answer).splitlines() if line.strip()]
    parts = lines if len(lines) > 1 else [part for part in _BETWEEN.split("".join(lines)) if part.strip()]
    # A single number may be a part of its entry.
    if len(lines) > 1 or (len(parts) > 1 and all(map(_BULLET.match, parts))):
        parts = [_BULLET.sub("", part) for part in parts]
    return [plain for part in parts if (plain := part.strip().strip(";").strip())]


def written(form_entries: list[str]) -> str:
    """Entries as one answer that `entries` reads back."""
    plain = [" ".join(entry.split()) for entry in form_entries]
    return ("\n" if any(_BETWEEN.search(entry) for entry in plain) else "; ").join(plain)


def citations(answer: str) -> list[int]:
    """Passage numbers cited in an answer, in order, without repeats."""
    return list(dict.fromkeys(int(number) for number in _NUMBER.findall(answer)))


def marked_letters(answer: str) -> list[str]:
    """Letters in parentheses, in order, without repeats."""
    return list(dict.fromkeys(_MARKED_LETTER.findall(answer)))
