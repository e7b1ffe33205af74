"""The rules: which sentences become questions, and which are refused."""

from __future__ import annotations

import pytest

from medagent.evaluation.question_making import rules_actors, rules_facts, rules_genes, rules_numbers, rules_terms
from medagent.evaluation.question_making.rules import drafts_of
from medagent.evaluation.question_making.text import cut_clause, is_term, points_elsewhere, usable_sentences
from medagent.evaluation.question_making.verbs import SINGULAR, begins_with_verb
from medagent.retrieval.passages import Passage
from tests.evaluation.question_making.support import PASSAGES, counted, drafts

MADE = [
    (
        rules_terms.definitions,
        "Costello syndrome is a rare disorder that affects many parts of the body.",
        ("Which rare disorder affects many parts of the body?", ("Costello syndrome",)),
    ),
    (
        rules_terms.definitions,
        "Anemia is a condition in which the body has fewer red blood cells than normal.",
        ("What is the term for a condition in which the body has fewer red blood cells than normal?", ("anemia",)),
    ),
    (
        rules_terms.definitions,
        "Croup is an inflammation of the vocal cords and windpipe.",
        ("What is the term for an inflammation of the vocal cords and windpipe?", ("croup",)),
    ),
    (
        rules_terms.definitions,
        "Darier disease is a skin condition characterized by wart-like blemishes on the body.",
        ("Which skin condition is characterized by wart-like blemishes on the body?", ("Darier disease",)),
    ),
    (
        rules_terms.so_named,
        "Pain begins in nerve cells called nociceptors that transmit pain signals to the spinal cord.",
        ("Which nerve cells transmit pain signals to the spinal cord?", ("nociceptors",)),
    ),
    (
        rules_terms.called,
        "The outermost layer of the skin is called the epidermis.",
        ("What is the outermost layer of the skin called?", ("epidermis",)),
    ),
    (
        rules_terms.called,
        "When a person with AIDS has non-Hodgkin lymphoma, it is called AIDS-related lymphoma.",
        ("What is it called when a person with AIDS has non-Hodgkin lymphoma?", ("AIDS-related lymphoma",)),
    ),
    (
        rules_terms.other_names,
        "Hypoglycemia, also called low blood glucose or low blood sugar, is common in diabetes.",
        ("What is another name for hypoglycemia?", ("low blood glucose", "low blood sugar")),
    ),
    (
        rules_terms.happenings,
        "Cystic kidney failure occurs when small cysts replace the healthy tissue of the kidneys.",
        ("What is it called when small cysts replace the healthy tissue of the kidneys?", ("cystic kidney failure",)),
    ),
    (
        rules_genes.gene_causes,
        "Chediak-Higashi syndrome is caused by mutations in the LYST gene.",
        ("Mutations in which gene cause Chediak-Higashi syndrome?", ("LYST",)),
    ),
    (
        rules_genes.gene_products,
        "The FGF23 gene provides instructions for making a protein called fibroblast growth factor 23, a hormone.",
        ("Which protein does the FGF23 gene provide instructions for making?", ("fibroblast growth factor 23",)),
    ),
    (
        rules_genes.first_described,
        "Fabry disease was first described by Johannes Fabry in 1898.",
        ("When was Fabry disease first described?", ("1898",)),
    ),
    (
        rules_facts.causes,
        "Shingles is caused by reactivation of the chickenpox virus.",
        ("What causes shingles?", ("reactivation of the chickenpox virus",)),
    ),
    (
        rules_facts.treatments,
        "Carcinoid syndrome is usually treated with octreotide or lanreotide.",
        ("What is Carcinoid syndrome usually treated with?", ("octreotide or lanreotide",)),
    ),
    (
        rules_facts.treatments,
        "Trabeculectomy may be used to treat glaucoma in adults.",
        ("What may be used to treat glaucoma in adults?", ("trabeculectomy",)),
    ),
    (
        rules_facts.places,
        "The pancreas lies behind the stomach and in front of the spine.",
        ("Where does the pancreas lie?", ("behind the stomach and in front of the spine",)),
    ),
    (
        rules_facts.superlatives,
        "The most common cause of COPD is cigarette smoking.",
        ("What is the most common cause of COPD?", ("cigarette smoking",)),
    ),
    (
        rules_facts.superlatives,
        "Triglycerides are the main source of stored energy in cells.",
        ("What is the main source of stored energy in cells?", ("triglycerides",)),
    ),
    (
        rules_actors.functions,
        "Osteoclasts destroy old bone on the inner surfaces of the skeleton.",
        ("What destroys old bone on the inner surfaces of the skeleton?", ("osteoclasts",)),
    ),
    (
        rules_actors.agents,
        "Insulin is produced by the beta cells of the pancreas.",
        ("What is insulin produced by?", ("beta cells of the pancreas",)),
    ),
    (
        rules_actors.helpers,
        "Folic acid helps to prevent birth defects of the brain and spine.",
        ("What helps to prevent birth defects of the brain and spine?", ("folic acid",)),
    ),
    (
        rules_actors.helpers,
        "Endometrial cancer is diagnosed most often in postmenopausal women.",
        ("In whom is endometrial cancer most often diagnosed?", ("postmenopausal women",)),
    ),
    (
        rules_numbers.frequencies,
        "Netherton syndrome affects approximately 1 in 200,000 newborns worldwide.",
        ("How common is Netherton syndrome among newborns worldwide?", ("1 in 200,000",)),
    ),
    (
        rules_numbers.inheritance,
        "Sotos syndrome is inherited in an autosomal dominant pattern, which means one copy is enough.",
        ("What is the inheritance pattern of Sotos syndrome?", ("autosomal dominant",)),
    ),
    (
        rules_numbers.onsets,
        "Symptoms of Canavan disease usually appear in the first six months of life and worsen fast.",
        ("When do the symptoms of Canavan disease usually appear?", ("in the first six months of life",)),
    ),
    (
        rules_numbers.counts,
        "Each kidney contains eight renal lobes of equal size.",
        ("How many renal lobes does each kidney contain?", ("eight",)),
    ),
    (
        rules_numbers.shares,
        "About 20 percent of people with Waardenburg syndrome have hearing loss.",
        ("What percentage of people with Waardenburg syndrome have hearing loss?", ("20 percent",)),
    ),
    (
        rules_numbers.shares,
        "More than 90 percent of people with cherubism have a mutation in the SH3BP2 gene.",
        (
            "What percentage of people with cherubism have a mutation in the SH3BP2 gene?",
            ("more than 90 percent",),
        ),
    ),
]


