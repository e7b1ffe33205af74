"""All rules, in the order in which a sentence is offered to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from medagent.evaluation.question_making import rules_actors, rules_facts, rules_genes, rules_numbers, rules_terms
from medagent.evaluation.question_making.drafts import Draft, Rule, Source
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.evaluation.question_making.text import usable_sentences
from medagent.retrieval.passages import Passage

RULES: tuple[Rule, ...] = (
    rules_terms.definitions,
    rules_terms.so_named,
    rules_terms.called,
    rules_terms.other_names,
    rules_terms.happenings,
    rules_terms.abbreviations,
    rules_terms.glosses,
    rules_genes.gene_causes,
    rules_genes.gene_products,
    rules_genes.first_described,
    rules_facts.causes,
    rules_facts.treatments,
    rules_facts.places,
    rules_facts.superlatives,
    rules_actors.functions,
    rules_actors.agents,
    rules_actors.helpers,
    rules_numbers.frequencies,
    rules_numbers.inheritance,
    rules_numbers.onsets,
    rules_numbers.counts,
    rules_numbers.shares,
)


def drafts_of(passage: Passage, statistics: CorpusStatistics, rules: Iterable[Rule] = RULES) -> Iterator[Draft]:
    """The questions that the rules make of a passage, in the order of its sentences."""
    before = ""
    for sentence in usable_sentences(passage.text):
        if statistics.broken(sentence):
            before = ""
            continue
        source = Source(sentence, passage.title, statistics, before)
        before = sentence
        for rule in rules:
            yield from rule(source)
