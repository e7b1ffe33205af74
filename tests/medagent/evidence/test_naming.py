"""What a sentence calls a gene, and what it gives as another name."""

from __future__ import annotations

import pytest

from medagent.evidence.sentences import gives_a_name, names_a_gene


@pytest.mark.parametrize(
    ("answer", "sentence", "named"),
    [
        ("PAH", "Mutations in the PAH gene cause phenylketonuria.", True),
        ("COL4A3", "Mutations in the COL4A3, COL4A4, and COL4A5 genes cause it.", True),
        ("COL4A5", "Mutations in the genes COL4A3, COL4A4 and COL4A5 cause it.", True),
        ("fibrillin-1", "It is caused by a gene called fibrillin-1.", True),
        ("PAH gene", "The PAH gene is mutated.", True),
        ("CGG triplet", "Within the FMR1 gene, CGG triplets are repeated.", False),
        ("MECP2", "The MECP2 (methyl CpG) gene", True),
        ("maternal copy of UBE3A", "The maternal copy of the UBE3A gene is lost.", True),
        ("HEXA", "An enzyme called HEXA is missing.", False),
        ("CFTR", "Mutations in the cystic fibrosis transmembrane conductance regulator (CFTR) gene cause it.", True),
        ("CFTR", "Mutations of the gene encoding CFTR cause it.", True),
        ("CFTR", "Mutations in a single gene, CFTR, cause it.", True),
        ("CFTR", "The mutated gene in cystic fibrosis is CFTR.", True),
        ("NF1", "The NF1 tumor suppressor gene is mutated.", True),
        ("TSC1 and TSC2", "It is caused by two genes, TSC1 and TSC2.", True),
        ("dominant gene", "It is caused by a dominant gene.", False),
        ("parents", "It is caused by parents, grandparents and other genes.", False),
    ],
)
def test_a_gene_is_what_the_sentence_calls_one(answer: str, sentence: str, named: bool) -> None:
    assert names_a_gene(answer, sentence, "Mutations in which gene cause it?") == named
    assert names_a_gene(answer, sentence, "What causes it?")


@pytest.mark.parametrize(
    ("answer", "sentence", "question", "given"),
    [
        ("HIV", "AIDS (acquired immunodeficiency syndrome) is caused by HIV.", "What does AIDS stand for?", False),
        ("acquired immunodeficiency syndrome", "AIDS is short.", "What does AIDS stand for?", True),
        (
            "shingles",
            "Chickenpox can later cause shingles, a painful rash.",
            "What is another name for chickenpox?",
            False,
        ),
        ("varicella", "Chickenpox, also called varicella, itches.", "What is another name for chickenpox?", True),
        ("varicella", "Varicella (chickenpox) itches.", "What is another name for chickenpox?", True),
        ("varicella", "Varicella itches.", "How is chickenpox treated?", True),
    ],
)
def test_another_name_is_given_as_one(answer: str, sentence: str, question: str, given: bool) -> None:
    assert gives_a_name(answer, sentence, question) == given