@pytest.mark.parametrize(
    ("rule", "sentence", "wanted"), MADE, ids=lambda each: getattr(each, "__name__", str(each)[:40])
)
def test_a_rule_asks_for_the_span(rule, sentence: str, wanted: tuple[str, tuple[str, ...]]) -> None:
    assert wanted in drafts(rule, sentence)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (rules_terms.definitions, "This disorder is a rare condition that affects the heart of newborns."),
        (rules_terms.definitions, "Heart failure is a condition that doctors treat with these drugs every day."),
        (rules_terms.definitions, "One example is a test that shows it well."),
        (rules_terms.definitions, "Histiocytosis is not a disease of the normal cells of the skin."),
        (rules_terms.so_named, "A clot in the leg called deep vein thrombosis that breaks loose is dangerous."),
        (rules_terms.called, "This process is called gastrulation by embryologists."),
        (rules_terms.called, "Water and the nutrients are also called macronutrients in books."),
        (rules_terms.other_names, "Mutations in the TYMP gene (also called ECGF1) cause a rare disease."),
        (rules_genes.gene_causes, "Cataract is caused by mutations in the CRYAA gene and CRYAB genes."),
        (rules_facts.causes, "The disease is caused by several unknown factors together."),
        (rules_facts.treatments, "Chilaiditi syndrome is treated with these simple measures."),
        (rules_facts.superlatives, "The most severe of the three is toxic epidermal necrolysis."),
        (rules_actors.functions, "Neural and endocrine controls are vital to the regulation of the heart."),
        (rules_actors.functions, "Fibrin proteins attach to each other in a stable network of strands."),
        (rules_numbers.counts, "Each kidney contains two different types of specialised cells."),
        (rules_numbers.shares, "Fewer than 5 percent of cases are caused by mutations in the KRAS gene."),
        (rules_terms.happenings, "The term idiopathic means the exact cause of the swelling is not known."),
        (
            rules_terms.definitions,
            "The carina is a ridge that induces violent coughing if a foreign body, such as food, is present.",
        ),
        (
            rules_genes.gene_products,
            "The ITPKC gene provides instructions for making an enzyme called inositol 1,4,5-triphosphate 3-kinase C.",
        ),
        (rules_numbers.frequencies, "It affects 1 in 3,000 people."),
    ],
)
def test_what_cannot_stand_alone_is_refused(rule, sentence: str) -> None:
    assert not drafts(rule, sentence)


