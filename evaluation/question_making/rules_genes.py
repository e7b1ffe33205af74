"""Rules about genes: which one causes a condition, which condition it causes, and what it is the instruction for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from medagent.evaluation.question_making.drafts import Draft, Source, sentence_case
from medagent.evaluation.question_making.rules_facts import subject_of
from medagent.evaluation.question_making.text import cut_clause, is_term, points_elsewhere, without_article, words_of
from medagent.evaluation.question_making.verbs import begins_with_verb

_NAME = r"(?P<gene>[A-Z][A-Z0-9]{1,9}(?:-[A-Z0-9]{1,4})?)"
_CHANGES = r"(?:mutations?|changes?|variants|changes \(mutations\)|alterations)"
_BY_GENE = re.compile(
    r"^(?P<subject>[^,;]{3,90}?) (?:is|are) (?:usually |most often |often |typically )?(?:caused by|due to|the result "
    r"of) "
    rf"(?:an? |inherited )?{_CHANGES} (?:in|of) (?:both copies of )?the {_NAME} gene\b(?! and| or|,? and| genes)"
)
_RESULTS = re.compile(
    rf"^(?P<subject>[^,;]{{3,90}}?) results from (?:an? |inherited )?{_CHANGES} in the {_NAME} gene\b(?! and| or|,? "
    rf"and| genes)"
)
_GENE_CAUSES = re.compile(
    rf"^(?:Inherited )?{_CHANGES.replace('m', '[Mm]', 1).replace('c', '[Cc]', 1)} in the {_NAME} gene (?:cause|can "
    rf"cause|are responsible for|"
    r"have been found to cause|have been identified in people with|are known to cause|result in|lead to) "
    r"(?P<subject>[^,;]{3,90})$"
)
_OWN_CAUSES = re.compile(rf"^{_NAME} gene mutations (?:cause|can cause|result in|lead to) (?P<subject>[^,;]{{3,90}})$")
_INSTRUCTIONS = re.compile(
    r"^(?:The (?P<gene>[A-Z][A-Z0-9-]{1,10})|This) gene (?:provides|carries|contains) instructions for (?:making|"
    r"producing) (?P<what>.+)$"
)
_NAMED = re.compile(
    r"^(?P<genus>an? (?:[\w-]+ ){0,2}(?:protein|enzyme|molecule|hormone|receptor)) (?:called|known as) "
    r"(?P<term>[^,;:()]{3,70}?)(?=$|,(?!\d)|[;(]| that| which| and)"
)
_DOING = re.compile(
    r"^(?P<genus>an? (?:[\w-]+ ){0,2}(?:protein|enzyme|molecule|hormone|receptor)) (?P<joint>that|which|involved in) "
    r"(?P<clause>.+)$"
)


def gene_causes(source: Source) -> Iterator[Draft]:
    """Rule: "X is caused by mutations in the G gene" asks for the gene, and which condition mutations in G cause."""
    text = source.text
    if " gene" not in text:
        return
    found = next((m for p in (_BY_GENE, _RESULTS, _GENE_CAUSES, _OWN_CAUSES) if (m := p.match(text))), None)
    if found is None or not (subject := subject_of(source, found["subject"])):
        return
    gene = found["gene"]
    yield Draft("cause", "gene", f"Mutations in which gene cause {subject}?", (gene,), source.sentence)
    kind = source.statistics.topics.get(subject.lower(), "")
    if kind and " of " not in subject:
        question = f"Which {kind} is caused by mutations in the {gene} gene?"
        yield Draft("name", "condition", question, (subject,), source.sentence)


def gene_products(source: Source) -> Iterator[Draft]:
    """Rule: "The G gene provides instructions for making Y" asks for the protein, or for the gene.

    For the gene it is asked by the protein's name or by what the protein does.

    "This gene" is the one that the sentence before names, where it names one.
    """
    found = _INSTRUCTIONS.match(source.text)
    if found is None:
        return
    before = re.findall(r"\b([A-Z][A-Z0-9]{1,9}(?:-[A-Z0-9]{1,4})?) genes?\b", source.before)
    gene = found["gene"] or (before[0] if len(set(before)) == 1 and "genes" not in source.before else "")
    if not gene:
        return
    what = found["what"]
    if (named := _NAMED.match(what)) and is_term(named["term"], longest=6):
        term = without_article(named["term"].strip())
        question = f"Which {without_article(named['genus'])} does the {gene} gene provide instructions for making?"
        yield Draft("name", "protein", question, (term,), source.sentence)
        question = f"Which gene provides instructions for making {named['genus']} called {term}?"
        yield Draft("name", "gene", question, (gene,), source.sentence)
    elif doing := _DOING.match(what):
        clause = cut_clause(doing["clause"])
        verb = doing["joint"] == "involved in" or begins_with_verb(clause, plural=False)
        if verb and 4 <= len(words_of(clause)) <= 26 and not points_elsewhere(clause):
            question = f"Which gene provides instructions for making {doing['genus']} {doing['joint']} {clause}?"
            yield Draft("name", "function", question, (gene,), source.sentence)


_FIRST = re.compile(
    r"^(?P<subject>[^,;]{3,80}?) was (?:first|originally) (?P<verb>described|identified|reported|discovered|"
    r"recognized) "
    r"(?P<by>(?:in (?:the )?(?P<year>\d{4}s?)(?: by (?P<who>[A-Z][\w. -]{2,40}))?)|(?:by (?P<first>[A-Z][\w. "
    r"-]{2,40}?)(?: in (?P<when>\d{4}))?))$"
)


def first_described(source: Source) -> Iterator[Draft]:
    """Rule: "X was first described by Y in 1950" asks by whom and when."""
    found = _FIRST.match(source.text)
    if found is None or not (subject := subject_of(source, found["subject"])):
        return
    if year := found["year"] or found["when"]:
        question = f"When was {subject} first {found['verb']}?"
        yield Draft("number", "year", question, (year,), source.sentence)
    if (who := found["who"] or found["first"]) and is_term(who, longest=5):
        yield Draft("name", "person", f"Who first {found['verb']} {subject}?", (sentence_case(who),), source.sentence)
