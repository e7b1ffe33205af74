"""Whether a sentence states a name, and whether an answer has the form that its question asks for."""

from __future__ import annotations

from medagent.evidence.sentences import echoes, gives_a_name, is_of_sort, names_a_gene, says_too_little, without_sort
from medagent.evidence.words import Names, subject_words
from medagent.serving.conversation import standing_alone


def test_a_gene_is_what_the_sentence_calls_one() -> None:
    for answer, sentence, named in [
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
    ]:
        assert names_a_gene(answer, sentence, "Mutations in which gene cause it?") == named
        assert names_a_gene(answer, sentence, "What causes it?")


OTHER_NAME = "What is another name for chickenpox?"


def test_another_name_is_given_as_one() -> None:
    for answer, sentence, question, given in [
        ("HIV", "AIDS (acquired immunodeficiency syndrome) is caused by HIV.", "What does AIDS stand for?", False),
        ("acquired immunodeficiency syndrome", "AIDS is short.", "What does AIDS stand for?", True),
        ("shingles", "Chickenpox can later cause shingles, a painful rash.", OTHER_NAME, False),
        ("varicella", "Chickenpox, also called varicella, itches.", OTHER_NAME, True),
        ("varicella", "Varicella (chickenpox) itches.", OTHER_NAME, True),
        ("varicella", "Varicella itches.", "How is chickenpox treated?", True),
    ]:
        assert gives_a_name(answer, sentence, question) == given


def test_the_sort_of_thing_that_is_asked_for_is_no_subject() -> None:
    assert "enzyme" not in without_sort("And which enzyme is missing in Tay-Sachs disease?")
    assert "hormone" in without_sort("What is the growth hormone for?")


def test_the_sort_stands_beside_what_is_of_it() -> None:
    for answer, text, of_it in [
        ("aspartoacylase", "An enzyme called aspartoacylase is missing.", True),
        ("aspartoacylase", "Aspartoacylase, an enzyme, is missing.", True),
        ("aspartoacylase", "Aspartoacylase is missing. This enzyme breaks down acids.", True),
        ("GM2 ganglioside", "The lack of an enzyme leads to build-up of GM2 ganglioside.", False),
        ("alpha enzyme", "It is missing.", True),
    ]:
        assert is_of_sort(answer, text, "Which enzyme is missing in it?") == of_it
        assert is_of_sort(answer, text, "What is missing in it?")


def test_a_misspelt_syndrome_is_no_name() -> None:
    assert list(subject_words("Marfans sindrome")) == ["marfan"]
    assert list(subject_words("the symptoms of Down syndrom")) == ["symptom", "down"]


def test_the_subject_again_is_no_answer() -> None:
    for answer, title, question, echo in [
        ("Gout", "Gout", "What causes gout?", True),
        ("hepatitis B vaccine", "Hepatitis B", "What prevents hepatitis B?", False),
        ("liver cancer", "Cirrhosis of the liver", "What are complications of liver cirrhosis?", False),
        ("sickle cell anemia", "Sickle cell disease", "How is sickle cell disease treated?", True),
        ("kidney transplant", "Kidney transplant", "How is kidney failure treated?", False),
        ("West Nile virus", "West Nile virus", "What causes West Nile fever?", False),
        ("typhoid fever", "Typhoid vaccine", "What does the typhoid vaccine prevent?", False),
        ("liver cancer", "Liver biopsy", "What does a liver biopsy diagnose?", False),
        ("colon stoma", "Colon cancer", "How is colon cancer treated?", False),
        ("measles", "Measles", "Which disease is it whose sign is Koplik spots?", False),
        ("Down syndrome", "Down syndrome", "What is another name for trisomy 21 or Down?", False),
    ]:
        assert echoes(answer, title, question, frozenset(subject_words(question))) == echo


def test_words_that_fit_anything_say_too_little() -> None:
    asked = "What are the symptoms of gout?"
    for said in ("mild", "other, several", "signs and symptoms", "Medical"):
        assert says_too_little(said, asked), said
    for said in ("medication", "severe pain", ""):
        assert not says_too_little(said, asked), said
    assert says_too_little("treatment", "How is gout treated?")
    assert not says_too_little("vaccination", "How is tetanus prevented?")
    assert not says_too_little("rare", "How common is gout?")
    assert not says_too_little("one", "How many X chromosomes do girls with Turner syndrome have?")
    assert not says_too_little("mild, moderate, severe", "What are the stages of COPD?")
    assert not says_too_little("fatal", "What is the outlook of rabies?")


def test_low_and_high_stay_in_a_name() -> None:
    assert standing_alone(["What is low blood pressure?", "How is it treated?"]) == "How is low blood pressure treated?"


def test_two_spellings_of_one_title_are_offered_once() -> None:
    names = Names(["Addison disease", "Addison's disease", "Addison syndrome", "ADDISON SYNDROME"])
    near = names.near({"adisson": "Adisson"}, ["adisson"])
    assert [title.lower().replace("'s", "") for title in near] == ["addison disease", "addison syndrome"]