def test_a_bracket_gives_another_right_answer() -> None:
    sentence = "Spinal muscular atrophy (SMA) is a genetic disorder that weakens the muscles used for movement."
    assert drafts(rules_terms.definitions, sentence) == [
        (
            "Which genetic disorder weakens the muscles used for movement?",
            ("spinal muscular atrophy", "SMA"),
        )
    ]


def test_this_condition_is_the_title_where_the_index_says_what_the_title_is() -> None:
    sentence = "This condition is inherited in an autosomal dominant pattern, which means one copy suffices."
    asked = "What is the inheritance pattern of Costello syndrome?"
    assert drafts(rules_numbers.inheritance, sentence, title="Costello syndrome") == [(asked, ("autosomal dominant",))]
    assert not drafts(rules_numbers.inheritance, sentence, title="An introduction")


def test_this_gene_is_the_one_that_the_sentence_before_names() -> None:
    sentence = "This gene provides instructions for making an enzyme called biotinidase."
    asked = "Which enzyme does the BTD gene provide instructions for making?"
    before = "Mutations in the BTD gene cause biotinidase deficiency."
    assert (asked, ("biotinidase",)) in drafts(rules_genes.gene_products, sentence, before=before)
    assert not drafts(rules_genes.gene_products, sentence, before="Mutations in the PSEN1 or PSEN2 genes are known.")
    assert not drafts(rules_genes.gene_products, sentence)


def test_a_gene_also_asks_for_its_condition_where_the_index_knows_that() -> None:
    asked = [
        question
        for question, _ in drafts(rules_genes.gene_causes, "Mutations in the HRAS gene cause Costello syndrome.")
    ]
    assert asked == [
        "Mutations in which gene cause Costello syndrome?",
        "Which disorder is caused by mutations in the HRAS gene?",
    ]


def test_an_abbreviation_with_two_long_forms_is_not_asked_for() -> None:
    one = "Lentigo maligna melanoma (LMM) grows slowly on skin exposed to the sun."
    other = "Large muscle mass (LMM) protects from falls in older people every winter."
    assert drafts(rules_terms.abbreviations, one) == [
        ("What does the abbreviation LMM stand for?", ("lentigo maligna melanoma",))
    ]
    both = counted([*PASSAGES, Passage.make("Muscle", other)])
    assert not drafts(rules_terms.abbreviations, one, statistics=both)


