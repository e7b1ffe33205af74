"""Whether a sentence names something as a gene, or as another name of what was asked for."""

from __future__ import annotations

import re

from medagent.evidence.kinds import asked_for
from medagent.evidence.words import folded

_ASKS_FOR_A_GENE = re.compile(r"\b(?:which|what) (?:single )?genes?\b", re.IGNORECASE)
_NO_GENE = frozenset(
    (
        "dominant recessive defective single mutated abnormal faulty altered changed inherited many several different "
        "one two more gene genes parents a an the specific certain single-gene"
    ).split()
)
_SYMBOL = r"(?-i:[A-Z][A-Z0-9-]+)"
_LISTED = rf"(?:(?:,|,? (?:and|or)) {_SYMBOL})*"
_OF_A_GENE = r"(?: (?:tumou?r|suppressor|homeobox|receptor|protein|growth|factor|transcription)){0,3}"
_ABBREVIATION = re.compile(r"\b(?:abbreviation|acronym|stands? for|short for)\b", re.IGNORECASE)
_CALLED = r"(?:called|known as|termed|named|referred to as|names?:?|abbreviated(?: as)?|stands for|short for|means)"
_ARTICLES = r"(?:an?\s+|the\s+)?"


def names_a_gene(answer: str, sentence: str, question: str) -> bool:
    """Where a question asks which gene: whether the sentence calls the answer one; else true.

    In "the CGG triplet in the FMR1 gene" FMR1 is the gene. Of a list of genes each must be one.
    """
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
    """Where a question asks for another name: whether the sentence gives the answer as one; else true.

    What an abbreviation stands for must have its letters.
    """
    if not any(kind.name == "a name" for kind in asked_for(question)):
        return True
    if _ABBREVIATION.search(question):
        short = re.findall(r"\b\w*[A-Z]\w*[A-Z]\w*\b", question)
        return any(_has_letters(word.lower(), folded(answer)) for word in short)
    name = re.escape(answer)
    return any(
        re.search(pattern, sentence, re.IGNORECASE)
        for pattern in (
            rf"\([^)]*{name}[^)]*\)",
            rf"{name}\s*\(",
            rf"\b(?:{_CALLED}|or)\s+{_ARTICLES}[\"\u201c]?{name}",
            rf"{name}[\"\u201d]?,?\s+(?:(?:is|are|also|or|sometimes|commonly|formerly)\s+)*(?:{_CALLED}|or)\b",
        )
    )


def _has_letters(short: str, long: str) -> bool:
    """Whether an abbreviation's letters come one after the other, the first of them first.

    >>> _has_letters("gerd", "gastroesophageal reflux disease"), _has_letters("aids", "hiv")
    (True, False)
    """
    letters = iter(re.sub(r"\W", "", long))
    return long[:1] == short[:1] and all(letter in letters for letter in short)