def test_a_gloss_reaches_as_far_as_the_index_says() -> None:
    heads = ("have", "develop", "show", "with", "has")
    texts = [f"Some infants {head} reduced head size (microcephaly) and little else at birth." for head in heads]
    filler = [Passage.make(f"t{i}", f"Filler text number {i} about anything else in medicine.") for i in range(300)]
    statistics = counted([*filler, *(Passage.make(f"c{i}", text) for i, text in enumerate(texts))])
    assert drafts(rules_terms.glosses, texts[0], statistics=statistics) == [
        ("What is the medical term for reduced head size?", ("microcephaly",))
    ]
    assert not drafts(rules_terms.glosses, texts[0])  # seen too seldom
    of = [f"Some infants {head} closure of skull bones (craniosynostosis) at birth." for head in heads]
    statistics = counted([*filler, *(Passage.make(f"c{i}", text) for i, text in enumerate(of))])
    found = drafts(rules_terms.glosses, of[0], statistics=statistics)
    assert found == [("What is the medical term for closure of skull bones?", ("craniosynostosis",))]


def test_sentences_of_tables_lists_and_broken_text_are_left_out() -> None:
    text = (
        "Osteoclasts ( a) break down bone in every part of the skeleton. Signs and Symptoms Approximate number of "
        "patients 90% Atrophy. - Item one of a list follows here. Is this a question about the heart of man? "
        "Mllerian ducts vanish early in the development of males. A type 1 dont know sentence stands here now."
    )
    assert usable_sentences(text) == ["Osteoclasts break down bone in every part of the skeleton."]
    assert usable_sentences("") == []


def test_words_run_together_and_headings_break_a_sentence() -> None:
    filler = [
        Passage.make(f"t{i}", "People with diabetes and the heart of other tests are often seen here.")
        for i in range(20)
    ]
    statistics = counted(filler)
    assert statistics.broken("People with diabetesand more are seen here.")
    assert statistics.broken("Heart Tests Other Often the tests are seen.")
    assert not statistics.broken("People with diabetes are often seen here.")


def test_names_keep_their_capital_inside_a_sentence_and_words_lose_it() -> None:
    passages = [Passage.make("a", "The signs of Marfan syndrome vary. Doctors see anemia in children of every age.")]
    statistics = counted(passages)
    assert statistics.inside("Marfan syndrome") == "Marfan syndrome"
    assert statistics.inside("Anemia") == "anemia"
    assert statistics.inside("The anemia") == "the anemia"
    assert statistics.inside("COPD") == "COPD"
    assert statistics.inside("") == ""


@pytest.mark.parametrize(
    ("phrase", "wanted"),
    [
        ("atrial fibrillation", True),
        ("T lymphocytes", True),
        ("œdème aigu", True),
        ("this condition", False),
        ("what doctors call it", False),
        ("a", False),
        ("", False),
        ("and the rest", False),
        ("one two three four five six seven eight", False),
        ("angina (chest pain", False),
    ],
)
def test_a_term_is_a_name(phrase: str, wanted: bool) -> None:
    assert is_term(phrase) is wanted


def test_clauses_are_cut_at_remarks_and_pointers_are_seen() -> None:
    assert cut_clause("affects the lungs, which makes breathing hard") == "affects the lungs"
    assert cut_clause("affects skin, hair, and nails.") == "affects skin, hair, and nails"
    assert points_elsewhere("the families of these children")
    assert points_elsewhere("the disorder in adults")
    assert not points_elsewhere("a disorder of the skin")


def test_verbs_agree_in_number() -> None:
    assert SINGULAR["carry"] == "carries"
    assert SINGULAR["attach"] == "attaches"
    assert begins_with_verb("usually affects the skin", plural=False)
    assert not begins_with_verb("usually affect the skin", plural=False)
    assert not begins_with_verb("", plural=True)


def test_a_huge_passage_and_one_without_sentences_are_read() -> None:
    statistics = counted()
    text = "Costello syndrome is a rare disorder that affects many parts of the body. " * 2_000
    assert len(list(drafts_of(Passage.make("x", text), statistics))) == 2_000
    assert list(drafts_of(Passage.make("x", "|" * 100_000), statistics)) == []
    assert list(drafts_of(Passage.make("x", "日本語の文。これは薬です。"), statistics)) == []
